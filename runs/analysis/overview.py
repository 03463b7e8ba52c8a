"""Everything that a page or a figure about a grid shows, as numbers. No torch."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskloom.core.errors import TaskloomError
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import EpochRecord, GridRecord
from taskloom.runs.analysis.claims import Claim, claims_of
from taskloom.runs.analysis.contrasts import Contrast, Judged, judge
from taskloom.runs.analysis.effects import Effects, effects_of
from taskloom.runs.analysis.results import OVERALL, Results
from taskloom.runs.analysis.tables import COSTS, Table, Wanted, table_of

#: Column → row → the row less the baseline.
Differences = Mapping[str, Mapping[str, Judged]]
#: x and y of the points of a line.
Line = tuple[tuple[float, float], ...]
#: Bins that values are counted in, for a table of what was predicted for what.
BINS = 5


@dataclass(frozen=True)
class Chart:
    """One figure over the epochs, a line for each row: the mean over its seeds.

    ``about`` is a task, a pair of tasks or "", ``what`` says what is drawn; ``train`` are the same lines for the
    training data, where those are known. ``stages`` are the positions at which a stage ends.
    """

    what: str
    about: str
    lines: Mapping[str, Line]
    train: Mapping[str, Line]
    stages: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Confusion:
    """What a row predicted for what, over all its seeds: ``counts`` [expected, predicted]; values are in bins."""

    label: str
    task: str
    names: tuple[str, ...]
    counts: NDArray[np.int64]

    @property
    def worst(self) -> list[tuple[str, str, int, int]]:
        """The most frequent errors: expected, predicted, how often, of how many that are expected so."""
        wrong = self.counts - np.diag(np.diag(self.counts))
        order = np.argsort(-wrong, axis=None, kind="stable")[:3]
        places = [divmod(int(place), len(self.names)) for place in order]
        totals = self.counts.sum(1)
        return [(self.names[i], self.names[j], int(wrong[i, j]), int(totals[i])) for i, j in places if wrong[i, j]]


@dataclass(frozen=True)
class Overview:
    """A grid with a finished cell, and all that is known of it.

    ``baseline`` is the grid's, or its first row that has a result. ``columns`` are those of the table that are scores.
    ``history`` has the epochs of each finished cell.
    """

    results: Results
    table: Table
    baseline: str
    columns: tuple[str, ...]
    claims: tuple[Claim, ...]
    history: Mapping[str, tuple[EpochRecord, ...]]

    @property
    def primary(self) -> str:
        """The column that rows are judged by first."""
        return self.table.primary

    @cached_property
    def effects(self) -> Effects:
        return effects_of(self.results, self.primary)

    @property
    def margin(self) -> float | None:
        """Differences below it are of no account, says the grid."""
        return self.results.grid.spec.get("margin")

    @cached_property
    def differences(self) -> Differences:
        return self.against(self.baseline)

    def against(self, baseline: str) -> Differences:
        """Each row less a baseline: the primary column's differences are one family, all others' a second one."""
        found: dict[str, dict[str, Judged]] = {column: {} for column in self.columns}
        place = self.results.rows.index(baseline)
        for family in ([self.primary], [column for column in self.columns if column != self.primary]):
            contrasts: dict[tuple[str, str], Contrast] = {}
            for column in family:
                each = zip(self.results.rows, self.results.scores(column).differences(place), strict=True)
                contrasts |= {(column, row): contrast for row, contrast in each if contrast is not None}
            for (column, row), judged in zip(contrasts, judge([*contrasts.values()], self.margin), strict=True):
                found[column][row] = judged
        return found

    @cached_property
    def ranked(self) -> tuple[str, ...]:
        """The rows that have a result: the baseline first, then the others from the best to the worst."""
        means = {row.label: row.figures[self.primary].mean for row in self.table.rows if self.primary in row.figures}
        found = [label for label, mean in means.items() if mean is not None and label != self.baseline]
        return self.baseline, *sorted(found, key=lambda label: -(means[label] or 0.0))

    @cached_property
    def learning(self) -> list[Chart]:
        """Scores and train losses of each task, epoch by epoch."""
        tasks = [column for column in self.columns if column != OVERALL]
        names = [*tasks, *([OVERALL] if OVERALL in self.columns else [])]
        scores = [self._chart("score", name, _of("scores", name), _of("train", name)) for name in names]
        trained = dict.fromkeys(name for epochs in self.history.values() for epoch in epochs for name in epoch.losses)
        losses = [self._chart("train loss", name, _of("losses", name)) for name in trained]
        return [chart for chart in [*scores, *losses] if chart.lines]

    @cached_property
    def diagnostics(self) -> list[Chart]:
        """Margins and whatever else losses report, conflicts between tasks, and what was seen of the gradients."""
        epochs = [epoch for each in self.history.values() for epoch in each]
        metrics = dict.fromkeys(
            (task, name) for epoch in epochs for task in epoch.metrics for name in epoch.metrics[task]
        )
        charts = [self._chart(name, task, _of("metrics", task, name)) for task, name in metrics]
        return [*charts, *self.conflicts, *self._scalars(epochs)]

    @cached_property
    def conflicts(self) -> list[Chart]:
        """For each pair of tasks the share of steps with a conflict, and the mean cosine of their gradients."""
        epochs = [epoch for each in self.history.values() for epoch in each]
        pairs = dict.fromkeys(pair for epoch in epochs for pair in epoch.diagnostics.get("pairs", {}))
        return [
            chart
            for name in ("conflicts", "cosine")
            for pair in pairs
            if (chart := self._chart(name, pair, _of("diagnostics", "pairs", pair, name))).lines
        ]

    def _scalars(self, epochs: Sequence[EpochRecord]) -> list[Chart]:
        names = dict.fromkeys(
            name for epoch in epochs for name, value in epoch.diagnostics.items() if isinstance(value, int | float)
        )
        return [self._chart(name, "", _of("diagnostics", name)) for name in names]

    def _chart(
        self,
        what: str,
        about: str,
        read: Callable[[EpochRecord], float | None],
        train: Callable[[EpochRecord], float | None] | None = None,
    ) -> Chart:
        places = self._epochs
        ends = [(places[one] + places[other]) / 2 for one, other in itertools.pairwise(places) if one[0] != other[0]]
        return Chart(what, about, self._lines(read), self._lines(train) if train else {}, tuple(ends))

    @cached_property
    def _epochs(self) -> dict[tuple[int, int], int]:
        """Stage and epoch → its number among all epochs."""
        found = sorted({(epoch.stage, epoch.epoch) for each in self.history.values() for epoch in each})
        first = 0 if found and found[0][1] == 0 else 1
        return {place: number for number, place in enumerate(found, start=first)}

    def _lines(self, read: Callable[[EpochRecord], float | None]) -> dict[str, Line]:
        """Row → the means over its finished seeds."""
        found: dict[str, dict[int, list[float]]] = {}
        for (label, _), cell in self.results.finished.items():
            for epoch in self.history.get(cell.id, ()):
                value = read(epoch)
                if value is not None and math.isfinite(value):
                    points = found.setdefault(label, {})
                    points.setdefault(self._epochs[epoch.stage, epoch.epoch], []).append(float(value))
        return {label: tuple((x, fmean(points[x])) for x in sorted(points)) for label, points in found.items()}

    def confusions(self, label: str) -> Iterator[Confusion]:
        """What a row predicted for what, task by task, where its predictions are stored."""
        cells = [cell for (row, _), cell in self.results.finished.items() if row == label]
        stored = [found for cell in cells if (found := self.results.stored(cell.id)) is not None]
        for task in dict.fromkeys([*self.columns, *(task for each in stored for task in each.tasks)]):
            known = [each for each in stored if task in each.tasks]
            if not known:
                continue
            examples = self.results.examples(known[0].tasks[task].examples)
            known = [each for each in known if each.tasks[task].examples == examples.key]
            predicted = np.stack([each.read(task, "predicted") for each in known])
            yield _confusion(label, task, known[0].tasks[task].classes, examples.expected, predicted)

    @property
    def environment(self) -> dict[str, Counter[str]]:
        """Devices and versions, each with the number of cells that had it."""
        found: dict[str, Counter[str]] = {}
        for cell in {place.cell.id: place.cell for place in self.results.grid.cells}.values():
            facts = {**({"device": cell.device} if cell.device else {}), **cell.versions}
            for name, value in facts.items():
                found.setdefault(str(name), Counter())[str(value)] += 1
        return found


def overview_of(ledger: Ledger, grid: GridRecord) -> Overview:
    """All that is known of a grid; an error if none of its cells is finished."""
    results = Results(grid, ledger.folder)
    if not results.finished:
        raise TaskloomError(f"no cell of {grid.name!r} is finished yet; `taskloom cells {grid.name}` shows why")
    history = {cell.id: ledger.epochs(cell.id) for cell in results.finished.values()}
    table = table_of(results, ledger.epochs)
    if not {*table.columns} - {*COSTS}:  # a table of costs only: a page has scores
        table = table_of(results, ledger.epochs, Wanted(columns=(*table.columns, OVERALL)))
    scored = [row for row in results.rows if any(label == row for label, _ in results.finished)]
    baseline = grid.spec.get("baseline")
    return Overview(
        results,
        table,
        baseline if baseline in scored else scored[0],
        tuple(column for column in table.columns if column not in COSTS),
        tuple(claims_of(results, ledger.claims(grid.name), grid.spec.get("margin"))),
        history,
    )


def _of(field: str, *keys: str) -> Callable[[EpochRecord], float | None]:
    """What an epoch says under these keys of one of its fields."""

    def read(epoch: EpochRecord) -> float | None:
        found: Any = getattr(epoch, field)
        for key in keys[:-1]:
            found = found.get(key, {})
        value: float | None = found.get(keys[-1])
        return value

    return read


def _confusion(
    label: str, task: str, classes: int, expected: NDArray[np.float64], predicted: NDArray[np.float64]
) -> Confusion:
    """Of labels [n] and predictions [S, n]."""
    if classes:
        names = tuple(map(str, range(classes)))
        rows, columns = expected.astype(int), predicted.astype(int)
    else:
        edges = np.linspace(expected.min(), expected.max(), BINS + 1)
        names = tuple(f"{low:.2g}–{high:.2g}" for low, high in itertools.pairwise(edges))
        rows, columns = np.digitize(expected, edges[1:-1]), np.digitize(predicted, edges[1:-1])
    counts = np.zeros((len(names), len(names)), np.int64)
    np.add.at(counts, (np.broadcast_to(rows, columns.shape), columns), 1)
    return Confusion(label, task, names, counts)
