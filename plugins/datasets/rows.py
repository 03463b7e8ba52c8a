"""Rows of CSV, TSV and JSON lines, with the line each begins at and what is wrong with it."""

import csv
import io
import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from taskloom.core import DataError

Format = Literal["auto", "csv", "tsv", "jsonl"]
#: The line at which a row begins, and its values by column, or why it cannot be read.
Row = tuple[int, Mapping[str, object] | str]
#: Whether values could be a row of a file with this delimiter.
IsRow = Callable[[Mapping[str, object], str], bool]


@dataclass(frozen=True)
class Rows:
    """A file's columns and rows."""

    columns: tuple[str, ...]
    rows: list[Row]


def parse(path: Path, data: bytes, *, format: Format, quotes: bool, is_row: IsRow, wanted: Collection[str]) -> Rows:
    """Take a file apart; ``is_row`` helps to distinguish a quote that never closes from a text of several lines.

    Of JSON lines only the ``wanted`` columns are kept: most of SNLI, for one, is parse trees.
    """
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path} is UTF-16; save it as UTF-8")
    # With or without a byte-order mark. A byte that is not UTF-8 becomes a lone surrogate, for its row to show.
    text = data.decode("utf-8-sig", errors="surrogateescape")
    if not text.strip():
        raise DataError(f"{path} is empty")
    if format == "auto":
        format = _format_of(path, text)
    if format == "jsonl":
        return _json_rows(text, wanted)
    delimiter = {"csv": ",", "tsv": "\t"}[format]
    _check_separator(path, _header(text), delimiter, wanted)
    limit = csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    try:
        return _delimited_rows(path, text, delimiter, quotes, is_row)
    finally:
        csv.field_size_limit(limit)


def _format_of(path: Path, text: str) -> Format:
    if path.suffix.lower() in (".jsonl", ".ndjson", ".json") or text.lstrip().startswith("{"):
        return "jsonl"
    # By the header, not by the name: the course's tab-separated files are called .csv.
    return "tsv" if "\t" in _header(text) else "csv"


def _header(text: str) -> str:
    return text.lstrip("\r\n").splitlines()[0]


def _check_separator(path: Path, header: str, delimiter: str, wanted: Collection[str]) -> None:
    """Recognise a file whose columns are separated by something else, as some spreadsheets write them."""
    for separator in ";|":
        names = {name.strip(' "') for name in header.split(separator)}
        if delimiter not in header and len(names) > 1 and names & set(wanted):
            raise DataError(f"{path} seems to be separated by {separator!r}; save it with commas or tabs instead")


def _json_rows(text: str, wanted: Collection[str]) -> Rows:
    rows: list[Row] = []
    columns: dict[str, None] = {}
    for number, line in enumerate(io.StringIO(text, newline="\n"), 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            rows.append((number, f"not JSON: {error}"))
            continue
        if not isinstance(values, dict):
            rows.append((number, f'not an object like {{"text": "…"}}: {line.strip()[:40]!r}'))
            continue
        columns.update(dict.fromkeys(values))
        rows.append((number, {column: values[column] for column in wanted if column in values}))
    return Rows(tuple(columns), rows)


def _delimited_rows(path: Path, text: str, delimiter: str, quotes: bool, is_row: IsRow) -> Rows:
    columns: tuple[str, ...] = ()

    def stands_alone(line: str) -> bool:
        """Whether a line, quotes or not, would be a row."""
        fields = [part.strip().strip('"') for part in line.split(delimiter)]
        return len(fields) == len(columns) > 1 and is_row(dict(zip(columns, fields, strict=True)), delimiter)

    rows: list[Row] = []
    lines = list(io.StringIO(text, newline=""))  # ends stay as they are: a quoted text keeps its own
    for number, fields in _records(lines, delimiter, quotes, stands_alone):
        if not columns:
            if isinstance(fields, str):
                raise DataError(f"{path.name}, line {number}: the header cannot be read: {fields}")
            columns = tuple(name.strip() for name in fields)
        elif isinstance(fields, str):
            rows.append((number, fields))
        elif len(fields) != len(columns):
            count = f"{len(fields)} field{'s' if len(fields) > 1 else ''}"
            rows.append((number, f"{count}; the header has {len(columns)}"))
        else:
            rows.append((number, dict(zip(columns, fields, strict=True))))
    return Rows(columns, rows)


def _records(
    lines: list[str], delimiter: str, quotes: bool, stands_alone: Callable[[str], bool]
) -> Iterator[tuple[int, list[str] | str]]:
    """The line and the fields of each record, or why it cannot be read.

    After a record that cannot be right, reading goes on at the next line: a quote that never closes costs one row
    and not all that follow. It shows in what comes after the next quote, in the end of the file, or, where neither
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
                    yield start + done + 1, fields
                done = reader.line_num
            return
        except csv.Error as error:
            here = reader.line_num == done + 1 and "expected after" in str(error)
            yield start + done + 1, "text follows a closing quote" if here else "a quote opens and does not close"
            start += done + 1
