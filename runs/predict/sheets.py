"""Predictions of new texts as a table, written as they come: CSV, TSV, JSON lines or Parquet."""

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

from taskloom.core import Labels, TaskloomError
from taskloom.registry.results.artifacts import replacing
from taskloom.runs.predict.submission import single
from taskloom.runs.predict.texts import NewTexts, TextRow
from taskloom.runs.predict.trained import TaskPredictions

SheetFormat = Literal["csv", "tsv", "jsonl", "parquet"]
#: Some rows of a table, by column.
Columns = dict[str, list[Any]]
#: Writes some more rows.
Write = Callable[[Columns], None]


def format_of(path: Path | None, form: str | None) -> SheetFormat:
    """The format that was asked for, or that of a file by its suffix; CSV without a file."""
    known = get_args(SheetFormat)
    if form is None and path is not None and path.suffix.lower()[1:] not in known:
        raise TaskloomError(
            f"--out should end in {', '.join(f'.{name}' for name in known)}, or --format say what to write. "
            f"Found {path.name!r}."
        )
    chosen: SheetFormat = form or (path.suffix.lower()[1:] if path is not None else "csv")  # type: ignore[assignment]
    if chosen == "parquet":
        if path is None:
            raise TaskloomError("--format parquet needs a file: --out FILE")
        _pyarrow()
    return chosen


def columns_of(source: NewTexts, rows: Sequence[TextRow], found: TaskPredictions, labels: Labels) -> Columns:
    """The id if there is one, the texts, what is predicted, and the probability of every class if there is one."""
    columns: Columns = {source.id: [row.id for row in rows]} if source.id else {}
    for place, name in enumerate(source.texts):
        columns[name] = [row.texts[place] for row in rows]
    new: Columns = {"prediction": found.labels if labels.classes else [float(single(one)) for one in found.values]}
    if found.probabilities is not None:
        for number, column in enumerate(found.probabilities.T):
            new[f"p_{labels.names[number] if labels.names else number}"] = [float(single(one)) for one in column]
    if taken := [name for name in new if name in columns]:
        raise TaskloomError(f"{source.name}: column {taken[0]!r} would be there twice; rename that of the file")
    return columns | new


def text_sheet(form: SheetFormat, write: Callable[[str], object]) -> Write:
    """A table that is written as text, its header with the first rows."""
    began = False

    def more(columns: Columns) -> None:
        nonlocal began
        text, rows = io.StringIO(), zip(*columns.values(), strict=True)
        if form == "jsonl":
            for row in rows:
                text.write(json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) + "\n")
        else:
            lines = csv.writer(text, delimiter="\t" if form == "tsv" else ",", lineterminator="\n")
            lines.writerows(rows if began else [tuple(columns), *rows])
        write(text.getvalue())
        began = True

    return more


@contextmanager
def sheet_file(path: Path, form: SheetFormat) -> Iterator[Write]:
    """A table in a file, which is there when all of it was written, and else as it was."""
    with replacing(path) as part:
        if form == "parquet":
            with _parquet(part) as write:
                yield write
        else:
            with part.open("w", encoding="utf-8", newline="") as file:
                yield text_sheet(form, file.write)


@contextmanager
def _parquet(path: Path) -> Iterator[Write]:
    pyarrow, parquet = _pyarrow()
    writers: list[Any] = []

    def more(columns: Columns) -> None:
        table = pyarrow.table(columns)
        if not writers:
            writers.append(parquet.ParquetWriter(path, table.schema))
        writers[0].write_table(table)

    try:
        yield more
    finally:
        for writer in writers:
            writer.close()


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise TaskloomError("Parquet files need pyarrow: pip install 'taskloom[parquet]'") from None
    return pyarrow, parquet
