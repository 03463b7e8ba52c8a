"""Two rows or cells, example by example: what flipped, whether the difference is more than noise, and where it is."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import nan
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, betaincinv

from taskloom.core.errors import RegistryError
from taskloom.registry.results.records import CellRecord, GridCell, GridRecord
from taskloom.runs.analysis.contrasts import ALPHA, Contrast, Judged, Scores, Values, Verdict, holm, judge
from taskloom.runs.analysis.errors import RESCALED, Example, bins_of, example_at
from taskloom.runs.analysis.predictions import Predictions, Subject, Texts, best_line, texts_of
from taskloom.runs.analysis.results import Results


@dataclass(frozen=True)
class McNemar:
    """McNemar's exact test for two models: of the examples that one of them alone got right, is half A's?"""

    only_a: int
    only_b: int
    examples: int

    @property
    def p(self) -> float:
        """The two-sided p value, of a binomial with probability 1/2."""
        return min(1.0, 2 * float(bdtr(min(self.only_a, self.only_b), self.only_a + self.only_b, 0.5)))

    def interval(self, alpha: float = ALPHA) -> tuple[float, float]:
        """Of accuracy, B less A: Clopper and Pearson's, given how many differ. It leaves out 0 just where p < alpha."""
        a, b = self.only_a, self.only_b
        low = float(betaincinv(b, a + 1, alpha / 2)) if b else 0.0
        high = float(betaincinv(b + 1, a, 1 - alpha / 2)) if a else 1.0
        share = (a + b) / self.examples
        return share * (2 * low - 1), share * (2 * high - 1)


@dataclass(frozen=True)
class Part:
    """Some examples – those of a class, with labels from ``low`` to ``high``, or with so many words – and their scores.

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
    """A and B on one task; differences are B less A.

    ``judged`` is about the task's metric. ``test`` says by which test; ``mcnemar`` is given for two single models on
    classes, whichever it was. ``better`` and ``worse`` are the examples that B gets right (or nearer) and A does not,
    and the other way round, in most seeds: their number, and the most extreme ones.
    """

    task: str
    metric: str
    names: tuple[str, ...]
    classes: int
    examples: int
    scores: tuple[float, float]
    judged: Judged
    test: str
    mcnemar: McNemar | None
    better: tuple[int, tuple[Example, ...]]
    worse: tuple[int, tuple[Example, ...]]
    by_label: tuple[Part, ...]
    by_length: tuple[Part, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Comparison:
    """A and B on all their common tasks; ``seeds`` are those of the pairs of models."""

    a: Subject
    b: Subject
    seeds: tuple[tuple[int, int], ...]
    tasks: tuple[TaskComparison, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class _Pair:
    """A task with the predictions of A and B, whose models belong together one by one.

    Contrasts are computed from ``results``, where A and B have the weights −1 and 1.
    """

    a: Predictions
    b: Predictions
    results: Results
    weights: Values

    @property
    def task(self) -> str:
        return self.a.task

    @cached_property
    def contrast(self) -> Contrast:
        """B less A on the task's metric."""
        return self.results.scores(self.task).contrast(self.weights)

    @property
    def mcnemar(self) -> McNemar | None:
        if not self.a.facts.classes or len(self.a.predicted) > 1:
            return None
        only_a, only_b = (self.a.right & ~self.b.right).sum(), (self.b.right & ~self.a.right).sum()
        return McNemar(int(only_a), int(only_b), len(self.a.expected))

    @property
    def not_exact(self) -> str:
        """Why McNemar's test does not answer the question; empty if it does."""
        examples, apart = len(self.a.expected), len(np.unique(self.a.examples.cluster))
        if self.a.facts.metric != "accuracy":
            return f"the metric is {self.a.facts.metric}, and not accuracy"
        return f"examples share texts ({apart} of {examples} are independent)" if apart < examples else ""

    @property
    def exact(self) -> McNemar | None:
        """McNemar's test where it answers the question."""
        return None if self.not_exact else self.mcnemar

    @cached_property
    def on_another_scale(self) -> bool:
        return self.a.on_another_scale or self.b.on_another_scale

    @cached_property
    def measures(self) -> dict[tuple[int, int], Values]:
        """Row and seed of ``results`` → how right (of classes) or how wrong (of values) each example is, [n]."""
        found = {}
        for (label, seed), cell in self.results.finished.items():
            stored = self.results.stored(cell.id)
            facts = stored and stored.tasks.get(self.task)
            if stored and facts and facts.examples == self.a.facts.examples:
                predicted = stored.read(self.task, "predicted").astype(np.float64)
                place = self.results.rows.index(label), self.results.seeds.index(seed)
                found[place] = self._measure(predicted)
        return found

    @cached_property
    def sides(self) -> tuple[Values, Values]:
        """The measures of A and of B, [S, n] each."""
        return self._measure(self.a.predicted), self._measure(self.b.predicted)

    def _measure(self, predicted: Values) -> Values:
        expected = self.a.expected
        if self.a.facts.classes:
            return np.asarray(predicted == expected, np.float64)
        values = best_line(predicted, expected) if self.on_another_scale else predicted
        error: Values = np.abs(values - expected)
        return error

    def parts(self, parts: Sequence[tuple[float, float, NDArray[np.bool_]]]) -> tuple[Part, ...]:
        """A and B on parts of the examples, and the differences judged as one family."""
        scores = [self._scores(inside) for *_, inside in parts]
        judged = judge([each.contrast(self.weights) for each in scores])
        found = []
        for (low, high, inside), each in zip(parts, judged, strict=True):
            a, b = (float(side[:, inside].mean()) for side in self.sides)
            found.append(Part(float(low), float(high), int(inside.sum()), a, b, each))
        return tuple(found)

    def _scores(self, inside: NDArray[np.bool_]) -> Scores:
        """The means of the measures over some examples, and for A and B the noise that those examples cause."""
        rows, seeds = len(self.results.rows), len(self.results.seeds)
        _, clusters = np.unique(self.a.examples.cluster[inside], return_inverse=True)
        values = np.full((rows, seeds), np.nan)
        moves = np.zeros((rows * seeds, int(clusters.max()) + 1))
        for (row, seed), measure in self.measures.items():
            part = measure[inside]
            values[row, seed] = part.mean()
            if self.weights[row]:
                moves[row * seeds + seed] = np.bincount(clusters, (part - part.mean()) / len(part))
        of_both = np.flatnonzero(np.repeat(self.weights, seeds))
        shared = np.zeros((rows * seeds, rows * seeds))
        shared[np.ix_(of_both, of_both)] = moves[of_both] @ moves[of_both].T
        return Scores(values, shared.reshape(rows, seeds, rows, seeds), np.zeros(rows, np.int64), moves.shape[1:])


def compare(
    a: Subject, b: Subject, registry: Path, *, only: Sequence[str] = (), limit: int = 10, folder: Path | None = None
) -> Comparison:
    """Compare two subjects on their common tasks, which are one family of tests."""
    cells = _paired(a, b)
    if all(one.cell.id == other.cell.id for one, other in cells):
        raise RegistryError(f"A ({a.name}) and B ({b.name}) are the same models; give two that differ")
    results, label_a, label_b = _results(a, b, cells, registry)
    tasks, notes = _common_tasks(a, b, registry, only)
    weights = results.row(label_b) - results.row(label_a)
    cells_a, cells_b = ([pair[side].cell for pair in cells] for side in (0, 1))
    pairs = [
        _Pair(Predictions.load(registry, task, cells_a), Predictions.load(registry, task, cells_b), results, weights)
        for task in tasks
    ]
    compared = []
    for pair, judged in zip(pairs, _judge(pairs), strict=True):
        texts = texts_of(pair.task, a.spec["tasks"][pair.task]["data"], pair.a.examples, folder)
        scores = _mean_score(cells_a, pair.task), _mean_score(cells_b, pair.task)
        compared.append(_compare(pair, judged, texts, scores, limit))
    return Comparison(a, b, tuple((one.seed, other.seed) for one, other in cells), tuple(compared), tuple(notes))


def _mean_score(cells: Sequence[CellRecord], task: str) -> float:
    return fmean(cell.scores.get(task, nan) for cell in cells)


def _paired(a: Subject, b: Subject) -> list[tuple[GridCell, GridCell]]:
    """The cells that belong together: those of one seed; two single ones whatever their seeds."""
    if len(a.cells) == len(b.cells) == 1:
        return [(a.cells[0], b.cells[0])]
    others = {place.seed: place for place in b.cells}
    pairs = [(place, others[place.seed]) for place in a.cells if place.seed in others]
    if not pairs:
        raise RegistryError(f"{a.name} and {b.name} have no finished seed in common; compare two single cells instead")
    return pairs


def _results(
    a: Subject, b: Subject, cells: Sequence[tuple[GridCell, GridCell]], registry: Path
) -> tuple[Results, str, str]:
    """What contrasts are computed from, and what A and B are called there.

    Rows of one grid are compared with the seed variance of that grid; other cells are a grid of their own.
    """
    if a.grid is not None and b.grid is not None and a.grid.name == b.grid.name and len(cells) > 1:
        return Results(a.grid, registry), a.cells[0].label, b.cells[0].label
    places = [
        GridCell(label, number, {}, place.cell)
        for number, pair in enumerate(cells)
        for label, place in zip("AB", pair, strict=True)
    ]
    return Results(GridRecord("", {}, "", "", tuple(places)), registry), "A", "B"


def _common_tasks(a: Subject, b: Subject, registry: Path, only: Sequence[str]) -> tuple[list[str], list[str]]:
    """The tasks that can be compared, and why others cannot; ``RegistryError`` if none can."""
    stored_a, stored_b = (next(iter(each.stored(registry).values())).tasks for each in (a, b))
    tasks, notes = [], []
    for task in dict.fromkeys([*a.tasks(registry), *b.tasks(registry)] if not only else a.tasks(registry, only)):
        one, other = stored_a.get(task), stored_b.get(task)
        if one is None or other is None:
            notes.append(f"{task} is not compared: only {(a if one else b).name} has it")
        elif one.examples != other.examples:
            notes.append(f"{task} is not compared: A and B were scored on different examples")
        elif one.metric != other.metric:
            notes.append(f"{task} is not compared: the metric of A is {one.metric}, that of B {other.metric}")
        else:
            tasks.append(task)
    if not tasks:
        raise RegistryError(f"{a.name} and {b.name} have no task in common. {'; '.join(notes)}")
    return tasks, notes


def _judge(pairs: Sequence[_Pair]) -> list[Judged]:
    """The tasks as one family, corrected by Holm's procedure, each by its own test."""
    corrected, levels = holm([pair.contrast.p if pair.exact is None else pair.exact.p for pair in pairs])
    judged = []
    for pair, p, level in zip(pairs, corrected, levels, strict=True):
        verdict: Verdict = "open"
        if p < ALPHA:
            verdict = "better" if pair.contrast.delta > 0 else "worse"
        interval = pair.contrast.interval(level) if pair.exact is None else pair.exact.interval(level)
        judged.append(Judged(pair.contrast, None if np.isnan(p) else p, interval, verdict, level))
    return judged


def _compare(pair: _Pair, judged: Judged, texts: Texts, scores: tuple[float, float], limit: int) -> TaskComparison:
    a, b = pair.a, pair.b
    notes = [texts.note] if texts.note else []
    if pair.on_another_scale:
        a, b = a.fitted(), b.fitted()
        notes.append(f"{a.task}: {RESCALED}")
    elif judged.verdict != "open" and a.facts.correlation:
        a_error, b_error = (float(side.mean()) for side in pair.sides)
        if (b_error < a_error) != (judged.verdict == "better"):
            notes.append(
                f"{a.task}: {a.facts.metric} and errors disagree about which is better, because a correlation is the "
                "same however predictions are shifted and scaled"
            )
    if pair.mcnemar and pair.not_exact:
        notes.append(f"{a.task}: the table does not use McNemar's test, because {pair.not_exact}")
    classes, lengths = a.facts.classes, texts.lengths
    labels = [(k, k, a.expected == k) for k in np.unique(a.expected)] if classes else list(bins_of(a.expected))
    return TaskComparison(
        a.task,
        a.facts.metric,
        texts.names,
        classes,
        len(a.expected),
        scores,
        judged,
        "contrast" if pair.exact is None else "mcnemar",
        pair.mcnemar,
        _flipped(a, b, texts, limit),
        _flipped(b, a, texts, limit, swapped=True),
        pair.parts(labels),
        () if lengths is None else pair.parts(list(quartiles_of(lengths))),
        tuple(notes),
    )


def _flipped(
    before: Predictions, after: Predictions, texts: Texts, limit: int, *, swapped: bool = False
) -> tuple[int, tuple[Example, ...]]:
    """The examples that became right (or, of values, less wrong) in most pairs of models: how many, and the first.

    First come those that flipped in most pairs, then those whose label gained most probability; of values those whose
    error shrank most.
    """
    gain = (before.wrongness - after.wrongness).mean(0)
    flips = (after.right & ~before.right) if before.facts.classes else (after.wrongness < before.wrongness)
    seeds = flips.sum(0)
    chosen = flips.mean(0) > 0.5 if before.facts.classes else gain > 0
    order = np.lexsort((-gain, -seeds if before.facts.classes else np.zeros_like(seeds)))
    both = (after, before) if swapped else (before, after)
    shown = [
        example_at(place, texts, both, int(seeds[place]), float(gain[place]))
        for place in order[chosen[order]][:limit].tolist()
    ]
    return int(chosen.sum()), tuple(shown)


def quartiles_of(lengths: NDArray[np.int64]) -> Iterator[tuple[float, float, NDArray[np.bool_]]]:
    """The examples in four parts by length, [n], with the least and greatest length of each; ties stay together."""
    numbers = np.searchsorted(np.quantile(lengths, [0.25, 0.5, 0.75]), lengths)
    for number in np.unique(numbers):
        inside = numbers == number
        yield float(lengths[inside].min()), float(lengths[inside].max()), inside
