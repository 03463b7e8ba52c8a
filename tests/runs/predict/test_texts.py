"""New texts are read row by row."""

import io
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from taskloom.core import DataError
from taskloom.core.rows import Rows
from taskloom.runs.predict.texts import NewTexts


def read(content: str, **options: Any) -> tuple[list[tuple[int, str]], list[str]]:
    """Line and first text of each row, and why others were skipped."""
    problems: list[str] = []
    rows = Rows(io.BytesIO(content.encode()), options.pop("name", "x"), **options)
    source = NewTexts(rows, 1, skip=problems.append)
    return [(row.line, row.texts[0]) for row in source], problems


class Endless(io.RawIOBase):
    """Rows without end."""

    def __init__(self, first: bytes, row: bytes) -> None:
        self._bytes: Iterator[int] = itertools.chain(first, itertools.cycle(row))

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        some = bytes(itertools.islice(self._bytes, min(len(buffer), 100)))
        buffer[: len(some)] = some
        return len(some)


@pytest.mark.parametrize(
    ("first", "row"), [(b"text\n", b"fine\n"), (b"a\ttext\n", b"1\tfine\n"), (b"", b'{"text": "fine"}\n')]
)
def test_a_stream_without_end_gives_its_rows_as_they_come(first: bytes, row: bytes) -> None:
    source = NewTexts(Rows(Endless(first, row), "stdin"), 1)  # type: ignore[arg-type]
    assert [found.texts for found in itertools.islice(source, 5)] == [("fine",)] * 5


def test_the_format_is_known_by_name_and_first_line() -> None:
    rows = [(2, "a, b")]
    assert read('text\n"a, b"\n')[0] == rows
    assert read("id\ttext\n1\ta, b\n")[0] == rows
    assert read("text\na, b\n", format="tsv")[0] == rows
    assert read("text\na, b\n", name="x.TSV")[0] == rows
    assert read('text,n\n"a, b",1\n', name="x.tsv")[0] == rows
    assert read('\n{"text": "a, b"}\n')[0] == rows
    assert read('\ufefftext\r\n"a, b"\r\n')[0] == rows
    assert read('text\n"a"\n', quotes=False)[0] == [(2, '"a"')]


def test_a_text_of_several_lines_is_one_row_and_lines_are_counted() -> None:
    assert read('text,n\n"one\ntwo\n",1\n\nthree,2\n')[0] == [(2, "one\ntwo"), (6, "three")]


@pytest.mark.parametrize("rest", ["", 'and "so" on,2\n', '"so",2\n'])
def test_a_quote_that_does_not_close_is_an_error_with_its_line(rest: str) -> None:
    with pytest.raises(DataError, match="x, line 3: a quote opens"):
        read(f'text,n\nfirst,1\n"oh,1\nsecond,1\nthird,1\n{rest}')


def test_a_quote_is_not_followed_through_a_whole_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskloom.core.rows.LONGEST", 1000)
    with pytest.raises(DataError, match="x, line 2: a quote opens"):
        next(iter(Rows(Endless(b'n,text\n1,"oh\n', b"2,fine\n"), "x")))  # type: ignore[arg-type]


def test_columns_are_the_data_sets_own_or_the_usual_ones_or_those_that_are_named() -> None:
    def chosen(header: str, needed: int = 1, **options: Any) -> tuple[tuple[str, ...], str]:
        row = ",".join("x" * (header.count(",") + 1))
        source = NewTexts(Rows(io.BytesIO(f"{header}\n{row}\n".encode()), "x"), needed, **options)
        assert len(list(source)) == 1
        return source.texts, source.id

    assert chosen("id,text,sentence") == (("text",), "id")
    assert chosen("sentence") == (("sentence",), "")
    assert chosen("text,review", own=("review",)) == (("review",), "")
    assert chosen("text,other", own=("review",)) == (("text",), "")
    assert chosen("review,title", own=("review", "title")) == (("review",), "")
    assert chosen("text,review", own=("review",), texts=("text",)) == (("text",), "")
    assert chosen("sentence2,sentence1,id", 2) == (("sentence1", "sentence2"), "id")
    assert chosen("key,id,text", id="key") == (("text",), "key")
    assert chosen("text_1,text_2,text_3", 3) == (("text_1", "text_2", "text_3"), "")
