"""One cell from Python: its scores, predictions, learning curves, errors, and its trained model."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from taskloom.core.errors import RegistryError, TaskloomError, unknown
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import CellRecord, EpochRecord, GridCell
from taskloom.runs.api import questions
from taskloom.runs.api.answer import Answer
from taskloom.runs.api.find import check_finished
from taskloom.runs.driver.wording import format_scores, format_state
from taskloom.runs.show.parts import Aligned, Listing, Part

if TYPE_CHECKING:  # which import numpy or torch
    from taskloom.runs.analysis.compare import Comparison
    from taskloom.runs.analysis.errors import TaskErrors
    from taskloom.runs.analysis.explain import Explanation
    from taskloom.runs.analysis.predictions import Predictions
    from taskloom.runs.export.card import Form
    from taskloom.runs.export.export import Exported
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
        questions.checked_split(split)
        found = Predictions.load(self.registry, task, [self.record], split)
        texts = texts_of(task, tasks[task]["data"], found.examples, questions.folder_of(data), split)

        def records() -> list[dict[str, Any]]:
            rows = texts.rows or [()] * len(found.expected)
            name = found.facts.called if found.facts.names else float
            sure = [None] * len(rows) if found.confidence is None else found.confidence[0].tolist()
            return [
                {
                    "id": id,
                    **(
                        {"text": row[0]}
                        if len(row) == 1
                        else {f"text {n}": text for n, text in enumerate(row, start=1)}
                    ),
                    "label": name(label),
                    "predicted": name(predicted),
                    "confidence": confidence,
                }
                for id, row, label, predicted, confidence in zip(
                    found.examples.ids, rows, found.expected.tolist(), found.decided[0].tolist(), sure, strict=True
                )
            ]

        return _listed(found, records, [texts.note] if texts.note else [])

    def curves(self) -> "Answer[tuple[EpochRecord, ...]]":
        """Loss, dev score and, where it was asked for, train score of every task after every epoch."""
        with Ledger.open(self.registry, create=False) as ledger:
            epochs = ledger.epochs(self.id)

        def records() -> list[dict[str, Any]]:
            return [
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
            return questions.errors(ledger, self.id, [], limit, data, split)

    def compare(
        self, other: "Cell", *, limit: int = 10, data: questions.Folder = None, split: str = ""
    ) -> "Answer[Comparison]":
        """What differs between this cell and another one, example by example."""
        if not isinstance(other, Cell):
            raise TaskloomError(f"other should be a cell, such as grid.cell(…). Found {other!r}.")
        with Ledger.open(self.registry, create=False) as ledger:
            return questions.compare(ledger, self.id, other.id, [], limit, data, split)

    def explain(self) -> "Answer[Explanation]":
        """Which rows it is or was, with what it ran, and whether it would be the same cell today."""
        from taskloom.registry.installed.catalogue import load_catalogue
        from taskloom.runs.analysis.explain import explain_cell
        from taskloom.runs.show.explain import explained_cell_json, show_explained_cell

        with Ledger.open(self.registry, create=False) as ledger:
            found = explain_cell(self.record, load_catalogue(), ledger)
        return Answer(
            found,
            lambda: [Aligned(show_explained_cell(self.record, found))],
            lambda: explained_cell_json(self.record, found),
            lambda: [{key: found.as_dict()[key] for key in ("cell", "state", "why", "against")}],
        )

    def model(self) -> "TrainedModel":
        """The trained model, a torch module: ``encode(texts)`` gives vectors, ``predict(task, texts)`` predictions."""
        from taskloom.registry.installed.catalogue import load_catalogue
        from taskloom.runs.predict.trained import load_trained

        return load_trained(self.record, load_catalogue(), self.registry)

    def export(
        self,
        folder: str | os.PathLike[str],
        form: "Form" = "sentence-transformers",
        *,
        replace: bool = False,
        data: questions.Folder = None,
    ) -> "Answer[Exported]":
        """Write its model for other programs: ``sentence-transformers``, ``transformers`` or ``onnx``, with a card."""
        from taskloom.registry.installed.catalogue import load_catalogue
        from taskloom.runs.export.export import export_cell

        home, moved = Path(folder), questions.folder_of(data)
        done = export_cell(self.record, load_catalogue(), self.registry, home, form, replace=replace, data=moved)
        files = [{"file": str(path), "bytes": path.stat().st_size} for path in done.files]
        listed = Listing([tuple(file.values()) for file in files], ("file", "bytes"))
        notes = (*done.notes, f"{home / 'README.md'} shows how it is used.")
        return Answer(done, lambda: [listed], lambda: files, lambda: files, notes)


def cell_of(place: GridCell, registry: Path) -> Cell:
    """A cell in its place in a grid."""
    return Cell(place.label, place.seed, place.cell, registry)


def _listed(found: Any, records: Any, notes: Iterable[str] = ()) -> Answer[Any]:
    """An answer of records, of which a person sees the first."""

    def parts() -> Iterable[Part]:
        rows = records()
        yield Listing(
            [[_short(value) for value in row.values()] for row in rows[:SHOWN]], list(rows[0]) if rows else []
        )
        if len(rows) > SHOWN:
            yield f"and {len(rows) - SHOWN} more; to_pandas() has all"

    return Answer(found, parts, records, records, tuple(notes))


def _short(value: object) -> object:
    return f"{value:.4g}" if isinstance(value, float) else value
