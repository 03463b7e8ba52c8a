"""Rows of CSV, TSV and JSON lines, one by one: a file of any size takes the memory of a few rows."""

import csv
import errno
import io
import json
import os
import stat
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Literal

from taskloom.core.errors import DataError

Format = Literal["auto", "csv", "tsv", "jsonl"]
Values = Mapping[str, object]
#: The line at which a row begins, and its values by column, or why it cannot be read.
Row = tuple[int, Values | str]
#: Whether values could be a row of a file with this delimiter.
IsRow = Callable[[Values, str], bool]
#: Why a row cannot be read whose quotes are wrong.
OPEN_QUOTE = "a quote opens and does not close, or text follows the closing quote"
#: Lines after which a quote that does not close counts as a plain one.
LONGEST = 10_000


def open_file(path: Path) -> io.BufferedReader:
    """Open a regular file, or a link to one, for reading; raises ``OSError`` for a device or a pipe, which may not end.

    Example: ``with open_file(Path("train.csv")) as file: content = file.read()``
    """
    stream = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):  # asked of what was opened, without waiting for a writer
        return stream
    stream.close()
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


class UnreadableError(Exception):
    """Why a row cannot be used."""


def has_tabs(values: Values, delimiter: str) -> bool:
    """Tabs are rare in texts: a line that has as many as the header is a row."""
    return delimiter == "\t"


class Rows:
    """The rows of a stream of UTF-8, with or without a byte-order mark; iterating reads on.

    ``columns`` are those of the header, or of JSON lines the keys so far. ``format`` is found by the suffix of ``name``
    and by the first line. ``quotes`` in CSV and TSV may hold delimiters and ends of lines; of a quote that does not
    close only its own line is lost, and ``is_row`` helps to tell it from a text of several lines. Of JSON lines only
    the ``wanted`` keys are kept, if some are named: most of SNLI, for one, is parse trees.

    >>> [*Rows(io.BytesIO(b"id,text\\n1,fine\\n2\\n"), "new.csv")]
    [(2, {'id': '1', 'text': 'fine'}), (3, 'the number of fields is 1; the header has 2')]
    """

    def __init__(
        self,
        stream: BinaryIO,
        name: str,
        *,
        format: Format = "auto",
        quotes: bool = True,
        wanted: Collection[str] | None = None,
        is_row: IsRow = has_tabs,
    ) -> None:
        self.name = name
        self.columns: list[str] = []
        self._stream, self._format, self._quotes = stream, format, quotes
        self._wanted, self._is_row = wanted, is_row

    def __iter__(self) -> Iterator[Row]:
        # A byte that is not UTF-8 becomes a lone surrogate, for its row to show. Ends of lines stay as they are.
        text = io.TextIOWrapper(self._stream, "utf-8-sig", errors="surrogateescape", newline="")
        try:
            yield from self._read(_Lines(text))
        finally:
            text.detach()  # the stream is its owner's to close

    def _read(self, lines: "_Lines") -> Iterator[Row]:
        first = ""
        for first in lines:
            lines.row_lines = []
            if first.strip(" \r\n"):
                break
        if first.startswith(("\udcff\udcfe", "\udcfe\udcff")):
            raise DataError(f"{self.name} is UTF-16; save it as UTF-8")
        if first.startswith("\x1f\udc8b"):
            raise DataError(f"{self.name} is compressed; unpack it first (gunzip)")
        if "\0" in first:
            raise DataError(f"{self.name} should be a text file: CSV, TSV or JSON lines. Found binary data.")
        if not first.strip(" \r\n"):
            raise DataError(f"{self.name} is empty")
        lines.push_back([first])
        suffix, form = self.name.lower().rpartition(".")[2], self._format
        if form == "auto" and (suffix in ("jsonl", "ndjson", "json") or first.lstrip().startswith("{")):
            form = "jsonl"
        if form == "jsonl":
            return self._read_json(lines)
        # By the header before the file's name: the course's tab-separated files are called .csv.
        tabs = form == "tsv" or (form == "auto" and ("\t" in first or (suffix == "tsv" and "," not in first)))
        csv.field_size_limit(2**31 - 1)  # a text may be longer than the 128 KiB that the module allows
        return self._read_delimited(lines, "\t" if tabs else ",")

    def _read_json(self, lines: "_Lines") -> Iterator[Row]:
        known: set[str] = set()
        for line in lines:
            lines.row_lines = []
            if not line.strip():
                continue
            try:
                values = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield lines.number, f"not JSON: {error}"
                continue
            if not isinstance(values, dict):
                yield lines.number, f'not an object like {{"text": "…"}}: {line.strip()[:40]!r}'
                continue
            if not values.keys() <= known:
                self.columns += [column for column in values if column not in known]
                known.update(values)
            kept = values if self._wanted is None else {name: values[name] for name in self._wanted if name in values}
            yield lines.number, kept

    def _read_delimited(self, lines: "_Lines", delimiter: str) -> Iterator[Row]:
        reader = csv.reader(
            lines, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if self._quotes else csv.QUOTE_NONE, strict=True
        )
        while True:
            lines.row_lines = []
            number = lines.number + 1
            try:
                fields = next(reader)
                if self._has_swallowed_rows(lines.row_lines, delimiter):
                    raise csv.Error
            except StopIteration:
                return
            except csv.Error:
                if not self.columns:
                    raise DataError(f"{self.name}, line {number}: {OPEN_QUOTE}") from None
                lines.push_back(lines.row_lines[1:])  # rows of their own
                yield number, OPEN_QUOTE
                continue
            if fields and not self.columns:
                self.columns = [column.strip() for column in fields]
            elif fields and len(fields) != len(self.columns):
                yield number, f"the number of fields is {len(fields)}; the header has {len(self.columns)}"
            elif fields:
                yield number, dict(zip(self.columns, fields, strict=True))

    def _has_swallowed_rows(self, lines: list[str], delimiter: str) -> bool:
        """Whether most lines of one row would be rows by themselves: a quote may reach up to that of a later row."""

        def is_row(line: str) -> bool:
            fields = [part.strip().strip('"') for part in line.split(delimiter)]
            same = len(fields) == len(self.columns) > 1
            return same and self._is_row(dict(zip(self.columns, fields, strict=True)), delimiter)

        return len(lines) > 1 and 2 * sum(map(is_row, lines)) > len(lines)


class _Lines:
    """The lines of a stream; lines can be pushed back to be read again."""

    def __init__(self, stream: Iterator[str]) -> None:
        self._stream = stream
        self._pushed_back: deque[str] = deque()
        self.number = 0  # of the line that was read last
        self.row_lines: list[str] = []  # since the last row began

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        if len(self.row_lines) >= LONGEST:
            raise csv.Error
        line = self._pushed_back.popleft() if self._pushed_back else next(self._stream)
        self.number += 1
        self.row_lines.append(line)
        return line

    def push_back(self, lines: list[str]) -> None:
        self._pushed_back.extendleft(reversed(lines))
        self.number -= len(lines)
        self.row_lines = []


def text_in(values: Values, column: str) -> str:
    """The text of a row in a column, without space around; ``UnreadableError`` if there is none."""
    value = values.get(column)
    if value is not None and not isinstance(value, str):
        raise UnreadableError(f"{column} is {str(value)[:40]!r}, not a string")
    if not (text := (value or "").strip()):
        raise UnreadableError(f"{column} is empty")
    return utf8(text, column)


def written_in(values: Values, column: str | None) -> str:
    """The value of a row in a column, as a string; "" for nothing."""
    value = values.get(column) if column else None
    return "" if value is None else str(value).strip()


def utf8(text: str, column: str) -> str:
    """The text, unless a byte of it was not UTF-8 and is now a lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        character = f"byte 0x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:x}"
        raise UnreadableError(f"{column} is not UTF-8 ({character} after {text[: error.start][-20:]!r})") from None
    return text
