"""A recorded grid with its results: rows, seeds, and the scores of a column with their noise. Imports no torch."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from math import nan
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from taskloom.core.data import Metric
from taskloom.core.errors import PluginError, RegistryError, TaskloomError
from taskloom.core.overall import Overall
from taskloom.registry.results.records import CellRecord, EpochRecord, GridRecord
from taskloom.registry.results.scores import (
    ExampleSet,
    StoredScores,
    TaskFacts,
    check_examples,
    find_scores,
    load_examples,
)
from taskloom.runs.analysis.cell_states import UNVERIFIED
from taskloom.runs.analysis.contrasts import ONE_RUN, Contrast, Scores, Values
from taskloom.runs.analysis.influence import NO_INFLUENCE, ExampleInfluence, gathered, joined_texts
from taskloom.runs.analysis.metrics import asking, fits, light_metric, width_of

OVERALL = "overall"
#: Splits that can be scored. Predictions are kept for dev and test.
SPLITS = ("dev", "test", "train")
#: Returns the recorded epochs of a cell.
Epochs = Callable[[str], Sequence[EpochRecord]]

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


def once(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Compute a method once for each object and arguments; the results live as long as the object."""

    @wraps(method)
    def cached(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        results = vars(self).setdefault(f"{method.__name__}, computed", {})
        key = args, *kwargs.items()
        if key not in results:
            results[key] = method(self, *args, **kwargs)
        computed: T = results[key]
        return computed

    return cached


@dataclass(frozen=True)
class Constant:
    """The best constant prediction for a task and its score, which any model that has learned something exceeds."""

    task: str
    says: str
    score: float


@dataclass(frozen=True)
class Results:
    """A grid's finished cells, by row and seed, and their stored scores.

    The scores of further metrics are computed from the stored predictions. With a ``metric`` all scores are, for the
    tasks whose labels it accepts, and further metrics are ignored. A ``split`` applies to all rows; without one each
    row shows dev, or the split that the grid states for it. ``epochs`` returns the recorded epochs of a cell.
    ``broken`` are the columns of further metrics that cannot be computed, each with the reason.
    """

    grid: GridRecord
    registry: Path
    metric: Metric | None = None
    split: str = ""
    epochs: Epochs = lambda cell: ()
    broken: dict[str, str] = field(default_factory=dict, init=False)
    _stored: dict[tuple[str, str], StoredScores | None] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Treat a finished cell as failed if its score files are not those that it stored."""
        cells = tuple(replace(row, cell=self._verified(row.label, row.cell)) for row in self.grid.cells)
        object.__setattr__(self, "grid", replace(self.grid, cells=cells))

    def _verified(self, label: str, cell: CellRecord) -> CellRecord:
        split = self.split_of(label)
        if cell.status != "finished" or split == "train" or (cell.id, split) in self._stored:
            return cell
        try:
            stored = find_scores(self.registry, cell, split)
            if stored is not None:
                for task, facts in stored.tasks.items():
                    check_examples(stored, task, self.examples(facts.examples))
        except RegistryError as error:
            return replace(cell, status="failed", reason=f"{UNVERIFIED}: {error}")
        self._stored[cell.id, split] = stored
        return cell

    @cached_property
    def rows(self) -> tuple[str, ...]:
        """The labels, in the order of the grid."""
        return tuple(dict.fromkeys(cell.label for cell in self.grid.cells))

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({cell.seed for cell in self.grid.cells}))

    @cached_property
    def finished(self) -> dict[tuple[str, int], CellRecord]:
        """Label and seed → cell, for finished cells."""
        return {(row.label, row.seed): row.cell for row in self.grid.cells if row.cell.status == "finished"}

    def cells_of(self, label: str) -> list[CellRecord]:
        """The finished cells of a row."""
        return [cell for (row, _), cell in self.finished.items() if row == label]

    @property
    def baseline(self) -> str | None:
        stated: str | None = self.grid.spec.get("baseline")
        return stated

    @property
    def margin(self) -> float | None:
        """The grid's margin: differences within it count as equal."""
        return None if self.grid.spec.get("margin") is None else float(self.grid.spec["margin"])

    def stated(self, label: str) -> Mapping[str, Any]:
        """The entry of a row in the grid's JSON."""
        return self._stated.get(label, {})

    @cached_property
    def _stated(self) -> dict[str, dict[str, Any]]:
        return {cell["label"]: cell for cell in self.grid.spec.get("cells") or ()}

    def split_of(self, label: str) -> str:
        """The split that a row shows: the requested one, or the one that the grid states for the row, or dev."""
        return self.split or str(self.stated(label).get("split", "dev"))

    @cached_property
    def shows_test(self) -> bool:
        """Whether any row shows test scores."""
        return any(self.split_of(label) == "test" and cell.test for (label, _), cell in self.finished.items())

    @cached_property
    def further(self) -> dict[str, tuple[str, Metric | None]]:
        """The columns of further metrics: ``task:metric`` → task and metric, None if it cannot be loaded."""
        further: dict[str, tuple[str, Metric | None]] = {}
        for column, (task, spec) in self.grid.further.items() if self.metric is None else ():
            try:
                further[column] = task, light_metric(spec)
            except TaskloomError as error:
                further[column], self.broken[column] = (task, None), str(error)
        return further

    def with_further(self, columns: Iterable[str]) -> Iterator[str]:
        """Columns, tasks among them, each followed by the task's further metrics."""
        for column in columns:
            yield column
            yield from (name for name, (task, _) in self.further.items() if task == column)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns in which some finished cell has a score."""
        scored = {name for (row, _), cell in self.finished.items() for name in self.final_scores(row, cell)}
        tasks = dict.fromkeys(task for cell in self.finished.values() for task in cell.spec.get("tasks", {}))
        return tuple(column for column in (*self.with_further(tasks), OVERALL) if column in scored)

    @cached_property
    def overall(self) -> dict[str, Overall]:
        """Each row's rule for its overall score; scores of another metric are not normalised."""
        rules = {row.label: Overall.of(row.cell.spec) for row in self.grid.cells}
        return rules if self.metric is None else {row: replace(rule, normalised=False) for row, rule in rules.items()}

    def final_scores(self, label: str, cell: CellRecord) -> dict[str, float]:
        """A finished cell's scores on the split that its row shows."""
        split = self.split_of(label)
        computed = self._computed_scores(cell.id, split)
        if self.metric is None:
            return {**self._recorded_scores(cell, split), **computed}
        overall = self.overall[label].score(computed, ())
        return computed if overall is None else {**computed, OVERALL: overall}

    def _recorded_scores(self, cell: CellRecord, split: str) -> dict[str, float]:
        """A finished cell's scores on a split in the ledger; train scores are of a sample after the best epoch."""
        if split == "train":
            last = len(cell.spec.get("stages", ())) - 1
            epochs = [epoch for epoch in self.epochs(cell.id) if (epoch.stage, epoch.epoch) == (last, cell.best_epoch)]
            return epochs[0].train if epochs else {}
        return cell.scores if split == "dev" else cell.test

    def _computed(self, stored: StoredScores) -> dict[str, tuple[str, Metric]]:
        """The columns that are computed from stored predictions, each with its task and metric."""
        wanted = self.further if self.metric is None else {task: (task, self.metric) for task in stored.tasks}
        return {
            column: (task, metric)
            for column, (task, metric) in wanted.items()
            if metric is not None and task in stored.tasks and fits(metric, stored.tasks[task].classes)
        }

    @once
    def _computed_scores(self, cell: str, split: str) -> dict[str, float]:
        """A cell's scores by metrics other than the run's own; NaN where a metric fails."""
        scores: dict[str, float] = {}
        if (stored := self.stored(cell, split)) is None:
            return scores
        for column, (task, metric) in self._computed(stored).items():
            predicted, expected = stored.read(task, "predicted"), self.examples(stored.tasks[task].examples).expected
            try:
                with asking(metric):
                    scores[column] = float(metric(predicted, expected))
            except PluginError as error:
                scores[column], self.broken[column] = nan, str(error)
        return scores

    @cached_property
    def classes(self) -> dict[str, int]:
        """The tasks with stored predictions → their number of classes, 0 for values."""
        return {task: facts.classes for *_, task, facts in self.facts}

    def row(self, label: str) -> Values:
        """The weights [R] that select one row; contrasts are sums of them."""
        weights = np.zeros(len(self.rows))
        weights[self.row_index[label]] = 1.0
        return weights

    @cached_property
    def row_index(self) -> dict[str, int]:
        """Label → index in :attr:`rows`."""
        return {label: index for index, label in enumerate(self.rows)}

    def difference(self, column: str, label: str, other: str) -> Contrast:
        """One row less another, both of the grid."""
        return self._differences(column, other)[self.row_index[label]] or Contrast(why=ONE_RUN)

    @once
    def _differences(self, column: str, other: str) -> list[Contrast | None]:
        return self.scores(column).differences(self.row_index[other])

    def mean_difference(self, column: str, pairs: Sequence[tuple[str, str]]) -> Contrast:
        """The mean difference, first less second, over pairs of rows."""
        if missing := [row for pair in pairs for row in pair if row not in self.row_index]:
            why = "is stale and left out" if missing[0] in self.grid.stale else "was not run"
            return Contrast(why=f"{missing[0]!r} {why}")
        if len(pairs) == 1:
            return self.difference(column, *pairs[0])
        weights = np.zeros(len(self.rows))
        for row, other in pairs:
            weights[self.row_index[row]] += 1 / len(pairs)
            weights[self.row_index[other]] -= 1 / len(pairs)
        return self.scores(column).contrast(weights)

    def why_unscored(self, cell: CellRecord, column: str, split: str) -> str:
        """Why a finished cell has no score on a split."""
        score = cell.spec.get("score", {})
        if split == "test" and not score.get("test"):
            return 'test was not scored; a run with "score": {"test": true} does that'
        if split == "train" and not score.get("train"):
            return 'train was not scored; a run with "score": {"train": 500} does that'
        return f"{column} has no labelled test split" if split == "test" else f"{column} was not measured"

    @cached_property
    def runs(self) -> NDArray[np.int64]:
        """For each row, the index of the first row that is the same run, [R]: a run may have several labels."""
        ids: dict[str, list[tuple[int, str]]] = {}
        for row in self.grid.cells:
            ids.setdefault(row.label, []).append((row.seed, row.cell.id))
        first: dict[tuple[tuple[int, str], ...], int] = {}
        return np.array([first.setdefault(tuple(sorted(ids[label])), index) for index, label in enumerate(self.rows)])

    # Constant predictions and untrained rows

    @cached_property
    def facts(self) -> list[tuple[str, CellRecord, str, TaskFacts]]:
        """Row, finished cell, task and facts, for all stored predictions."""
        return [
            (label, cell, task, facts)
            for (label, _), cell in self.finished.items()
            if (stored := self.stored(cell.id, self.split_of(label))) is not None
            for task, facts in stored.tasks.items()
        ]

    @cached_property
    def rows_of_task(self) -> dict[str, list[str]]:
        """Task → the rows that were scored on the same examples as the first row with that task."""
        first: dict[str, str] = {}
        rows: dict[str, list[str]] = {}
        for label, cell, task, facts in self.facts:
            same = first.setdefault(task, facts.examples) == facts.examples
            if same and np.isfinite(self.final_scores(label, cell).get(task, np.nan)):
                rows.setdefault(task, []).append(label)
        return {task: list(dict.fromkeys(labels)) for task, labels in rows.items()}

    @cached_property
    def floors(self) -> dict[str, Constant]:
        """The best constant prediction for each task that has a score."""
        first = {task: facts for *_, task, facts in reversed(self.facts)}
        constants = {task: self.constant(task, first[task], task) for task in self.rows_of_task}
        return {task: constant for task, constant in constants.items() if constant is not None}

    @once
    def constant(self, task: str, facts: TaskFacts, column: str) -> Constant | None:
        """The best constant prediction for a task or a further metric's column; None if the metric is not available."""
        further = column in self.further
        metric = self.further[column][1] if further else self.metric
        prediction, score = facts.constant, facts.floor
        if metric is not None or score is None:  # another metric, or stored before floors were recorded
            from taskloom.registry.installed.light import own_components

            if metric is None and facts.metric in own_components(Metric.kind) and not further:
                metric = light_metric({"name": facts.metric})
            if metric is None or not fits(metric, facts.classes):
                return None
            try:
                with asking(metric), np.errstate(all="ignore"):
                    prediction, score = metric.best_constant(self.examples(facts.examples).expected, facts.classes)
            except PluginError:
                return None
        if prediction is None or not np.isfinite(score):
            return None
        if not facts.classes:
            return Constant(task, "always the same value", score)
        return Constant(
            task, f"always {facts.called(prediction)!r}" if facts.names else f"always class {prediction:g}", score
        )

    def untrained(self, label: str, column: str) -> bool:
        """Whether a row has learned nothing in a column.

        That is so if every seed predicts a constant, or if the mean score is no better than the best constant
        prediction's. In the overall score, it has to be so in all tasks that count.
        """
        cells, split = self.cells_of(label), self.split_of(label)
        scores = [self.final_scores(label, cell) for cell in cells]
        if column == OVERALL:
            scored = {task for cell_scores in scores for task in cell_scores} - {OVERALL, *self.further}
            tasks = self.overall[label].shares(sorted(scored))
            return bool(tasks) and all(self.untrained(label, task) for task in tasks)
        task = self.further[column][0] if column in self.further else column
        values = [cell_scores[column] for cell_scores in scores if np.isfinite(cell_scores.get(column, np.nan))]
        facts = [stored.tasks.get(task) if (stored := self.stored(cell.id, split)) else None for cell in cells]
        if not values or facts[0] is None or None in facts:
            return False
        if all(self.is_constant(cell.id, split, task) for cell in cells):
            return True
        floor = self.constant(task, facts[0], column)
        return floor is not None and float(np.mean(values)) <= floor.score + 1e-12

    @once
    def is_constant(self, cell: str, split: str, task: str) -> bool:
        """Whether all stored predictions of a cell for a task are the same."""
        stored = self.stored(cell, split)
        return stored is not None and bool(np.ptp(stored.read(task, "predicted")) == 0)

    def width(self, column: str) -> float:
        """The largest difference that a column's metric allows; for the overall score, the tasks' combined."""
        widths: set[float] = set()
        for (label, _), cell in self.finished.items():
            if (stored := self.stored(cell.id, self.split_of(label))) is None:
                continue
            own = {
                task: facts.width if self.metric is None else width_of(self.metric)
                for task, facts in stored.tasks.items()
            }
            own |= {name: width_of(metric) for name, (_, metric) in self.further.items() if metric is not None}
            if column == OVERALL:
                slopes = self._slopes(label, cell, stored)
                widths.add(sum(slope * own.get(task, np.inf) for task, slope in slopes.items()))
            else:
                widths.add(own.get(column, np.inf))
        return max(widths, default=np.inf)

    def _slopes(self, label: str, cell: CellRecord, stored: StoredScores) -> dict[str, float]:
        """The change of a cell's overall score per unit of each task's score."""
        scored = sorted({*self.final_scores(label, cell)} - {OVERALL, *self.further})  # the same order for all cells
        correlations = [name for name, facts in stored.tasks.items() if facts.correlation]
        return self.overall[label].slopes(scored, correlations)

    def stored(self, cell: str, split: str = "dev") -> StoredScores | None:
        """The stored scores of a cell on a split; None if there are none."""
        return self._stored.get((cell, split))

    @once
    def examples(self, key: str) -> ExampleSet:
        """The examples with a key."""
        return load_examples(self.registry, key)

    @once
    def scores(self, column: str) -> Scores:
        """The scores of a task, or ``overall``, with the noise that their common examples cause."""
        shape = len(self.rows), len(self.seeds)
        values = np.full(shape, np.nan)
        influences: dict[tuple[int, int], ExampleInfluence] = {}
        for (label, seed), cell in self.finished.items():
            index = self.row_index[label], self.seeds.index(seed)
            values[index] = self.final_scores(label, cell).get(column, np.nan)
            if np.isfinite(values[index]):
                influences[index] = self._influence(label, cell, column)
        untrained = np.array([self.untrained(label, column) for label in self.rows], np.bool_)
        scores = gathered(values, influences)
        return replace(scores, runs=self.runs, untrained=untrained, width=self.width(column))

    def _influence(self, label: str, cell: CellRecord, column: str) -> "ExampleInfluence":
        """The influence of each example on a cell's score, and which examples those are."""
        split = self.split_of(label)
        stored = self.stored(cell.id, split)
        if stored is None:
            return NO_INFLUENCE
        slopes = self._slopes(label, cell, stored) if column == OVERALL else {column: 1.0}
        tasks = {name: self.further[name][0] if name in self.further else name for name in slopes}
        if not tasks or not {*tasks.values()} <= stored.tasks.keys():
            return NO_INFLUENCE
        try:
            parts = [slope * self._column_influence(cell.id, split, name) for name, slope in slopes.items()]
        except PluginError as error:
            self.broken[column] = str(error)
            return NO_INFLUENCE
        key = tuple((task, stored.tasks[task].examples) for task in tasks.values())
        return ExampleInfluence(key, np.concatenate(parts), self._texts(key))

    @once
    def _texts(self, key: tuple[tuple[str, str], ...]) -> NDArray[np.int64]:
        return joined_texts([self.examples(examples).texts for _, examples in key])

    @once
    def _column_influence(self, cell: str, split: str, column: str) -> Values:
        """The influence of each example on a cell's score in one column, divided by n."""
        stored = self._stored[cell, split]
        assert stored is not None
        task, metric = self._computed(stored).get(column, (column, None))
        examples = self.examples(stored.tasks[task].examples)
        with nullcontext() if metric is None else asking(metric):
            if metric is None:
                influence = stored.read(task, "influence")
            else:
                influence = metric.influence(stored.read(task, "predicted"), examples.expected)
            normed: Values = influence / len(examples.expected)
            return normed
