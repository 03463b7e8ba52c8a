"""A recorded grid with what its cells gave: rows, seeds, and the scores of a column with their noise. No torch."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskloom.core.data import Metric
from taskloom.core.errors import PluginError, RegistryError, TaskloomError, unknown
from taskloom.core.overall import Overall
from taskloom.registry.results.records import CellRecord, GridRecord
from taskloom.registry.results.scores import ExampleSet, StoredScores, find_scores, load_examples
from taskloom.runs.analysis.contrasts import Contrast, Scores, Values

OVERALL = "overall"
#: What the name of a metric begins with that is the F1 score of one class.
PER_CLASS = "f1:"


@dataclass(frozen=True)
class Results:
    """A grid's finished cells, by row and seed, and their stored scores.

    The scores of further metrics are computed from the stored predictions. With a ``metric`` all scores are, of the
    tasks whose labels it can judge; further metrics then play no part.
    """

    grid: GridRecord
    registry: Path
    metric: Metric | None = None

    @cached_property
    def rows(self) -> tuple[str, ...]:
        """The labels, in the order of the grid."""
        return tuple(dict.fromkeys(place.label for place in self.grid.cells))

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({place.seed for place in self.grid.cells}))

    @cached_property
    def finished(self) -> dict[tuple[str, int], CellRecord]:
        """Label and seed → the cell, if it is finished."""
        return {(place.label, place.seed): place.cell for place in self.grid.cells if place.cell.status == "finished"}

    @cached_property
    def baseline(self) -> str | None:
        """The grid's baseline; where that row is not here, the first changed row that stands beside it."""
        stated: str | None = self.grid.spec.get("baseline")
        if stated is None or stated in self.rows:
            return stated
        return next((row for row in self.rows if self.grid.unchanged.get(row) == stated), stated)

    def alike(self, *labels: str) -> tuple[str, ...]:
        """Rows of the grid; where one is not here, those that the first change which serves them all has made."""
        changed = [[change.called(row) for row in labels] for change in self.grid.changes]
        choices = [labels, *(tuple(map(self._nearest, names, labels)) for names in changed)]
        return next((rows for rows in choices if all(row in self.place_of for row in rows)), labels)

    def _nearest(self, changed: str, label: str) -> str:
        return changed if changed in self.place_of else label

    def stated(self, label: str) -> Mapping[str, Any]:
        """What the grid's JSON says of a labelled row; of a changed one, what it says of the row that it was."""
        return self._stated.get(self.grid.unchanged.get(label, label), {})

    @cached_property
    def _stated(self) -> dict[str, dict[str, Any]]:
        return {cell["label"]: cell for cell in self.grid.spec.get("cells") or ()}

    def split_of(self, label: str) -> str:
        """The split that a row shows: dev, unless the grid states that the row is about test."""
        return str(self.stated(label).get("split", "dev"))

    @cached_property
    def further(self) -> dict[str, tuple[str, Metric | None]]:
        """The columns of further metrics: ``task:metric`` → the task and the metric; None if it cannot be used here."""
        found: dict[str, tuple[str, Metric | None]] = {}
        for column, (task, spec) in self.grid.further.items() if self.metric is None else ():
            try:
                found[column] = task, _light_metric(spec)
            except TaskloomError as error:
                found[column], self.broken[column] = (task, None), str(error)
        return found

    def with_further(self, columns: Iterable[str]) -> Iterator[str]:
        """Columns, tasks among them, each followed by the task's further metrics."""
        for column in columns:
            yield column
            yield from (name for name, (task, _) in self.further.items() if task == column)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """All that some finished cell has a score in."""
        found = {name for (row, _), cell in self.finished.items() for name in self.final_scores(row, cell)}
        tasks = dict.fromkeys(task for cell in self.finished.values() for task in cell.spec.get("tasks", {}))
        return tuple(column for column in (*self.with_further(tasks), OVERALL) if column in found)

    @cached_property
    def broken(self) -> dict[str, str]:
        """The columns of further metrics that cannot be computed here, each with why."""
        return {}

    @cached_property
    def overall(self) -> dict[str, Overall]:
        """How the tasks of each row count in its overall score; another metric's scores are not normalised."""
        found = {place.label: Overall.of(place.cell.spec) for place in self.grid.cells}
        return found if self.metric is None else {row: replace(how, normalised=False) for row, how in found.items()}

    def final_scores(self, label: str, cell: CellRecord) -> dict[str, float]:
        """A finished cell's scores on the split that its row shows."""
        split = self.split_of(label)
        given = cell.scores if split == "dev" else cell.test
        if self.metric is None and not self.further:
            return given
        if (cell.id, split) not in self._final:
            stored = self.stored(cell.id, split)
            made = {} if stored is None else self._scores_of(stored)
            overall = None if self.metric is None else self.overall[label].score(made, ())
            found = {**(given if self.metric is None else {}), **made}
            self._final[cell.id, split] = found if overall is None else {**found, OVERALL: overall}
        return self._final[cell.id, split]

    def _computed(self, stored: StoredScores) -> dict[str, tuple[str, Metric]]:
        """The columns that are computed from stored predictions, each with its task and metric."""
        wanted = self.further if self.metric is None else {task: (task, self.metric) for task in stored.tasks}
        return {
            column: (task, metric)
            for column, (task, metric) in wanted.items()
            if metric is not None and task in stored.tasks and fits(metric, stored.tasks[task].classes)
        }

    def _scores_of(self, stored: StoredScores) -> dict[str, float]:
        """Scores by metrics that are not the run's own; NaN where a metric gives none."""
        found = {}
        for column, (task, metric) in self._computed(stored).items():
            predicted, expected = stored.read(task, "predicted"), self.examples(stored.tasks[task].examples).expected
            try:
                with _asking(metric):
                    found[column] = float(metric(predicted, expected))
            except PluginError as error:
                found[column], self.broken[column] = nan, str(error)
        return found

    @cached_property
    def classes(self) -> dict[str, int]:
        """The tasks with stored predictions, and how many classes each has, 0 for values."""
        found = [self.stored(cell.id, self.split_of(label)) for (label, _), cell in self.finished.items()]
        return {task: facts.classes for each in found if each is not None for task, facts in each.tasks.items()}

    def row(self, label: str) -> Values:
        """The weights [R] of one row alone: contrasts are sums of them."""
        weights = np.zeros(len(self.rows))
        weights[self.place_of[label]] = 1.0
        return weights

    @cached_property
    def place_of(self) -> dict[str, int]:
        """Where each row comes in :attr:`rows`."""
        return {label: place for place, label in enumerate(self.rows)}

    def difference(self, column: str, label: str, other: str) -> Contrast:
        """One row less another."""
        if missing := [row for row in (label, other) if row not in self.place_of]:
            return Contrast(why=f"{missing[0]!r} was not run")
        runs = [[place.cell.id for place in self.grid.cells if place.label == row] for row in (label, other)]
        if runs[0] == runs[1]:
            return Contrast(why="both are one and the same run here")
        return self.scores(column).contrast(self.row(label) - self.row(other))

    def why_unscored(self, cell: CellRecord, column: str) -> str:
        """Why a finished cell has no test score."""
        if not cell.spec.get("score", {}).get("test"):
            return 'test was not scored; a run with "score": {"test": true} does that'
        return f"{column} has no labelled test split"

    def stored(self, cell: str, split: str = "dev") -> StoredScores | None:
        """The stored scores of a cell; None if there are none that can be read, with their examples."""
        if (cell, split) not in self._stored:
            try:
                found = find_scores(self.registry, cell, split)
                for facts in found.tasks.values() if found else ():
                    self.examples(facts.examples)
            except RegistryError:
                found = None
            self._stored[cell, split] = found
        return self._stored[cell, split]

    def examples(self, key: str) -> ExampleSet:
        """The examples with a key."""
        if key not in self._examples:
            self._examples[key] = load_examples(self.registry, key)
        return self._examples[key]

    def scores(self, column: str) -> Scores:
        """The scores of a task, or ``overall``, with the noise that their common examples cause."""
        if column not in self._scores:
            self._scores[column] = self._make_scores(column)
        return self._scores[column]

    def _make_scores(self, column: str) -> Scores:
        shape = len(self.rows), len(self.seeds)
        values = np.full(shape, np.nan)
        moves: dict[tuple[int, int], Moves] = {}
        for (label, seed), cell in self.finished.items():
            place = self.place_of[label], self.seeds.index(seed)
            values[place] = self.final_scores(label, cell).get(column, np.nan)
            if np.isfinite(values[place]):
                moves[place] = self._moves(label, cell, column)
        return gathered(values, moves)

    def _moves(self, label: str, cell: CellRecord, column: str) -> "Moves":
        """How far each cluster of examples moves a cell's score, and which examples those are."""
        stored = self.stored(cell.id, self.split_of(label))
        if stored is None:
            return Moves((), np.zeros(0))
        slopes = {column: 1.0}
        if column == OVERALL:
            scored = sorted({*self.final_scores(label, cell)} - {OVERALL, *self.further})  # in one order for all cells
            slopes = self.overall[label].slopes(
                scored, [name for name, each in stored.tasks.items() if each.correlation]
            )
        tasks = {name: self.further[name][0] if name in self.further else name for name in slopes}
        if not tasks or not {*tasks.values()} <= stored.tasks.keys():
            return Moves((), np.zeros(0))
        try:
            parts = [slope * self._column_moves(stored, name) for name, slope in slopes.items()]
        except PluginError as error:
            self.broken[column] = str(error)
            return Moves((), np.zeros(0))
        return Moves(tuple((task, stored.tasks[task].examples) for task in tasks.values()), np.concatenate(parts))

    def _column_moves(self, stored: StoredScores, column: str) -> Values:
        """How far each cluster of examples moves the score of one task by one metric."""
        if (stored.path, column) not in self._moved:
            task, metric = self._computed(stored).get(column, (column, None))
            examples = self.examples(stored.tasks[task].examples)
            with nullcontext() if metric is None else _asking(metric):
                if metric is None:
                    influence = stored.read(task, "influence")
                else:
                    influence = metric.influence(stored.read(task, "predicted"), examples.expected)
                self._moved[stored.path, column] = np.bincount(examples.cluster, influence) / len(examples.expected)
        return self._moved[stored.path, column]

    @cached_property
    def _moved(self) -> dict[tuple[Path, str], Values]:
        return {}

    @cached_property
    def _final(self) -> dict[tuple[str, str], dict[str, float]]:
        return {}

    @cached_property
    def _stored(self) -> dict[tuple[str, str], StoredScores | None]:
        return {}

    @cached_property
    def _examples(self) -> dict[str, ExampleSet]:
        return {}

    @cached_property
    def _scores(self) -> dict[str, Scores]:
        return {}


class ClassScore(Metric):
    """The F1 score of one class: 2·hits / (predicted as it + expected as it); 0 if neither happens."""

    reads = "classes"

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, predicted: Values, expected: Values) -> float:
        guessed, real = predicted == self.number, expected == self.number
        size = guessed.sum() + real.sum()
        return float(2 * (guessed & real).sum() / size) if size else 0.0

    def influence(self, predicted: Values, expected: Values) -> Values:
        guessed, real = predicted == self.number, expected == self.number
        size = guessed.mean() + real.mean()
        found: Values = 2 * (guessed & real) - self(predicted, expected) * (guessed.astype(np.float64) + real)
        return (found - found.mean()) / size if size else np.zeros(len(expected))


def metric_named(name: str) -> Metric:
    """An installed metric, or ``f1:2``, the F1 score of class 2; ``TaskloomError`` if there is none."""
    if name.startswith(PER_CLASS):
        number = name.removeprefix(PER_CLASS)
        if not (number.isascii() and number.isdigit()):
            raise TaskloomError(f"--metric {name}: {PER_CLASS} takes the number of a class, such as {PER_CLASS}2")
        return ClassScore(int(number))
    from taskloom.registry.installed.light import own_components

    if name not in own_components(Metric.kind):
        from taskloom.registry.installed.catalogue import load_catalogue

        if name not in (known := load_catalogue().names(Metric.kind)):
            raise TaskloomError(unknown("metric", name, [*known, f"{PER_CLASS}CLASS"], where="there are"))
    return _light_metric({"name": name})


def _light_metric(spec: Mapping[str, Any]) -> Metric:
    from taskloom.registry.installed.light import make_light

    return make_light(Metric, spec)


def _asking(metric: Metric) -> AbstractContextManager[None]:
    """A block that asks a metric, which may be a third party's: whatever it raises is a ``PluginError``."""
    from taskloom.registry.installed.manager import guard

    return guard(f"metric {name_of(metric)!r}")


def name_of(metric: Metric) -> str:
    """What :func:`metric_named` calls a metric."""
    return f"{PER_CLASS}{metric.number}" if isinstance(metric, ClassScore) else metric.name


def fits(metric: Metric, classes: int) -> bool:
    """Whether a metric can judge labels of so many classes, 0 for values."""
    if isinstance(metric, ClassScore) and metric.number >= classes:
        return False
    return metric.reads == "either" or (metric.reads == "classes") == bool(classes)


@dataclass(frozen=True, eq=False)
class Moves:
    """How far each cluster of examples moves a score, [N]; ``key`` says which examples, empty if nobody knows."""

    key: tuple[tuple[str, str], ...]
    values: NDArray[np.float64]


def gathered(values: Values, moves: dict[tuple[int, int], Moves]) -> Scores:
    """Scores [R, S] with the covariances that follow from what moves each of them."""
    rows, seeds = values.shape
    keys = list(dict.fromkeys(each.key for each in moves.values() if each.key))
    of_row: list[set[int]] = [set() for _ in range(rows)]
    for (row, _), each in moves.items():
        of_row[row].add(keys.index(each.key) if each.key else -1)
    sets = np.array([found.pop() if len(found) == 1 else -1 for found in of_row], np.int64)
    shared = np.zeros((rows * seeds, rows * seeds))
    for number in range(len(keys)):
        places = [place for place in moves if sets[place[0]] == number]
        flat = [row * seeds + seed for row, seed in places]
        matrix = np.stack([moves[place].values for place in places])
        shared[np.ix_(flat, flat)] = matrix @ matrix.T
    sizes = {each.key: len(each.values) for each in moves.values()}
    return Scores(values, shared.reshape(rows, seeds, rows, seeds), sets, tuple(sizes[key] for key in keys))
