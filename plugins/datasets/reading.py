"""From the rows of a file to examples: the columns that a row needs, and what happens to rows that lack them."""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path

import numpy as np

from taskloom.core import DataError, Examples, Labels, unknown
from taskloom.core.data import SEVERAL_LABELS
from taskloom.core.rows import Format, Row, Rows, UnreadableError, text_in, utf8, written_in
from taskloom.plugins.datasets.files import read_bytes
from taskloom.plugins.datasets.labels import read_number, spelling

#: The share of a file's rows that may be unreadable and are skipped.
TOLERATED = 0.01
#: The most unreadable rows that an error names.
NAMED = 3


class SeveralLabelsError(UnreadableError):
    """A row has several labels, of which a task can learn only one."""


@dataclass(frozen=True)
class FileLayout:
    """The columns of a file and what they hold, and how the file is written."""

    texts: tuple[str, ...]
    label: str | None
    id: str | None
    labels: Labels | None
    #: Spelling of a class in the file → its number; without spellings the file has the numbers themselves.
    spellings: Mapping[str, int] = field(default_factory=dict)
    numbers: bool = False  # with spellings, class numbers are accepted too
    partial: bool = False  # rows without a label belong to another task
    format: Format = "auto"
    quotes: bool = True
    strict: bool = False
    #: Whether a row belongs to the split; others are left out. Raises ``UnreadableError`` where that is unclear.
    keep: Callable[[Mapping[str, object]], bool] | None = None


def read_examples(path: Path, layout: FileLayout, *, needs_labels: bool) -> Examples:
    """Read a file; unless it ``needs_labels``, a file without any gives examples without labels."""
    columns = [*layout.texts, *filter(None, (layout.label, layout.id))]
    content = io.BytesIO(read_bytes(path))
    source = Rows(content, str(path), format=layout.format, quotes=layout.quotes, wanted=columns)
    rows = [*source]
    written_labels = (written_in(values, layout.label) for _, values in rows if not isinstance(values, str))
    labelled = layout.label is not None and (needs_labels or any(written_labels))
    _check_columns(path, source.columns, rows, [column for column in columns if labelled or column != layout.label])
    texts, labels, ids = [], [], []
    skipped: list[str] = []
    several: list[str] = []
    left_out = unlabelled = 0
    for line, values in rows:
        try:
            if isinstance(values, str):
                raise UnreadableError(values)
            if layout.keep is not None and not layout.keep(values):
                left_out += 1
                continue
            if layout.partial and labelled and not written_in(values, layout.label):
                unlabelled += 1
                continue
            row_texts = [text_in(values, column) for column in layout.texts]
            label = _read_label(values, layout) if labelled else 0.0
            row_id = utf8(written_in(values, layout.id), "id") or str(line)
        except UnreadableError as problem:
            skipped.append(f"{path.name}, line {line}: {problem}")
            several += skipped[-1:] if isinstance(problem, SeveralLabelsError) else []
            if layout.strict:
                raise DataError(f"{skipped[0]} (strict: true refuses such rows)") from None
            continue
        texts.append(row_texts)
        labels.append(label)
        ids.append(row_id)
    if unlabelled == len(rows):
        raise DataError(f"{path}: the column {layout.label!r} is empty; a task needs rows that have its label")
    _check_share(path, skipped, several, len(rows) - unlabelled, left_out)
    text_columns = tuple(zip(*texts, strict=True))
    return Examples(text_columns, np.array(labels) if labelled else None, tuple(ids), tuple(skipped), unlabelled)


def _read_label(values: Mapping[str, object], layout: FileLayout) -> float:
    """A label as a number: the number of its class, or a value in range."""
    meaning, column = layout.labels, layout.label
    assert meaning is not None
    assert column is not None
    value, written = values.get(column), written_in(values, column)
    if not written:
        raise UnreadableError(f"{column} is empty")
    if (known := layout.spellings.get(spelling(written))) is not None:
        return float(known)
    if (parts := _several(value, written, layout)) is not None:
        words = len(text_in(values, layout.texts[0]).split())
        kind = "a label for each word" if len(parts) == words > 1 else f"{len(parts)} labels"
        raise SeveralLabelsError(f"{column} {written[:40]!r} is {kind}")
    no_class = f"{column}: {unknown('class', written[:40], layout.spellings)}" if layout.spellings else ""
    if no_class and not layout.numbers:
        raise UnreadableError(no_class)
    try:
        number = float(value) if isinstance(value, bool) else read_number(written)
    except ValueError:
        raise UnreadableError(no_class or f"{column} {written[:40]!r} is not a number") from None
    whole = not meaning.classes or (isfinite(number) and number == int(number))
    if not (meaning.low <= number <= meaning.high and whole):
        kind = "an integer from " if meaning.classes else ""
        raise UnreadableError(
            f"{column} {written} is out of range; it should be {kind}{meaning.low:g} to {meaning.high:g}"
        )
    return number


def _several(value: object, written: str, layout: FileLayout) -> Sequence[object] | None:
    """The labels in a label that is a list, or its Python text, or classes joined by a space or ``|,;``; else None."""
    if isinstance(value, list):
        return value if len(value) > 1 else None
    assert layout.labels is not None
    parts = re.split(r"\s*[|,;]\s*|\s+", re.sub(r"[\[\]'\"]", "", written))
    known = layout.spellings or {str(number) for number in range(layout.labels.classes)}
    return parts if len(parts) > 1 and all(spelling(part) in known for part in parts) else None


def _check_columns(path: Path, columns: Sequence[str], rows: Sequence[Row], needed: Sequence[str]) -> None:
    if not rows:
        raise DataError(f"{path} has a header and no rows")
    if not columns:  # JSON lines, not one of which is an object
        line, problem = rows[0]
        raise DataError(f"{path.name}, line {line}: {problem}")
    names = [name.encode("utf-8", "replace").decode() for name in columns]  # printable
    for separator in ";|":
        if len(names) == 1 and separator in names[0]:
            raise DataError(f"{path} seems to be separated by {separator!r}; save it with commas or tabs instead")
    problems = [
        unknown("column", name, filter(None, names), where="in the file") for name in needed if name not in names
    ]
    problems += [f"column {name!r} appears {names.count(name)} times" for name in needed if names.count(name) > 1]
    if problems:
        raise DataError(f"{path}: {'; '.join(problems)}")


def _check_share(path: Path, skipped: Sequence[str], several: Sequence[str], rows: int, left_out: int) -> None:
    """Refuse a file if no row belongs to the split, or if too many of those that do cannot be read."""
    if left_out == rows:
        raise DataError(f"{path}: none of its {rows} rows belongs to this split")
    rows -= left_out
    if len(skipped) <= TOLERATED * rows:
        return
    if len(several) > TOLERATED * rows:
        raise DataError(f"{path}: {len(several)} of {rows} rows have {SEVERAL_LABELS}: {several[0]}")
    more = f"; and {len(skipped) - NAMED} more" if len(skipped) > NAMED else ""
    raise DataError(
        f"{path}: {len(skipped)} of {rows} rows cannot be read; up to {TOLERATED:.0%} would be skipped: "
        f"{'; '.join(skipped[:NAMED])}{more}"
    )
