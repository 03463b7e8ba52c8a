"""Predictions of new texts as a table, written batch by batch: CSV, TSV, JSON lines or Parquet."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from taskloom.core import Labels, TaskloomError
from taskloom.registry.results.outputs import check_kind, output
from taskloom.runs.predict.texts import NewTexts, TextRow
from taskloom.runs.predict.trained import TaskPredictions

SheetFormat = Literal["csv", "tsv", "jsonl", "parquet"]
#: A batch of rows of a table, by column.
Columns = dict[str, list[Any]]
#: A function that writes a further batch of rows.
Write = Callable[[Columns], None]


def format_of(path: Path | None, form: str | None) -> SheetFormat:
    """Return ``form`` if it is set, else the format that the suffix of ``path`` names; CSV without a file."""
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


def columns_of(source: NewTexts, rows: Sequence[TextRow], predictions: TaskPredictions, labels: Labels) -> Columns:
    """Return the columns of a table: id if any, texts, prediction, and the probability of every class if any."""
    columns: Columns = {source.id: [row.id for row in rows]} if source.id else {}
    for index, name in enumerate(source.texts):
        columns[name] = [row.texts[index] for row in rows]
    rounded = [_rounded(score) for score in predictions.values]
    new: Columns = {"prediction": predictions.labels if labels.classes else rounded}
    if predictions.probabilities is not None:
        for class_index, column in enumerate(predictions.probabilities.T):
            class_name = labels.names[class_index] if labels.names else class_index
            new[f"p_{class_name}"] = [_rounded(probability) for probability in column]
    if duplicates := [name for name in new if name in columns]:
        raise TaskloomError(f"{source.name}: column {duplicates[0]!r} would be there twice; rename that of the file")
    return columns | new


def _rounded(value: float) -> float:
    """A number of single precision as the double with the fewest digits.

    >>> _rounded(3.7041292190551758)
    3.7041292
    """
    return float(str(np.float32(value)))


def text_sheet(form: SheetFormat, write: Callable[[str], object]) -> Write:
    """Return a function that writes rows as text, with the header before the first ones."""
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
def sheet_file(
    path: Path, form: SheetFormat, *, reads: Iterable[str | Path] = (), force: bool = False
) -> Iterator[Write]:
    """Write a table to a file, which is replaced only once all of it was written; see :func:`output`."""
    with output(path, reads=reads, force=force) as part:
        if form == "parquet":
            with _parquet(part) as write:
                yield write
        else:
            with part.open("w", encoding="utf-8", newline="") as file:

                def write_text(text: str) -> None:
                    is_first = not file.tell()
                    file.write(text)
                    if is_first and not force:  # rather than after the last row
                        file.flush()
                        check_kind(part, path)

                yield text_sheet(form, write_text)


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
