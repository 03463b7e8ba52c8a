"""Write the predictions of a finished cell for a split of its tasks, or for new texts. Only reads the registry."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from taskloom.core import DataError, DataSet, Examples, Split, TaskloomError
from taskloom.core.errors import count
from taskloom.core.rows import Format, Rows
from taskloom.core.tokens import COLUMNS
from taskloom.registry.installed.catalogue import Catalogue
from taskloom.registry.installed.manager import guard
from taskloom.registry.installed.task import Task
from taskloom.registry.results.outputs import check_location, output
from taskloom.registry.results.records import CellRecord
from taskloom.runs.grid.contents import read_split
from taskloom.runs.predict.sheets import Write, columns_of
from taskloom.runs.predict.texts import NewTexts
from taskloom.runs.predict.trained import BATCH, TrainedModel, choose_tasks, in_batches, load_trained
from taskloom.runs.training.evaluate import predictions
from taskloom.runs.training.feed import Feed

#: How predictions for a split are written: as its data set hands them in, or as JSON lines.
PredictionFormat = Literal["submission", "jsonl"]


@dataclass(frozen=True)
class PredictionFile:
    """The file with the predictions of a task; ``skipped`` are rows that could not be read and so have none."""

    task: str
    path: Path
    rows: int
    skipped: tuple[str, ...]


@dataclass(frozen=True)
class PredictionFiles:
    """The files that were written, why other tasks have none, and notes for a reader of the files."""

    files: list[PredictionFile] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def predict_cell(
    cell: CellRecord,
    catalogue: Catalogue,
    registry: Path,
    out: Path,
    *,
    split: Split = "test",
    only: Sequence[str] = (),
    data: Path | None = None,
    form: PredictionFormat = "submission",
    force: bool = False,
) -> PredictionFiles:
    """Write the predictions of a finished cell for a split of its tasks into the folder ``out``.

    ``only`` names some of its tasks; ``data`` is a folder to look for the data in, instead of where the run had them;
    ``force`` replaces files of another kind.
    A task whose data cannot be read is left out and listed in ``missing``. Any other problem raises a
    ``TaskloomError``, as does a request for which nothing could be written.
    """
    spec: dict[str, Any] = cell.spec
    check_location(out)
    model = load_trained(cell, catalogue, registry)
    chosen = choose_tasks(model.tasks, only)
    paths = {name: out / _file_name(model.tasks[name], split, form) for name in chosen}
    if len(set(paths.values())) < len(paths):
        raise TaskloomError(
            f"tasks {', '.join(paths)} would not all be written to files of their own; choose one with --task, or "
            "--format jsonl, which names files after tasks"
        )

    prediction_files = PredictionFiles(notes=list(model.notes))
    examples_by_task: dict[str, Examples] = {}
    for name in chosen:
        try:
            examples_by_task[name] = read_split(spec["tasks"][name]["data"], split, data)
        except DataError as error:
            # The specification of a finished cell is fixed: changing its grid's options would not help.
            source = spec["tasks"][name]["data"]
            unnamed = source.get(split, "") is None and "dir" not in source  # in a folder, files have names by default
            prediction_files.missing[name] = f"its data set has no {split} file" if unnamed else str(error)
    if not examples_by_task:
        reasons = "".join(f"\n  {name}: {reason}" for name, reason in prediction_files.missing.items())
        advice = "To predict the texts of any file, name it with --input FILE."
        raise DataError(f"no {split} data for any task, so nothing was written:{reasons}\n{advice}")

    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, examples in examples_by_task.items():
            feed = Feed.open(model.tasks[name], examples, model.encoder, None, model.device)
            values = predictions(model, name, feed).decided
            text = _file_text(model.tasks[name].data, examples, values, form)
            with output(paths[name], reads=cell.files, force=force) as part:
                part.write_bytes(text.encode())
            prediction_files.files.append(PredictionFile(name, paths[name], len(examples), examples.skipped))
    except OSError as error:
        raise TaskloomError(f"nothing can be written to {out}: {error.strerror}; choose another --out") from error
    return prediction_files


def _file_name(task: Task, split: Split, form: PredictionFormat) -> str:
    if form == "jsonl":
        return f"predictions-{task.name}-{split}.jsonl"
    with guard(f"data set {task.data.name!r}"):
        return task.data.submission_name(task.name, split)


def _file_text(data: DataSet, examples: Examples, predicted: NDArray[np.float64], form: PredictionFormat) -> str:
    """A task's file; JSON lines have ``id``, ``predicted`` and ``expected``, null where there is no label."""
    if form == "submission":
        with guard(f"data set {data.name!r}"):
            return data.submission(examples.ids, predicted)
    expected = [None] * len(examples) if examples.labels is None else examples.labels.tolist()
    rows = zip(examples.ids, predicted.tolist(), expected, strict=True)
    return "".join(json.dumps({"id": i, "predicted": p, "expected": e}) + "\n" for i, p, e in rows)


def new_texts(
    model: TrainedModel,
    cell: CellRecord,
    task: str,
    stream: BinaryIO,
    name: str,
    *,
    texts: Sequence[str] = (),
    format: Format = "auto",
    skip: Callable[[str], None],
) -> NewTexts:
    """Read the rows of a stream for a task of the cell, with the column names of the task's data set."""
    data: dict[str, Any] = cell.spec["tasks"][task]["data"]
    own = data.get("text") or ()
    return NewTexts(
        Rows(stream, name, format=format, quotes=data.get("quotes", True)),
        COLUMNS[model.tasks[task].head.reads],
        texts=tuple(texts),
        own=(own,) if isinstance(own, str) else tuple(own),
        id=data.get("id") or "id",
        skip=skip,
    )


def predict_texts(model: TrainedModel, task: str, source: NewTexts, write: Write) -> Iterator[int]:
    """Predict rows and write them batch by batch; yields the number of rows of each batch."""
    for rows in in_batches(source, BATCH):
        predicted = model.predict(task, [row.texts for row in rows])
        write(columns_of(source, rows, predicted, model.tasks[task].labels))
        yield len(rows)


def choose_task(model: TrainedModel, only: Sequence[str]) -> str:
    """Choose the task that new texts are for: the one named, or the only one that predicts."""
    able = choose_tasks(model.tasks, only)
    if len(able) > 1:
        reads = [f"{name} ({count(COLUMNS[model.tasks[name].head.reads], 'text')} per row)" for name in able]
        raise TaskloomError(f"--input is for one task at a time; choose it with --task NAME: {', '.join(reads)}")
    return able[0]
