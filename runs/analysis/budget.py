"""What a method scores at best, as a function of how many settings of it were tried.

A row that was tuned with n trials would have had another best score with fewer. If the trials are independent draws of
settings and seeds, the best of k has the distribution P(best ≤ v) = F(v)^k, with F the distribution of one trial; F is
estimated by the share of trials that score at most v (Dodge et al. 2019, "Show your work"). So of the sorted scores
v₁ ≤ … ≤ vₙ the best of k is vᵢ with the probability (i/n)^k − ((i − 1)/n)^k. Dodge et al. 2021 compare it with an
unbiased estimate (draws without replacement): this one is a little low near k = n, and errs less.

The trials of a search are spread evenly instead of drawn independently, so the curve is a little low there, too.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskloom.core.errors import TaskloomError, count, unknown
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import TUNED, CellRecord, GridRecord
from taskloom.runs.grid.expansion import Trial
from taskloom.runs.grid.search import RowSearch, TrialResult, result_of

#: The shares of the distribution of the best score between which it is shown.
LOW, HIGH = 0.1, 0.9
#: A difference of expected scores that is none.
ROUNDING = 1e-9


@dataclass(frozen=True)
class BestOf:
    """The best score of ``trials`` trials: what is expected, and the range that eight of ten searches end in."""

    trials: int
    expected: float
    low: float
    high: float


def best_of(scores: Sequence[float | None]) -> list[BestOf]:
    """The best score of 1, 2, … n trials, from the scores of n; a failed trial (None) counts as the worst of them.

    >>> [round(best.expected, 3) for best in best_of([0.5, 0.7, 0.6])]
    [0.6, 0.644, 0.667]
    >>> best_of([None, None])
    []
    """
    finished = [score for score in scores if score is not None]
    if not finished:
        return []
    values = np.sort([min(finished) if score is None else score for score in scores])  # [n]
    below = np.arange(len(values) + 1) / len(values)  # [n + 1]
    return [_best(values, below**trials, trials) for trials in range(1, len(values) + 1)]


def _best(values: NDArray[np.float64], cumulative: NDArray[np.float64], trials: int) -> BestOf:
    """The best of so many trials, given the probability [n + 1] that it is none of the first i values."""
    low, high = (values[np.searchsorted(cumulative[1:], share)] for share in (LOW, HIGH))
    return BestOf(trials, float(values @ np.diff(cumulative)), float(low), float(high))


@dataclass(frozen=True)
class RowBudget:
    """What a row scores at best by the number of trials: the mean of the curves of its ``searches``.

    ``failed`` counts the trials of all its searches that failed. ``ahead`` are the numbers of trials with which the row
    is expected to score more than the baseline.
    """

    row: str
    searches: int
    failed: int
    curve: list[BestOf]
    ahead: list[int]


@dataclass(frozen=True)
class Budget:
    """The best score in a column that each row of a tuned grid is expected to have, by the number of trials.

    ``baseline`` is the grid's, or the first row that has a curve; ``per`` is what had a search of its own, ``row`` or
    ``seed``. ``checks`` are what to know of the curves.
    """

    column: str
    per: str
    baseline: str
    rows: list[RowBudget]
    checks: list[str]


def no_trials(name: str) -> TaskloomError:
    """The error for a grid that has no budget."""
    return TaskloomError(f"{name!r} has no trials in this registry: it was run without a search, or imported alone")


def budget_of(ledger: Ledger, grid: GridRecord, column: str = "") -> Budget | None:
    """The budget of a grid that was run with a search; None if the registry has none of its trials.

    ``column`` is a task or overall; by default the score that each search chose by.
    """
    tuned = grid.spec.get(TUNED, {"rows": ()})
    searches = [search for search in tuned["rows"] if search["cells"]]
    if not searches or not all(ledger.has_cell(cell) for search in searches for cell in search["cells"]):
        return None
    records = {cell: ledger.cell(cell) for search in searches for cell in search["cells"]}
    known = {name for record in records.values() for name in record.scores}
    if column and column not in known:
        raise TaskloomError(unknown("column", column, known, where="columns of its trials"))
    results: dict[str, list[list[TrialResult]]] = {}  # row → the trials of each of its searches
    for search in searches:
        results.setdefault(search["row"], []).append(
            [*_in_column(ledger, search, records, column, halving=tuned.get("halving", False))]
        )
    curves = {row: curve for row, of_row in results.items() if (curve := _mean_curve(of_row))}
    if not curves:
        return None
    stated = grid.spec.get("baseline")
    baseline = stated if stated in curves else next(iter(curves))
    rows = [
        RowBudget(row, len(results[row]), len(_failed(results[row])), curve, _ahead(curve, curves[baseline]))
        for row, curve in curves.items()
    ]
    selections = {
        "overall" if record.spec["selection"] == "last" else record.spec["selection"] for record in records.values()
    }
    return Budget(
        column or " or ".join(sorted(selections)), grid.spec[TUNED]["per"], baseline, rows, [*_checks(results)]
    )


def _in_column(
    ledger: Ledger, search: Mapping[str, Any], records: Mapping[str, CellRecord], column: str, *, halving: bool
) -> Iterator[TrialResult]:
    """The trials of a search that have ended, with their scores in a column; the search's own decide which went on."""
    row, seed = search["row"], search["seed"]
    by_column, by_selection = list[TrialResult](), list[TrialResult]()
    for number, cell in enumerate(search["cells"], start=1):
        record, trial = records[cell], Trial(row, seed, number, {})
        epochs = ledger.epochs(cell) if halving else ()
        for results, name in ((by_column, column), (by_selection, "")):
            spec = {**record.spec, "selection": name or record.spec["selection"]}
            results.append(result_of(trial, cell, spec, record, epochs, halving=halving))
    settled = RowSearch(row, seed, tuple(by_selection)).settled().results
    for result, decided in zip(by_column, settled, strict=True):
        if decided.state == "paused":
            yield replace(result, state="paused", score=result.first, why="")
        elif decided.state != "waiting":
            yield result


def _mean_curve(searches: Sequence[Sequence[TrialResult]]) -> list[BestOf]:
    """The mean of the curves of a row's searches; of the shortest, if one of them has fewer trials so far."""
    curves = [curve for trials in searches if (curve := best_of([trial.score for trial in trials]))]
    return [
        BestOf(bests[0].trials, *np.mean([[best.expected, best.low, best.high] for best in bests], axis=0).tolist())
        for bests in zip(*curves, strict=False)
    ]


def _ahead(curve: Sequence[BestOf], baseline: Sequence[BestOf]) -> list[int]:
    pairs = zip(curve, baseline, strict=False)
    return [best.trials for best, other in pairs if best.expected > other.expected + ROUNDING]


def _failed(searches: Iterable[Sequence[TrialResult]]) -> list[TrialResult]:
    return [trial for trials in searches for trial in trials if trial.score is None]


def _checks(results: Mapping[str, Sequence[Sequence[TrialResult]]]) -> Iterator[str]:
    """What to know of the curves: trials that failed or ended early, and searches without a score."""
    yield "Scores are on held-out training rows; every trial has one seed, so its noise is in the curves."
    searches = [trials for of_row in results.values() for trials in of_row]
    if failed := _failed(searches):
        yield f"{count(len(failed), 'failed trial')} counted as tried, with the least score of the same search."
    if paused := sum(trial.state == "paused" for trials in searches for trial in trials):
        yield f"{count(paused, 'trial')} ended after a third, by halving, and counted with the score at that point."
    for row, of_row in results.items():
        if lacking := sum(all(trial.score is None for trial in trials) for trials in of_row):
            where = f" in {lacking} of {len(of_row)} seeds" if len(of_row) > 1 else ""
            yield f"Left out{where}: no trial of {row!r} has a score."
