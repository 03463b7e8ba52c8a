"""Rows of CSV, TSV and JSON lines, with the line each begins at and what is wrong with it."""

import csv
import io
import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Literal

from taskloom.core import DataError

Format = Literal["auto", "csv", "tsv", "jsonl"]
#: The line at which a row begins, and its values by column, or why it cannot be read.
Row = tuple[int, Mapping[str, object] | str]
#: A file's columns and rows.
Parsed = tuple[tuple[str, ...], list[Row]]
#: Whether values could be a row of a file with this delimiter.
IsRow = Callable[[Mapping[str, object], str], bool]


def parse(path: Path, data: bytes, *, format: Format, quotes: bool, is_row: IsRow, wanted: Collection[str]) -> Parsed:
    """Take a file apart; ``is_row`` helps to distinguish a quote that never closes from a text of several lines.

    Of JSON lines only the ``wanted`` columns are kept: most of SNLI, for one, is parse trees.
    """
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path} is UTF-16; save it as UTF-8")
    if b"\0" in data.partition(b"\n")[0]:
        raise DataError(f"{path} should be a text file: CSV, TSV or JSON lines. Found binary data.")
    # With or without a byte-order mark. A byte that is not UTF-8 becomes a lone surrogate, for its row to show.
    text = data.decode("utf-8-sig", errors="surrogateescape")
    if not text.strip():
        raise DataError(f"{path} is empty")
    if format == "auto" and (path.suffix.lower() in (".jsonl", ".ndjson", ".json") or text.lstrip().startswith("{")):
        format = "jsonl"
    if format == "jsonl":
        return _json_rows(text, wanted)
    # By the header, not by the file's name: the course's tab-separated files are called .csv.
    tabs = "\t" in text.lstrip("\r\n").splitlines()[0] if format == "auto" else format == "tsv"
    delimiter = "\t" if tabs else ","
    csv.field_size_limit(2**31 - 1)  # a text may be longer than the 128 KiB that the module allows
    return _delimited_rows(path, text, delimiter, quotes, is_row)


def _json_rows(text: str, wanted: Collection[str]) -> Parsed:
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
    return tuple(columns), rows


def _delimited_rows(path: Path, text: str, delimiter: str, quotes: bool, is_row: IsRow) -> Parsed:
    columns: tuple[str, ...] = ()

    def is_swallowed(line: str) -> bool:
        """Whether a line inside a quoted text would be a row by itself."""
        fields = [part.strip().strip('"') for part in line.split(delimiter)]
        return len(fields) == len(columns) > 1 and is_row(dict(zip(columns, fields, strict=True)), delimiter)

    rows: list[Row] = []
    lines = list(io.StringIO(text, newline=""))  # ends stay as they are: a quoted text keeps its own
    reader = csv.reader(
        lines, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE, strict=True
    )
    done = 0
    try:
        for fields in reader:
            number, taken = done + 1, lines[done : reader.line_num]
            # A quote that never closes may reach up to the next quote: most of such a text would be rows.
            if len(taken) > 1 and sum(map(is_swallowed, taken)) > len(taken) / 2:
                raise csv.Error
            done = reader.line_num
            if fields and not columns:
                columns = tuple(name.strip() for name in fields)
            elif fields and len(fields) != len(columns):
                rows.append((number, f"the number of fields is {len(fields)}; the header has {len(columns)}"))
            elif fields:
                rows.append((number, dict(zip(columns, fields, strict=True))))
    except csv.Error:
        raise DataError(
            f"{path}, line {done + 1}: a quote opens and does not close, or text follows the closing quote; correct "
            'the file, or, if quotes are plain characters in it, read it as data set "table" with "quotes": false'
        ) from None
    return columns, rows
