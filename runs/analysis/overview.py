"""Everything that a page or a figure about a grid shows, as numbers. No torch."""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import EpochRecord
from taskloom.runs.analysis.claims import Claim, claims_of
from taskloom.runs.analysis.contrasts import Judged
from taskloom.runs.analysis.effects import Effects, effects_of
from taskloom.runs.analysis.errors import Confusion, confusion_of
from taskloom.runs.analysis.predictions import Predictions
from taskloom.runs.analysis.results import OVERALL, Results
from taskloom.runs.analysis.tables import COSTS, Table, Wanted, differences_to, table_of

#: Column → row → the row less the baseline.
Differences = Mapping[str, Mapping[str, Judged]]
#: x and y of the points of a line.
Line = tuple[tuple[float, float], ...]
#: What charts show of learning; the others are diagnostics.
SCORE, TRAIN, LOSS = "score", "train", "train loss"
#: It is known step by step; the steps of an epoch are gathered in so many points.
COSINE, POINTS = "cosine", 10


@dataclass(frozen=True)
class Chart:
    """One figure over the epochs, a line for each row: the mean over its finished seeds.

    ``about`` is a task, a pair of tasks or "", ``what`` says what is drawn; ``train`` are the same lines for the
    training data, where those are known. ``stages`` are the positions at which a stage ends.
    """

    what: str
    about: str
    lines: Mapping[str, Line]
    train: Mapping[str, Line]
    stages: tuple[float, ...]


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

    @cached_property
    def effects(self) -> Effects:
        return effects_of(self.results, self.table.primary)

    @property
    def margin(self) -> float | None:
        """Differences below it are of no account, says the grid."""
        return self.table.margin

    @cached_property
    def differences(self) -> Differences:
        """The table's, or where its baseline has no result, those to the row that stands in for it."""
        if self.baseline == self.table.baseline:
            return self._by_column(self.table.differences)
        return self.against(self.baseline)

    def against(self, baseline: str) -> Differences:
        """Each row less a baseline, judged as the table judges."""
        return self._by_column(differences_to(self.results, baseline))

    def _by_column(self, judged: Mapping[tuple[str, str], Judged]) -> Differences:
        columns: dict[str, dict[str, Judged]] = {column: {} for column in self.columns}
        for (row, column), difference in judged.items():
            if column in columns:
                columns[column][row] = difference
        return columns

    @cached_property
    def ranked(self) -> tuple[str, ...]:
        """The rows that have a result: the baseline first, then the others from the best to the worst."""
        means = {
            row.label: row.figures[self.table.primary].mean
            for row in self.table.rows
            if self.table.primary in row.figures
        }
        found = [label for label, mean in means.items() if mean is not None and label != self.baseline]
        return self.baseline, *sorted(found, key=lambda label: -(means[label] or 0.0))

    @cached_property
    def charts(self) -> list[Chart]:
        """Scores, losses and what they report, conflicts between tasks, and what else was seen of the gradients."""
        found: dict[tuple[str, str], dict[str, dict[float, list[float]]]] = {}
        for (label, _), cell in self.results.finished.items():
            for epoch in self.history[cell.id]:
                for what, about, x, value in _figures(epoch, self._epochs[epoch.stage, epoch.epoch]):
                    if math.isfinite(value):
                        points = found.setdefault((what, about), {}).setdefault(label, {})
                        points.setdefault(x, []).append(value)
        lines = {
            key: {label: tuple((x, fmean(points[x])) for x in sorted(points)) for label, points in rows.items()}
            for key, rows in found.items()
        }
        pairs = itertools.pairwise(self._epochs.items())
        ends = tuple((x + y) / 2 for ((before, _), x), ((after, _), y) in pairs if before != after)
        return [
            Chart(what, about, each, lines.get((TRAIN, about), {}) if what == SCORE else {}, ends)
            for (what, about), each in lines.items()
            if what != TRAIN
        ]

    @cached_property
    def _epochs(self) -> dict[tuple[int, int], int]:
        """Stage and epoch → its number among all epochs."""
        found = sorted({(epoch.stage, epoch.epoch) for each in self.history.values() for epoch in each})
        first = 0 if found and found[0][1] == 0 else 1
        return {place: number for number, place in enumerate(found, start=first)}

    def confusions(self, label: str) -> Iterator[Confusion]:
        """What a row predicted for what, task by task, where its predictions are stored."""
        cells = [cell for (row, _), cell in self.results.finished.items() if row == label]
        split = self.results.split_of(label)
        stored = {cell.id: kept.tasks for cell in cells if (kept := self.results.stored(cell.id, split))}
        cells = [cell for cell in cells if cell.id in stored]
        for task in cells[0].spec["tasks"] if cells else ():
            facts = stored[cells[0].id].get(task)
            same = [cell for cell in cells if stored[cell.id].get(task) == facts]
            if facts:
                yield confusion_of(Predictions.load(self.results.registry, task, same, split))

    @property
    def environment(self) -> dict[str, Counter[str]]:
        """Devices and versions, each with the number of cells that had it."""
        found: dict[str, Counter[str]] = {}
        for cell in {place.cell.id: place.cell for place in self.results.grid.cells}.values():
            facts = {**({"device": cell.device} if cell.device else {}), **cell.versions}
            for name, value in facts.items():
                found.setdefault(str(name), Counter())[str(value)] += 1
        return found


def overview_of(results: Results, ledger: Ledger) -> Overview:
    """All that is known of a grid of which at least one cell is finished."""
    grid = results.grid
    history = {cell.id: ledger.epochs(cell.id) for cell in results.finished.values()}
    table = table_of(results)
    if not {*table.columns} - {*COSTS}:  # a table of costs only: a page has scores
        table = table_of(results, Wanted(columns=(*table.columns, OVERALL)))
    scored = [row for row in results.rows if any(label == row for label, _ in results.finished)]
    baseline = results.baseline
    return Overview(
        results,
        table,
        baseline if baseline is not None and baseline in scored else scored[0],
        tuple(column for column in table.columns if column not in COSTS),
        tuple(claims_of(results, table, ledger.claims(grid.name))),
        history,
    )


def _figures(epoch: EpochRecord, number: int) -> Iterator[tuple[str, str, float, float]]:
    """All that an epoch says: what, of which task or pair of tasks, at which position, the value."""
    for what, found in ((SCORE, epoch.scores), (TRAIN, epoch.train), (LOSS, epoch.losses)):
        yield from ((what, task, number, value) for task, value in found.items())
    points = epoch.diagnostics.get("points", ())  # spread evenly over the steps
    for about, figures in (*epoch.metrics.items(), *epoch.diagnostics.get("pairs", {}).items()):
        yield from ((what, about, number, value) for what, value in figures.items() if what != COSINE or not points)
    for place, (_, cosines) in enumerate(points):
        x = number - 1 + (POINTS * place // len(points) + 0.5) / POINTS
        yield from ((COSINE, pair, x, value) for pair, value in cosines.items())
    for what, value in epoch.diagnostics.items():
        if isinstance(value, int | float):
            yield what, "", number, value
