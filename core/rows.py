"""Rows of CSV, TSV and JSON lines, one by one: a file of any size takes the memory of a few rows."""

import csv
import errno
import io
import json
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Literal

from taskloom.core.errors import DataError

Format = Literal["auto", "csv", "tsv", "jsonl"]
Values = Mapping[str, object]
#: The line at which a row begins, and its values by column, or why it cannot be read.
Row = tuple[int, Values | str]
#: Characters of the longest text, far above the 128 KiB that the csv module allows. What follows a quote that does not
#: close is read up to here.
LONGEST = 2**24


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


class Rows:
    """The rows of a stream of UTF-8, with or without a byte-order mark; iterating reads on.

    ``columns`` are those of the header, or of JSON lines the keys so far. ``format`` is found by the suffix of ``name``
    and by the first line. CSV and TSV are read as Python's ``csv`` reads them: ``quotes`` may hold delimiters and ends
    of lines, and one that does not close raises ``DataError``. Of JSON lines only the ``wanted`` keys are kept, if some
    are named: most of SNLI, for one, is parse trees.

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
    ) -> None:
        self.name = name
        self.columns: list[str] = []
        self._stream, self._format, self._quotes, self._wanted = stream, format, quotes, wanted

    def __iter__(self) -> Iterator[Row]:
        # A byte that is not UTF-8 becomes a lone surrogate, for its row to show. Ends of lines stay as they are.
        text = io.TextIOWrapper(self._stream, "utf-8-sig", errors="surrogateescape", newline="")
        try:
            yield from self._read(text)
        except OSError as error:
            raise DataError(f"{self.name} cannot be read to its end: {error.strerror}") from error
        finally:
            text.detach()  # the stream is its owner's to close

    def _read(self, lines: Iterator[str]) -> Iterator[Row]:
        blank, first = 0, next(lines, "")
        while first and not first.strip(" \r\n"):
            blank, first = blank + 1, next(lines, "")
        if first.startswith(("\udcff\udcfe", "\udcfe\udcff")):
            raise DataError(f"{self.name} is UTF-16; save it as UTF-8")
        if first.startswith("\x1f\udc8b"):
            raise DataError(f"{self.name} is compressed; unpack it first (gunzip)")
        if "\0" in first:
            raise DataError(f"{self.name} should be a text file: CSV, TSV or JSON lines. Found binary data.")
        if not first:
            raise DataError(f"{self.name} is empty")
        lines = chain([first], lines)
        suffix, form = self.name.lower().rpartition(".")[2], self._format
        if form == "auto" and (suffix in ("jsonl", "ndjson", "json") or first.lstrip().startswith("{")):
            form = "jsonl"
        if form == "jsonl":
            return self._read_json(lines, blank)
        # By the header before the file's name: the course's tab-separated files are called .csv.
        tabs = form == "tsv" or (form == "auto" and ("\t" in first or (suffix == "tsv" and "," not in first)))
        return self._read_delimited(lines, blank, "\t" if tabs else ",")

    def _read_json(self, lines: Iterator[str], blank: int) -> Iterator[Row]:
        known: set[str] = set()
        for number, line in enumerate(lines, blank + 1):
            if not line.strip():
                continue
            try:
                values = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield number, f"not JSON: {error}"
                continue
            if not isinstance(values, dict):
                yield number, f'not an object like {{"text": "…"}}: {line.strip()[:40]!r}'
                continue
            if not values.keys() <= known:
                self.columns += [column for column in values if column not in known]
                known.update(values)
            kept = values if self._wanted is None else {name: values[name] for name in self._wanted if name in values}
            yield number, kept

    def _read_delimited(self, lines: Iterator[str], blank: int, delimiter: str) -> Iterator[Row]:
        csv.field_size_limit(LONGEST)
        reader = csv.reader(
            lines, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if self._quotes else csv.QUOTE_NONE, strict=True
        )
        while True:
            number = blank + reader.line_num + 1
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error:
                raise DataError(
                    f"{self.name}, line {number}: a quote opens and does not close, or text follows the closing quote; "
                    'correct the file, or, in a data set that has the option, read it with "quotes": false'
                ) from None
            if fields and not self.columns:
                self.columns = [column.strip() for column in fields]
            elif fields and len(fields) != len(self.columns):
                yield number, f"the number of fields is {len(fields)}; the header has {len(self.columns)}"
            elif fields:
                yield number, dict(zip(self.columns, fields, strict=True))


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
