"""Rows of CSV, TSV and JSON lines, with the line each begins at and what is wrong with it."""

import csv
import io
import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from taskloom.core import DataError

Format = Literal["auto", "csv", "tsv", "jsonl"]
DELIMITERS = {"csv": ",", "tsv": "\t"}


@dataclass(frozen=True)
class Row:
    """One row: the line it begins at, and its values by column, or why it cannot be read."""

    line: int
    values: Mapping[str, object] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True)
class Rows:
    """A file's columns and rows."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]


#: Whether values could be a row of a file with this delimiter.
IsRow = Callable[[Mapping[str, object], str], bool]


def parse(
    path: Path, data: bytes, *, format: Format, quotes: bool, is_row: IsRow, wanted: Collection[str] = ()
) -> Rows:
    """Take a file apart; ``is_row`` helps to tell a quote that never closes from a text of several lines.

    Of JSON lines only the ``wanted`` columns are kept, if any are named: most of SNLI, for one, is parse trees.
    """
    text = decode(path, data)
    if not text.strip():
        raise DataError(f"{path} is empty")
    if format == "auto":
        format = _format_of(path, text)
    if format == "jsonl":
        return _json_rows(text, wanted)
    lines = list(io.StringIO(text, newline=""))  # ends stay as they are: a quoted text keeps its own
    with _fields_of_any_size():
        return _delimited_rows(path, lines, DELIMITERS[format], quotes, is_row)


def decode(path: Path, data: bytes) -> str:
    """UTF-8, with or without a byte-order mark. A byte that is none becomes a lone surrogate, for its row to show."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path} is UTF-16; save it as UTF-8")
    return data.decode("utf-8-sig", errors="surrogateescape")


def _format_of(path: Path, text: str) -> Format:
    if path.suffix.lower() in (".jsonl", ".ndjson", ".json") or text.lstrip().startswith("{"):
        return "jsonl"
    # By the header, not by the name: the course's tab-separated files are called .csv.
    return "tsv" if "\t" in text.lstrip("\r\n").splitlines()[0] else "csv"


def _lines_of(text: str) -> Iterator[str]:
    """One line after another: a list of them would be a second copy of the file."""
    start = 0
    while (end := text.find("\n", start)) >= 0:
        yield text[start:end]
        start = end + 1
    yield text[start:]


def _json_rows(text: str, wanted: Collection[str]) -> Rows:
    rows, columns = [], dict[str, None]()
    for number, line in enumerate(_lines_of(text), 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            rows.append(Row(number, problem=f"not JSON: {error}"))
            continue
        if not isinstance(values, dict):
            rows.append(Row(number, problem=f'not an object like {{"text": "…"}}: {line.strip()[:40]!r}'))
            continue
        columns.update(dict.fromkeys(values))
        kept = {column: values[column] for column in wanted if column in values} if wanted else values
        rows.append(Row(number, kept))
    return Rows(tuple(columns), tuple(rows))


@contextmanager
def _fields_of_any_size() -> Iterator[None]:
    before = csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _delimited_rows(path: Path, lines: list[str], delimiter: str, quotes: bool, is_row: IsRow) -> Rows:
    columns: tuple[str, ...] = ()

    def stands_alone(line: str) -> bool:
        """Whether a line, quotes or not, would be a row."""
        fields = [part.strip().strip('"') for part in line.split(delimiter)]
        return len(fields) == len(columns) > 1 and is_row(dict(zip(columns, fields, strict=True)), delimiter)

    rows = []
    for number, fields, problem in _records(lines, delimiter, quotes, stands_alone):
        if not columns:
            if problem:
                raise DataError(f"{path.name}, line {number}: the header cannot be read: {problem}")
            columns = tuple(name.strip() for name in fields)
        elif problem:
            rows.append(Row(number, problem=problem))
        elif len(fields) != len(columns):
            count = f"{len(fields)} field{'s' if len(fields) > 1 else ''}"
            rows.append(Row(number, problem=f"{count}; the header has {len(columns)}"))
        else:
            rows.append(Row(number, dict(zip(columns, fields, strict=True))))
    return Rows(columns, tuple(rows))


def _records(
    lines: list[str], delimiter: str, quotes: bool, stands_alone: Callable[[str], bool]
) -> Iterator[tuple[int, list[str], str]]:
    """(line, fields, "") or (line, [], problem) of each record.

    After a record that cannot be right, reading goes on at the next line: a quote that never closes costs one row
    and not all that follow. It shows in what stands after the next quote, in the end of the file, or, where neither
    does, in a text most of whose lines would be rows.
    """
    start = 0
    while start < len(lines):
        reader = csv.reader(
            (lines[at] for at in range(start, len(lines))),
            delimiter=delimiter,
            quoting=csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE,
            strict=True,
        )
        done = 0
        try:
            for fields in reader:
                taken = lines[start + done : start + reader.line_num]
                if len(taken) > 1 and sum(map(stands_alone, taken)) > len(taken) / 2:
                    raise csv.Error
                if fields:
                    yield start + done + 1, fields, ""
                done = reader.line_num
            return
        except csv.Error as error:
            here = reader.line_num == done + 1 and "expected after" in str(error)
            yield start + done + 1, [], "text follows a closing quote" if here else "a quote opens and does not close"
            start += done + 1
