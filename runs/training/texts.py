"""New texts from a stream of CSV, TSV or JSON lines, row by row: a file of any size takes the memory of a few rows."""

import csv
import io
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Literal

from taskloom.core import DataError, unknown
from taskloom.core.errors import count

TextFormat = Literal["auto", "csv", "tsv", "jsonl"]
#: What columns of texts are called by those who have no names of their own, by their number.
USUAL: dict[int, list[tuple[str, ...]]] = {
    1: [("text",), ("sentence",)],
    2: [("text_1", "text_2"), ("sentence1", "sentence2")],
    3: [("text_1", "text_2", "text_3"), ("sentence1", "sentence2", "sentence3")],
}
#: Lines after which a quote that does not close counts as a plain one.
LONGEST = 1000
#: The line at which a row begins, and its values by column, or why it cannot be read.
Parsed = tuple[int, Mapping[str, object] | str]


@dataclass(frozen=True)
class TextRow:
    """One example to predict: where it is, what it is called if it has an id, and its texts, without space around."""

    line: int
    id: str
    texts: tuple[str, ...]


@dataclass
class NewTexts:
    """The rows of a stream. Iterating reads on; what cannot be read is skipped, and ``skip`` is told why.

    ``needed`` texts are taken of each row: from the columns ``texts`` if there are any, from those of the data set
    (``own``) if all are there, or from those that are usually called so. After the first row ``texts`` are the columns
    that were chosen, and ``id`` is that of ids, if there is one.
    """

    stream: BinaryIO
    name: str  # of the file, for messages
    needed: int
    texts: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    id: str = "id"
    format: TextFormat = "auto"
    quotes: bool = True
    skip: Callable[[str], None] = field(default=lambda why: None)
    skipped: int = 0

    def __iter__(self) -> Iterator[TextRow]:
        found = read = 0
        for line, values in self._parse():
            if not found and not isinstance(values, str):
                self._choose_columns([*values])
            try:
                row = self._row(line, values)
            except ValueError as problem:
                self.skipped += 1
                self.skip(f"{self.name}, line {line}: {problem}")
            else:
                read += 1
                yield row
            found += not isinstance(values, str)
        if not read:
            none = "there are no rows below the first line, which names the columns"
            why = f"none of its {count(self.skipped, 'row')} can be read" if self.skipped else none
            raise DataError(f"{self.name}: {why}; nothing was predicted")

    def _parse(self) -> Iterator[Parsed]:
        # A byte that is not UTF-8 becomes a lone surrogate, for its row to show. Ends of lines stay as they are.
        text = io.TextIOWrapper(self.stream, "utf-8-sig", errors="surrogateescape", newline="")
        try:
            yield from self._parse_lines(_Lines(text))
        finally:
            text.detach()  # the stream is its owner's to close

    def _parse_lines(self, lines: "_Lines") -> Iterator[Parsed]:
        first = ""
        for first in lines:
            lines.taken = []
            if first.strip():
                break
        if first.startswith(("\udcff\udcfe", "\udcfe\udcff")):
            raise DataError(f"{self.name} is UTF-16; save it as UTF-8")
        if "\0" in first:
            raise DataError(f"{self.name} should be a text file: CSV, TSV or JSON lines. Found binary data.")
        if not first.strip():
            raise DataError(f"{self.name} is empty")
        lines.give_back([first])
        suffix, form = self.name.lower().rpartition(".")[2], self.format
        if form == "auto" and (suffix in ("jsonl", "ndjson", "json") or first.lstrip().startswith("{")):
            form = "jsonl"
        if form == "jsonl":
            return _json_rows(lines)
        # By the header too, not by the file's name alone: there are tab-separated files that are called .csv.
        tabs = form == "tsv" or (form == "auto" and (suffix == "tsv" or "\t" in first))
        csv.field_size_limit(2**31 - 1)  # a text may be longer than the 128 KiB that the module allows
        return _delimited_rows(self.name, lines, "\t" if tabs else ",", self.quotes)

    def _choose_columns(self, there: Sequence[str]) -> None:
        reads = f"{count(self.needed, 'text')} per row"
        listed = ", ".join(repr(name) for name in there)
        if self.texts and len(self.texts) != self.needed:
            raise DataError(f"--text should name {count(self.needed, 'column')}: the task reads {reads}")
        if wrong := [name for name in self.texts if name not in there]:
            raise DataError(f"{self.name}: {unknown('column', wrong[0], there, where='in the file')}")
        usual = [self.texts] if self.texts else [self.own[: self.needed], *USUAL[self.needed]]
        fitting = [names for names in usual if names and set(names) <= {*there}]
        if not fitting:
            columns = " ".join(["--text COLUMN"] * self.needed)
            raise DataError(
                f"{self.name}: the task reads {reads}, and no columns are called "
                f"{' or '.join(' and '.join(map(repr, names)) for names in usual if names)}; name them with {columns} "
                f"(columns in the file: {listed})"
            )
        self.texts = fitting[0]
        if self.id not in there or self.id in self.texts:
            self.id = ""

    def _row(self, line: int, values: Mapping[str, object] | str) -> TextRow:
        """A row that can be used, or a ``ValueError`` that says why it cannot."""
        if isinstance(values, str):
            raise ValueError(values)
        texts = tuple(_text(values, column) for column in self.texts)
        id = values.get(self.id) if self.id else None
        return TextRow(line, _utf8("" if id is None else str(id).strip(), self.id), texts)


class _Lines:
    """The lines of a stream, some of which may be given back to be read again."""

    def __init__(self, stream: Iterator[str]) -> None:
        self._stream = stream
        self._again: deque[str] = deque()
        self.number = 0  # of the line that was read last
        self.taken: list[str] = []  # since the last row began

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        if len(self.taken) >= LONGEST:
            raise csv.Error("a quote does not close")
        line = self._again.popleft() if self._again else next(self._stream)
        self.number += 1
        self.taken.append(line)
        return line

    def give_back(self, lines: list[str]) -> None:
        self._again.extendleft(reversed(lines))
        self.number -= len(lines)
        self.taken = []


def _json_rows(lines: _Lines) -> Iterator[Parsed]:
    for line in lines:
        lines.taken = []
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield lines.number, f"not JSON: {error}"
            continue
        is_object = isinstance(values, dict)
        yield lines.number, values if is_object else f'not an object like {{"text": "…"}}: {line.strip()[:40]!r}'


def _delimited_rows(name: str, lines: _Lines, delimiter: str, quotes: bool) -> Iterator[Parsed]:
    reader = csv.reader(
        lines, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE, strict=True
    )
    columns: tuple[str, ...] = ()

    def swallowed(taken: list[str]) -> bool:
        """Whether most lines of a text in quotes would be rows by themselves: tabs are rare in texts."""
        return len(taken) > 1 and 2 * sum(line.count("\t") == len(columns) - 1 > 0 for line in taken) > len(taken)

    while True:
        lines.taken = []
        number = lines.number + 1
        try:
            fields = next(reader)
            if delimiter == "\t" and swallowed(lines.taken):
                raise csv.Error("a quote does not close")
        except StopIteration:
            return
        except csv.Error:
            # Whatever the quote swallowed is read again as rows of their own.
            lines.give_back(lines.taken[1:])
            yield number, "a quote opens and does not close, or text follows the closing quote"
            continue
        if fields and not columns:
            columns = tuple(column.strip() for column in fields)
            if twice := [column for column in columns if column and columns.count(column) > 1]:
                raise DataError(
                    f"{name}: column {twice[0]!r} appears {columns.count(twice[0])} times; rename all but one"
                )
        elif fields and len(fields) != len(columns):
            yield number, f"the number of fields is {len(fields)}; the header has {len(columns)}"
        elif fields:
            yield number, dict(zip(columns, fields, strict=True))


def _text(values: Mapping[str, object], column: str) -> str:
    value = values.get(column)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{column} is {str(value)[:40]!r}, not a string")
    if not (text := (value or "").strip()):
        raise ValueError(f"{column} is empty")
    return _utf8(text, column)


def _utf8(text: str, column: str) -> str:
    """The text, unless a byte of it was not UTF-8 and is now a lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{column} is not UTF-8 (after {text[: error.start][-20:]!r})") from None
    return text
