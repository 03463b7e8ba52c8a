"""All numbers that a page or a figure about a grid shows. Imports no torch."""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean

from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import DATA, EpochRecord
from taskloom.registry.results.scores import TaskFacts
from taskloom.runs.analysis.budget import Budget, budget_of
from taskloom.runs.analysis.claims import Claim, claims_of
from taskloom.runs.analysis.contrasts import Judged
from taskloom.runs.analysis.effects import Effects, effects_of
from taskloom.runs.analysis.errors import Confusion, confusion_of
from taskloom.runs.analysis.influence import largest_group
from taskloom.runs.analysis.predictions import Predictions
from taskloom.runs.analysis.results import OVERALL, Results
from taskloom.runs.analysis.tables import COSTS, Table, TableRequest, differences_to, table_of
from taskloom.runs.grid.data_facts import SplitFacts, label_facts

#: Column → row → the row less the baseline.
Differences = Mapping[str, Mapping[str, Judged]]
#: x and y of the points of a line.
Line = tuple[tuple[float, float], ...]
#: Quantities of the learning curves; all other charts are diagnostics.
SCORE, TRAIN, LOSS = "score", "train", "train loss"
#: That of the budget chart, whose lines go over numbers of trials.
BEST = "expected best score"
#: Recorded step by step; the steps of an epoch are averaged into this many points.
COSINE, POINTS = "cosine", 10


@dataclass(frozen=True)
class Chart:
    """One figure over the epochs, or over numbers of trials, a line for each row: the mean over its finished seeds.

    ``what`` is the quantity drawn, ``about`` a task, a pair of tasks or ""; ``train`` has the same lines for the
    training data, where they are known. ``stages`` are the positions at which a stage ends, ``bands`` the low and the
    high ends of the ranges of lines that have them.
    """

    what: str
    about: str
    lines: Mapping[str, Line]
    train: Mapping[str, Line]
    stages: tuple[float, ...] = ()
    bands: Mapping[str, tuple[Line, Line]] = field(default_factory=dict)


@dataclass(frozen=True)
class Overview:
    """All numbers of a grid that has a finished cell.

    ``baseline`` is the grid's, or its first row that has a result. ``columns`` are those of the table that are scores.
    ``history`` has the epochs of each finished cell, ``budget`` is that of a tuned grid whose trials are at hand.
    """

    results: Results
    table: Table
    baseline: str
    columns: tuple[str, ...]
    claims: tuple[Claim, ...]
    history: Mapping[str, tuple[EpochRecord, ...]]
    budget: Budget | None = None

    @cached_property
    def effects(self) -> Effects:
        return effects_of(self.results, self.table.primary)

    @property
    def margin(self) -> float | None:
        """The grid's margin: differences within it count as equal."""
        return self.table.margin

    @cached_property
    def differences(self) -> Differences:
        """The table's differences, or those to ``baseline`` if the table's baseline has no result."""
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
        others = [label for label, mean in means.items() if mean is not None and label != self.baseline]
        return self.baseline, *sorted(others, key=lambda label: -(means[label] or 0.0))

    @cached_property
    def charts(self) -> list[Chart]:
        """Charts of scores, losses and their metrics, conflicts between tasks, and other gradient diagnostics."""
        points_of: dict[tuple[str, str], dict[str, dict[float, list[float]]]] = {}
        for (label, _), cell in self.results.finished.items():
            for epoch in self.history[cell.id]:
                for quantity, about, x, figure in _figures(epoch, self._epochs[epoch.stage, epoch.epoch]):
                    if math.isfinite(figure):
                        points = points_of.setdefault((quantity, about), {}).setdefault(label, {})
                        points.setdefault(x, []).append(figure)
        lines = {
            key: {label: tuple((x, fmean(points[x])) for x in sorted(points)) for label, points in rows.items()}
            for key, rows in points_of.items()
        }
        pairs = itertools.pairwise(self._epochs.items())
        ends = tuple((x + y) / 2 for ((before, _), x), ((after, _), y) in pairs if before != after)
        return [
            Chart(quantity, about, chart_lines, lines.get((TRAIN, about), {}) if quantity == SCORE else {}, ends)
            for (quantity, about), chart_lines in lines.items()
            if quantity != TRAIN
        ]

    @cached_property
    def _epochs(self) -> dict[tuple[int, int], int]:
        """Stage and epoch → position among all epochs."""
        epochs = sorted({(epoch.stage, epoch.epoch) for history in self.history.values() for epoch in history})
        first = 0 if epochs and epochs[0][1] == 0 else 1
        return {epoch_key: number for number, epoch_key in enumerate(epochs, start=first)}

    @cached_property
    def budget_chart(self) -> Chart | None:
        """The chart of the budget: what each row scores at best, over the numbers of trials."""
        if self.budget is None:
            return None
        lines, bands = dict[str, Line](), dict[str, tuple[Line, Line]]()
        for row in self.budget.rows:
            lines[row.row] = tuple((best.trials, best.expected) for best in row.curve)
            low, high = (tuple((best.trials, getattr(best, end)) for best in row.curve) for end in ("low", "high"))
            bands[row.row] = low, high
        return Chart(BEST, self.budget.column, lines, {}, bands=bands)

    def confusions(self, label: str) -> Iterator[Confusion]:
        """The confusion matrix of a row for each task whose predictions are stored."""
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
    def data(self) -> list[SplitFacts]:
        """What the data hold: as the last run found them, and of other scored splits what their stored examples say."""
        kept: dict[tuple[str, str, str], TaskFacts] = {}
        for (label, _), cell in self.results.finished.items():
            split = self.results.split_of(label)
            if (stored := self.results.stored(cell.id, split)) is not None:
                kept |= {(task, split, facts.examples): facts for task, facts in stored.tasks.items()}
        data = [SplitFacts.of_record(record) for record in self.results.grid.spec.get(DATA, ())]
        here = {(facts.task, facts.split) for facts in data}
        for (task, split, key), facts in kept.items():
            if (task, split) in here:
                continue
            examples = self.results.examples(key)
            labels = label_facts(examples.expected, facts.classes, facts.names)
            shared, _ = largest_group(examples.texts)
            constant, seen = facts.floor, facts.seen
            data.append(
                SplitFacts(task, split, len(examples.ids), constant=constant, shared=shared, seen=seen, **labels)
            )
        return data

    @property
    def environment(self) -> dict[str, Counter[str]]:
        """Devices and versions → the number of cells with each."""
        counts: dict[str, Counter[str]] = {}
        for cell in {row.cell.id: row.cell for row in self.results.grid.cells}.values():
            facts = {**({"device": cell.device} if cell.device else {}), **cell.versions}
            for name, version in facts.items():
                counts.setdefault(str(name), Counter())[str(version)] += 1
        return counts


def overview_of(results: Results, ledger: Ledger) -> Overview:
    """The overview of a grid with at least one finished cell."""
    grid = results.grid
    history = {cell.id: ledger.epochs(cell.id) for cell in results.finished.values()}
    table = table_of(results)
    if not {*table.columns} - {*COSTS}:  # a table of costs only: a page has scores
        table = table_of(results, TableRequest(columns=(*table.columns, OVERALL)))
    scored = [row for row in results.rows if any(label == row for label, _ in results.finished)]
    baseline = results.baseline
    return Overview(
        results,
        table,
        baseline if baseline is not None and baseline in scored else scored[0],
        tuple(column for column in table.columns if column not in COSTS),
        tuple(claims_of(results, table, ledger.claims(grid.name))),
        history,
        budget_of(ledger, grid),
    )


def _figures(epoch: EpochRecord, number: int) -> Iterator[tuple[str, str, float, float]]:
    """The figures of an epoch: quantity, task or pair of tasks, position, figure."""
    for quantity, by_task in ((SCORE, epoch.scores), (TRAIN, epoch.train), (LOSS, epoch.losses)):
        yield from ((quantity, task, number, figure) for task, figure in by_task.items())
    points = epoch.diagnostics.get("points", ())  # spread evenly over the steps
    for about, figures in (*epoch.metrics.items(), *epoch.diagnostics.get("pairs", {}).items()):
        yield from (
            (quantity, about, number, figure)
            for quantity, figure in figures.items()
            if quantity != COSINE or not points
        )
    for point_index, (_, cosines) in enumerate(points):
        x = number - 1 + (POINTS * point_index // len(points) + 0.5) / POINTS
        yield from ((COSINE, pair, x, figure) for pair, figure in cosines.items())
    for quantity, figure in epoch.diagnostics.items():
        if isinstance(figure, int | float):
            yield quantity, "", number, figure
