"""Compare two rows or cells example by example: what flipped, whether the difference is significant, and where."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import nan
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, betaincinv

from taskloom.core.data import Split
from taskloom.core.errors import RegistryError
from taskloom.registry.results.records import METRICS, GridCell, GridRecord
from taskloom.registry.results.scores import TaskFacts
from taskloom.runs.analysis.checks import checks_of
from taskloom.runs.analysis.contrasts import ALPHA, Contrast, Judged, Scores, Values, judge
from taskloom.runs.analysis.errors import Example, bin_edges, example_at
from taskloom.runs.analysis.influence import ExampleInfluence, gathered, largest_group
from taskloom.runs.analysis.metrics import metric_class
from taskloom.runs.analysis.predictions import Predictions, Subject, Texts, in_units, texts_of
from taskloom.runs.analysis.results import Epochs, Results


@dataclass(frozen=True)
class McNemar:
    """McNemar's exact test for two models: of the examples that exactly one of them got right, is half A's?"""

    only_a: int
    only_b: int
    examples: int

    @property
    def p(self) -> float:
        """The two-sided p value, of a binomial with probability 1/2."""
        return min(1.0, 2 * float(bdtr(min(self.only_a, self.only_b), self.only_a + self.only_b, 0.5)))

    def interval(self, alpha: float = ALPHA) -> tuple[float, float]:
        """Clopper and Pearson's interval of accuracy, B less A, given how many differ; excludes 0 iff p < alpha."""
        a, b = self.only_a, self.only_b
        low = float(betaincinv(b, a + 1, alpha / 2)) if b else 0.0
        high = float(betaincinv(b + 1, a, 1 - alpha / 2)) if a else 1.0
        share = (a + b) / self.examples
        return share * (2 * low - 1), share * (2 * high - 1)


@dataclass(frozen=True)
class Stratum:
    """Scores on a stratum of the examples: a class, or labels or numbers of words from ``low`` to ``high``.

    ``a`` and ``b`` are shares of right classes, or mean absolute errors of values.
    """

    low: float
    high: float
    examples: int
    a: float
    b: float
    judged: Judged


@dataclass(frozen=True, eq=False)
class TaskComparison:
    """A and B on one task, their models paired; differences are B less A.

    ``scores`` are means over seeds. Contrasts are computed from ``results``, where A and B have these ``labels``.
    """

    a: Predictions
    b: Predictions
    scores: tuple[float, float]
    texts: Texts
    results: Results
    labels: tuple[str, str]

    @cached_property
    def contrast(self) -> Contrast:
        """B less A on the task's metric."""
        return self.results.difference(self.a.task, self.labels[1], self.labels[0])

    @cached_property
    def mcnemar(self) -> McNemar | None:
        """McNemar's test where it applies: two single models, accuracy, and no two examples share a text."""
        examples = len(self.a.expected)
        if len(self.a.predicted) > 1 or largest_group(self.a.examples.texts)[0]:
            return None
        metric = metric_class(self.a.facts.metric)
        if metric is None or not metric.counts_right:
            return None
        only_a, only_b = (self.a.right & ~self.b.right).sum(), (self.b.right & ~self.a.right).sum()
        return McNemar(int(only_a), int(only_b), examples)

    @property
    def of(self) -> Predictions:
        """The predictions of A; facts and examples are the same for both."""
        return self.a

    @property
    def by_label(self) -> tuple[Stratum, ...]:
        """A and B on each class, or on bins of values."""
        expected = self.a.expected
        edges = np.arange(self.a.facts.classes + 1) if self.a.facts.classes else bin_edges(expected)
        return self._strata(np.digitize(expected, edges[1:-1]), expected)

    @property
    def by_length(self) -> tuple[Stratum, ...]:
        """A and B on quarters of the examples by number of words, ties kept together; empty if texts are unknown."""
        if self.texts.rows is None:
            return ()
        lengths = np.array([sum(len(text.split()) for text in row) for row in self.texts.rows])
        return self._strata(np.searchsorted(np.quantile(lengths, [0.25, 0.5, 0.75]), lengths), lengths)

    def flipped(self, limit: int, *, back: bool = False) -> tuple[int, tuple[Example, ...]]:
        """Count the examples that B gets right (values: less wrong) in most seeds and A does not, and list the first.

        ``back`` swaps A and B. Those that flipped in most seeds come first, then those whose label gained most
        probability, or whose error shrank most.
        """
        before, after = (self.b, self.a) if back else (self.a, self.b)
        gain = (before.wrongness - after.wrongness).mean(0)
        flips = (after.right & ~before.right) if before.facts.classes else (after.wrongness < before.wrongness)
        seeds = flips.sum(0)
        chosen = seeds > len(flips) / 2
        order = np.lexsort((-gain, -seeds))
        shown = [
            example_at(index, self.texts, (self.a, self.b), int(seeds[index]), float(gain[index]))
            for index in order[chosen[order]][:limit].tolist()
        ]
        return int(chosen.sum()), tuple(shown)

    @cached_property
    def _measures(self) -> dict[tuple[int, int], Values]:
        """Row and seed index of ``results`` → whether or how far each example is right, [n]."""
        measures = {}
        for (label, seed), cell in self.results.finished.items():
            stored = self.results.stored(cell.id, self.results.split_of(label))
            facts = stored.tasks.get(self.a.task) if stored else None
            if stored and facts and facts.examples == self.a.facts.examples:
                predicted = in_units(stored.read(self.a.task, "predicted"), self.a.expected, facts)
                index = self.results.row_index[label], self.results.seeds.index(seed)
                measures[index] = _measure(predicted, self.a.expected, facts)
        return measures

    def _strata(self, numbers: NDArray[np.int64], values: Values | NDArray[np.int64]) -> tuple[Stratum, ...]:
        """A and B on the examples of each stratum, with the differences judged as one family.

        ``numbers`` and the ``values`` that they group, such as labels or lengths, are [n] each.
        """
        insides = [numbers == number for number in np.unique(numbers)]
        weights = self.results.row(self.labels[1]) - self.results.row(self.labels[0])
        judged = judge([self._scores(inside).contrast(weights) for inside in insides])
        sides = [_measure(side.predicted, side.expected, side.facts) for side in (self.a, self.b)]
        strata = []
        for inside, difference in zip(insides, judged, strict=True):
            low, high = float(values[inside].min()), float(values[inside].max())
            a, b = (float(side[:, inside].mean()) for side in sides)
            strata.append(Stratum(low, high, int(inside.sum()), a, b, difference))
        return tuple(strata)

    def _scores(self, inside: NDArray[np.bool_]) -> Scores:
        """The mean measures over the examples ``inside`` a stratum, and the noise that those examples cause."""
        texts = self.a.examples.texts[inside]
        values = np.full((len(self.results.rows), len(self.results.seeds)), np.nan)
        influences, key = {}, ((self.a.task, self.a.facts.examples),)
        for index, measure in self._measures.items():
            part = measure[inside]
            values[index] = part.mean()
            influences[index] = ExampleInfluence(key, (part - part.mean()) / len(part), texts)
        width = 1.0 if self.a.facts.classes else np.inf  # shares are at most 1 apart; errors of values are unbounded
        return replace(gathered(values, influences), runs=self.results.runs, width=width)


def _measure(predicted: Values, expected: Values, facts: TaskFacts) -> Values:
    """Whether each class is right, or the absolute error of each value, [.., n]."""
    return np.asarray(predicted == expected, np.float64) if facts.classes else np.abs(predicted - expected)


@dataclass(frozen=True)
class FurtherMetric:
    """A and B by a further metric of a task; ``scores`` are means over seeds."""

    column: str
    scores: tuple[float, float]
    contrast: Contrast
    mcnemar: None = None


@dataclass(frozen=True, eq=False)
class Comparison:
    """A and B on all their common tasks, and the differences judged as one family.

    ``seeds`` are those of the pairs of models. ``left`` are tasks on which the two cannot be compared. ``judged``
    are the differences of ``tasks``, then those of ``further`` metrics. ``checks`` are warnings about the two rows.
    """

    a: Subject
    b: Subject
    seeds: tuple[tuple[int, int], ...]
    tasks: tuple[TaskComparison, ...]
    further: tuple[FurtherMetric, ...]
    judged: tuple[Judged, ...]
    left: tuple[str, ...]
    checks: tuple[str, ...]
    split: Split


def compare(
    a: Subject,
    b: Subject,
    registry: Path,
    *,
    folder: Path | None = None,
    split: Split = "dev",
    epochs: Epochs = lambda cell: (),
) -> Comparison:
    """Compare two subjects on their common tasks; texts are read from the data, which may now be in ``folder``."""
    cells = _paired(a, b)
    if all(cell_a.cell.id == cell_b.cell.id for cell_a, cell_b in cells):
        raise RegistryError(f"A ({a.name}) and B ({b.name}) are the same models; give two that differ")
    names, left = _common_tasks(a, b, registry, split)
    if not names:
        raise RegistryError(f"{a.name} and {b.name} have no task with the same examples and metric in common")
    results, label_a, label_b = _results(a, b, cells, registry, split, epochs)
    labels = label_a, label_b

    def means(column: str) -> tuple[float, float]:
        a, b = (
            fmean(results.final_scores(label, pair[side].cell).get(column, nan) for pair in cells)
            for side, label in enumerate(labels)
        )
        return a, b

    tasks = []
    for task in names:
        of_a, of_b = (Predictions.load(registry, task, [pair[side].cell for pair in cells], split) for side in (0, 1))
        texts = texts_of(task, a.spec["tasks"][task]["data"], of_a.examples, folder, split)
        tasks.append(TaskComparison(of_a, of_b, means(task), texts, results, labels))
    further = [
        FurtherMetric(column, means(column), results.difference(column, label_b, label_a))
        for column, (task, _) in results.further.items()
        if task in names
    ]
    seeds = tuple((cell_a.seed, cell_b.seed) for cell_a, cell_b in cells)
    columns: list[TaskComparison | FurtherMetric] = [*tasks, *further]
    tests = [column.mcnemar or column.contrast for column in columns]
    judged = judge([column.contrast for column in columns], results.margin, tests)
    compared = tuple(cell for cell in results.grid.cells if cell.label in (label_a, label_b))
    stale = {label: why for label, why in results.grid.stale.items() if label in labels}
    checks = checks_of(replace(results, grid=replace(results.grid, cells=compared, stale=stale)))
    return Comparison(a, b, seeds, tuple(tasks), tuple(further), tuple(judged), tuple(left), tuple(checks), split)


def _paired(a: Subject, b: Subject) -> list[tuple[GridCell, GridCell]]:
    """Pair cells by seed; two single cells are a pair whatever their seeds."""
    if len(a.cells) == len(b.cells) == 1:
        return [(a.cells[0], b.cells[0])]
    others = {cell.seed: cell for cell in b.cells}
    pairs = [(cell, others[cell.seed]) for cell in a.cells if cell.seed in others]
    if not pairs:
        raise RegistryError(f"{a.name} and {b.name} have no finished seed in common; compare two single cells instead")
    return pairs


def _results(
    a: Subject,
    b: Subject,
    cells: Sequence[tuple[GridCell, GridCell]],
    registry: Path,
    split: Split,
    epochs: Epochs,
) -> tuple[Results, str, str]:
    """The results that contrasts are computed from, and the labels of A and B there.

    Rows of one grid are compared with the seed variance of that grid, and by its margin and further metrics; other
    cells are a grid of their own.
    """
    shared = a.grid is not None and b.grid is not None and a.grid.name == b.grid.name
    if a.grid is not None and shared and len(cells) > 1:
        return Results(a.grid, registry, split=split, epochs=epochs), a.cells[0].label, b.cells[0].label
    relabelled = [
        GridCell(label, number, {}, cell.cell)
        for number, pair in enumerate(cells)
        for label, cell in zip("AB", pair, strict=True)
    ]
    spec = {METRICS: a.grid.spec.get(METRICS, {})} if a.grid is not None and shared else {}
    stale = {
        label: subject.grid.stale[row.label]
        for label, subject in (("A", a), ("B", b))
        for row in subject.cells[:1]
        if subject.grid is not None and row.label in subject.grid.stale
    }
    grid = GridRecord("", spec, "", "", tuple(relabelled), stale=stale)
    return Results(grid, registry, split=split, epochs=epochs), "A", "B"


def _common_tasks(a: Subject, b: Subject, registry: Path, split: Split) -> tuple[list[str], list[str]]:
    """The tasks that both were scored on with the same examples and metric, and all others."""
    of_a, of_b = a.tasks(registry, split), b.tasks(registry, split)
    common = [
        task
        for task, facts in of_a.items()
        if task in of_b and (facts.examples, facts.metric) == (of_b[task].examples, of_b[task].metric)
    ]
    return common, [task for task in {**of_a, **of_b} if task not in common]
