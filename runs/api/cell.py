"""One cell from Python: its scores, predictions, learning curves, errors, and its trained model."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from taskloom.core.errors import RegistryError, TaskloomError, count, unknown
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import CellRecord, EpochRecord, GridCell
from taskloom.registry.results.wording import format_scores, format_state
from taskloom.runs.api import questions
from taskloom.runs.api.answer import Answer, existing_folder
from taskloom.runs.api.arguments import checked_split
from taskloom.runs.api.find import Note, check_finished
from taskloom.runs.api.predicting import predict_file
from taskloom.runs.show.parts import Aligned, Listing, Part

if TYPE_CHECKING:  # which import numpy or torch
    from taskloom.core.data import Split
    from taskloom.core.rows import Format
    from taskloom.runs.analysis.compare import Comparison
    from taskloom.runs.analysis.errors import TaskErrors
    from taskloom.runs.analysis.explain import Explanation
    from taskloom.runs.analysis.predictions import Predictions
    from taskloom.runs.api.predicting import PredictedTexts
    from taskloom.runs.export.card import ExportFormat
    from taskloom.runs.export.export import Exported
    from taskloom.runs.predict.predict import PredictionFiles, PredictionFormat
    from taskloom.runs.predict.trained import TrainedModel

#: Examples, or epochs, of a long list that are shown; a data frame has all.
SHOWN = 10


@dataclass(frozen=True, repr=False)
class Cell:
    """One row of a grid with one seed, as it was when it was asked for; ``record`` is all that the ledger has of it."""

    label: str
    seed: int
    record: CellRecord
    registry: Path

    @classmethod
    def of(cls, grid_cell: GridCell, registry: Path) -> "Cell":
        """A cell of a grid."""
        return cls(grid_cell.label, grid_cell.seed, grid_cell.cell, registry)

    @property
    def id(self) -> str:
        """Its identity: the hash of what it is."""
        return self.record.id

    @property
    def status(self) -> str:
        """planned, running, finished, failed, oom or interrupted."""
        return self.record.status

    @property
    def scores(self) -> dict[str, float]:
        """The final dev scores by task, and ``overall``."""
        return dict(self.record.scores)

    def __repr__(self) -> str:
        state = format_state(self.record.status, self.record.reason, self.record.epochs)
        shown = format_scores(self.record.scores) if self.status == "finished" else state
        return f"Cell {self.id[:12]}: row {self.label!r}, seed {self.seed}: {shown}"

    def predictions(
        self, task: str, *, data: questions.Folder = None, split: Literal["dev", "test"] = "dev"
    ) -> "Answer[Predictions]":
        """What its model predicted for the examples of a task: ids, texts if they can be read, labels, predictions.

        ``found.decided`` [1, n] and, of classes, ``found.probabilities`` [1, n, C] are arrays; ``found.predicted`` is
        what :meth:`errors` goes by, on the labels' scale where the metric is a correlation.
        """
        from taskloom.runs.analysis.predictions import Predictions, texts_of

        check_finished(self.record, "has predictions")
        if task not in (tasks := self.record.spec["tasks"]):
            raise RegistryError(unknown("task", task, tasks, where="tasks"))
        checked_split(split)
        loaded = Predictions.load(self.registry, task, [self.record], split)
        texts = texts_of(task, tasks[task]["data"], loaded.examples, existing_folder(data), split)

        rows = texts.rows or [()] * len(loaded.expected)
        name = loaded.facts.called if loaded.facts.names else float
        confidences = [None] * len(rows) if loaded.confidence is None else loaded.confidence[0].tolist()
        columns = (loaded.examples.ids, rows, loaded.expected.tolist(), loaded.decided[0].tolist(), confidences)
        records = [
            {
                "id": id,
                **({"text": row[0]} if len(row) == 1 else {f"text {n}": text for n, text in enumerate(row, start=1)}),
                "label": name(label),
                "predicted": name(predicted),
                "confidence": confidence,
            }
            for id, row, label, predicted, confidence in zip(*columns, strict=True)
        ]
        return _listed(loaded, records, [texts.note] if texts.note else [])

    def curves(self) -> "Answer[tuple[EpochRecord, ...]]":
        """Loss, dev score and, where it was asked for, train score of every task after every epoch."""
        with Ledger.open(self.registry, create=False) as ledger:
            epochs = ledger.epochs(self.id)

        records = [
            {
                "stage": epoch.stage,
                "epoch": epoch.epoch,
                "step": epoch.step,
                "seconds": epoch.seconds,
                "task": task,
                "loss": epoch.losses.get(task),
                "score": epoch.scores.get(task),
                "train": epoch.train.get(task),
            }
            for epoch in epochs
            for task in dict.fromkeys((*epoch.losses, *epoch.scores))
        ]
        return _listed(epochs, records)

    def errors(self, *, limit: int = 10, data: questions.Folder = None, split: str = "") -> "Answer[list[TaskErrors]]":
        """Its worst errors on the examples of a split, and which classes it confuses."""
        with Ledger.open(self.registry, create=False) as ledger:
            return questions.errors(ledger, [], self.id, limit=limit, data=data, split=split)

    def compare(
        self, other: "Cell", *, limit: int = 10, data: questions.Folder = None, split: str = ""
    ) -> "Answer[Comparison]":
        """What differs between this cell and another one, example by example."""
        if not isinstance(other, Cell):
            raise TaskloomError(f"other should be a cell, such as grid.cell(…). Found {other!r}.")
        with Ledger.open(self.registry, create=False) as ledger:
            return questions.compare(ledger, [], self.id, other.id, limit=limit, data=data, split=split)

    def explain(self) -> "Answer[Explanation]":
        """Which rows it is or was, with what it ran, and whether it would be the same cell today."""
        from taskloom.registry.installed.catalogue import load_catalogue
        from taskloom.runs.analysis.explain import explain_cell
        from taskloom.runs.show.explain import explained_cell_json, show_explained_cell

        with Ledger.open(self.registry, create=False) as ledger:
            explanation = explain_cell(self.record, load_catalogue(), ledger)
        return Answer(
            explanation,
            [Aligned(show_explained_cell(self.record, explanation))],
            explained_cell_json(self.record, explanation),
            [{key: explanation.as_dict()[key] for key in ("cell", "state", "why", "against")}],
        )

    def model(self) -> "TrainedModel":
        """The trained model, a torch module: ``encode(texts)`` gives vectors, ``predict(task, texts)`` predictions."""
        from taskloom.registry.installed.catalogue import load_catalogue
        from taskloom.runs.predict.trained import load_trained

        return load_trained(self.record, load_catalogue(), self.registry)

    def predict_split(
        self,
        folder: str | os.PathLike[str] = "predictions",
        *,
        split: "Split" = "test",
        tasks: Sequence[str] = (),
        data: questions.Folder = None,
        form: "PredictionFormat" = "submission",
        force: bool = False,
    ) -> "Answer[PredictionFiles]":
        """Write what its model predicts for a split of its tasks, a file per task; ``found.missing`` has none."""
        from taskloom.registry.installed.catalogue import load_catalogue
        from taskloom.runs.predict.predict import predict_cell

        moved, catalogue = existing_folder(data), load_catalogue()
        return _files_answer(
            predict_cell(
                self.record,
                catalogue,
                self.registry,
                Path(folder),
                split=split,
                only=tasks,
                data=moved,
                form=form,
                force=force,
            )
        )

    def predict_file(
        self,
        texts: str | os.PathLike[str],
        out: "str | os.PathLike[str] | Callable[[str], None]",
        *,
        tasks: Sequence[str] = (),
        columns: Sequence[str] = (),
        input_format: "Format" = "auto",
        form: str | None = None,
        force: bool = False,
        note: Note = print,
    ) -> "Answer[PredictedTexts]":
        """Write what its model predicts for new texts: the rows of a CSV, TSV or JSON-lines file, or ``-`` for stdin.

        ``out`` is a file, or a function that gets the table in pieces; ``columns`` are those of the texts, ``note``
        gets what happens meanwhile, such as rows that are skipped. ``found`` counts the rows.
        """
        return predict_file(
            self.record,
            self.registry,
            Path(texts),
            out if callable(out) else Path(out),
            tasks=tasks,
            columns=columns,
            input_format=input_format,
            form=form,
            force=force,
            note=note,
        )

    def export(
        self,
        folder: str | os.PathLike[str],
        form: "ExportFormat" = "sentence-transformers",
        *,
        replace: bool = False,
        data: questions.Folder = None,
    ) -> "Answer[Exported]":
        """Write its model for other programs: ``sentence-transformers``, ``transformers`` or ``onnx``, with a card."""
        from taskloom.registry.installed.catalogue import load_catalogue
        from taskloom.runs.export.export import export_cell

        home, moved = Path(folder), existing_folder(data)
        exported = export_cell(self.record, load_catalogue(), self.registry, home, form, replace=replace, data=moved)
        files = [{"file": str(path), "bytes": path.stat().st_size} for path in exported.files]
        listing = Listing([tuple(file.values()) for file in files], ("file", "bytes"))
        notes = (*exported.notes, f"{home / 'README.md'} shows how it is used.")
        return Answer(exported, [listing], files, files, notes)


def _files_answer(files: "PredictionFiles") -> "Answer[PredictionFiles]":
    """The files with the predictions for a split, and notes about rows and tasks that have none."""
    notes = list(files.notes)
    for file in files.files:
        if file.skipped:
            rows = count(len(file.skipped), "row")
            notes.append(f"{file.task}: no prediction for {rows} that cannot be read, the first: {file.skipped[0]}")
    notes += [f"{task} not written: {reason}" for task, reason in files.missing.items()]
    records = [{"task": file.task, "rows": file.rows, "file": str(file.path)} for file in files.files]
    listing = Listing([tuple(record.values()) for record in records], ("task", "rows", "file"))
    return Answer(files, [listing], records, records, tuple(notes))


def _listed(value: Any, records: Sequence[dict[str, Any]], notes: Iterable[str] = ()) -> Answer[Any]:
    """An answer of records, of which a person sees the first."""
    first = [[_short(value) for value in record.values()] for record in records[:SHOWN]]
    parts: list[Part] = [Listing(first, list(records[0]) if records else [])]
    if len(records) > SHOWN:
        parts.append(f"and {len(records) - SHOWN} more; to_pandas() has all")
    return Answer(value, parts, records, records, tuple(notes))


def _short(value: object) -> object:
    return f"{value:.4g}" if isinstance(value, float) else value
