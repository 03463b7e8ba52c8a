"""Search for the settings of each row: the same trials for all rows, on training rows that are held out.

A trial is an ordinary cell with a row in a table of its own. What a search chooses is a pure function of the grid and
of what the ledger has of its trials, so a run that was killed chooses the same settings when it is started again.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from taskloom.core.component import derive_seed
from taskloom.core.errors import Problem
from taskloom.core.specs import GridSpec, RangeSpec
from taskloom.core.work import DISK_FULL
from taskloom.registry.results.records import CellRecord, EpochRecord
from taskloom.runs.grid.expansion import Expansion, Trial, Variant, copied
from taskloom.runs.grid.overrides import Overrides
from taskloom.runs.grid.paths import PathError, assign
from taskloom.runs.grid.samplers import DIGITS, SAMPLERS, Over, sampler_problem

#: Seeds of trials begin here, far from those that people choose.
TRIAL_SEEDS = 2**31
#: The share of its epochs after which a trial pauses, and of the trials that go on from there.
THIRD = 3


def search_problems(rows: Expansion, overrides: Overrides) -> Iterator[Problem]:
    """What is wrong with the search of a grid, apart from values that a component refuses."""
    spec = rows.grid.spec
    homes = [("search.over", spec.search.over)] if spec.search is not None else []
    for index, cell in enumerate(spec.cells):
        if cell.search is not None:
            homes.append((f"cells.{index}.search.over", cell.search.over))
            if spec.search is None:
                yield Problem(f"cells.{index}.search", 'adds to the grid\'s "search", which is missing')
    if spec.search is None:
        return
    if wrong := sampler_problem(spec.search.sampler):
        yield Problem("search.sampler", wrong)
    axes = [("axes", path) for path in spec.axes]
    axes += [(f"zip.{index}", path) for index, group in enumerate(spec.zip) for path in group]
    axes += [(f"cells.{index}.set", path) for index, cell in enumerate(spec.cells) for path in cell.set]
    for home, over in homes:
        for index, path in enumerate(over):
            if path.partition(".")[0] in ("seed", "hold_out", "score"):
                yield Problem(f"{home}.{path}", "is what the search itself sets for its trials; leave it out")
            if role := _decides_scores(path):
                yield Problem(f"{home}.{path}", f"is {role}, so scores of trials could not be compared; write an axis")
            alike = [(home, other) for other in [*over][:index] if other.count(".") == path.count(".")]
            for other_home, other in (*axes, *alike):
                if _undoes(path, other) and (home == "search.over" or not other_home.endswith(".set")):
                    text = f"sets the same place as {other_home}.{other}, and would undo it; leave out one of them"
                    yield Problem(f"{home}.{path}", text)
            if home != "search.over" and (twice := [other for other in spec.search.over if _undoes(path, other)]):
                text = f"is searched already, by search.over.{twice[0]}; leave out one of them"
                yield Problem(f"{home}.{path}", text)
    for path in overrides.run_settings if overrides.tuned else ():
        if any(_undoes(path, searched) or _undoes(searched, path) for _, over in homes for searched in over):
            yield Problem(f"--set {path}", "is what the grid searches; --untuned runs it without the search")
    if any(row.spec.get("hold_out") for row in rows.variants):
        yield Problem("search", "holds out training rows itself; leave out the hold_out of the run")


def _decides_scores(path: str) -> str:
    """What a path decides about the scores of trials, so that these could not be compared; "" if it decides nothing.

    >>> _decides_scores("tasks.*.data.size"), _decides_scores("selection"), _decides_scores("tasks.sst.head.dropout")
    ('part of the data', 'what trials are scored by', '')
    """
    match path.split("."):
        case ["tasks", _, "data", *_]:
            return "part of the data"
        case ["selection" | "overall", *_] | ["tasks", _, "metric", *_]:
            return "what trials are scored by"
        case ["tasks"] | ["tasks", _]:
            return "a whole task, with its data"
    return ""


def _undoes(path: str, other: str) -> bool:
    """Whether setting a path overwrites what another path sets.

    >>> _undoes("tasks.*.head", "tasks.sst.head.dropout"), _undoes("stages.0.clip", "stages.0")
    (True, False)
    """
    steps = list(zip(path.split("."), other.split("."), strict=False))
    return path.count(".") <= other.count(".") and all(a == b or "*" in (a, b) for a, b in steps)


def trial_rows(
    rows: Sequence[Variant], spec: GridSpec, seeds: Sequence[int], searches: "Sequence[RowSearch]" = ()
) -> list[Variant]:
    """The trials of all rows, as rows; ``seeds`` are those that the grid is run with.

    Every row has the same settings for the paths that all rows share, and the same held-out rows and seed. With a
    search per seed, each seed has others. A sampler that goes by the scores of earlier trials has them from
    ``searches``, and each row has settings of its own; its trials are those that are known so far.
    """
    search = spec.search
    assert search is not None
    trials, options = [], search.sampler.model_extra or {}
    scores = {(row_search.row, row_search.seed): row_search.first_scores for row_search in searches}
    for row in rows:
        over = {**search.over, **row.over}
        for seed in seeds if search.per == "seed" else (None,):
            names = () if seed is None else (seed,)
            hold_out = {"share": search.hold_out, "seed": derive_seed(search.seed, *names, "hold out") % 2**32}
            own = (_trial_seed(search.seed, names, seeds),)
            drawn = derive_seed(search.seed, *names, "settings")
            known = scores.get((row.label, seed), ())
            sampled = SAMPLERS[search.sampler.name](over, search.trials, drawn, known, **options)
            for number, settings in enumerate(sampled, start=1):
                trial = Trial(row.label, seed, number, settings)
                run, problems = copied(row.spec), list(row.problems)
                for path in sorted(settings, key=lambda path: path.count(".")) if run else ():
                    try:
                        assign(run, path, copied(settings[path]))
                    except PathError as error:
                        problems.append(Problem(written_at(path, row.label, spec), str(error)))
                score = run.get("score")
                run |= {"hold_out": hold_out, "score": {**(score if isinstance(score, dict) else {}), "test": False}}
                label = label_of(trial)
                trials.append(replace(row, label=label, spec=run, problems=tuple(problems), trial=trial, seeds=own))
    return trials


def label_of(trial: Trial) -> str:
    """The label of a trial's row.

    >>> label_of(Trial("sum", None, 3, {})), label_of(Trial("sum", 0, 3, {}))
    ('sum, trial 3', 'sum, seed 0, trial 3')
    """
    return f"{trial.row}{'' if trial.seed is None else f', seed {trial.seed}'}, trial {trial.number}"


def _trial_seed(seed: int, names: Sequence[int], seeds: Iterable[int]) -> int:
    """The seed with which trials are trained; never one of the grid's."""
    drawn = TRIAL_SEEDS + derive_seed(seed, *names, "trial") % TRIAL_SEEDS
    return next(number for number in itertools.count(drawn) if number not in seeds)


def written_at(path: str, row: str, spec: GridSpec) -> str:
    """Where the grid's file has a searched path: in the ``search`` of the row's cell, or in that of the grid."""
    homes = (
        f"cells.{index}."
        for index, cell in enumerate(spec.cells)
        if cell.label == row and cell.search is not None and path in cell.search.over
    )
    return f"{next(homes, '')}search.over.{path}"


def searched_path(path: str, over: Iterable[str]) -> str:
    """The path in ``over`` that set what is at ``path``; "" if none did."""
    return next((searched for searched in over if _undoes(searched, path)), "")


@dataclass(frozen=True)
class TrialResult:
    """How far a trial is: ``state`` is finished, failed, oom, paused or waiting; ``score`` is the one it has so far.

    ``pause`` is after how many epochs of its last stage it waits for the others, and ``first`` its score there.
    """

    trial: Trial
    cell: str
    state: str = "waiting"
    score: float | None = None
    why: str = ""
    pause: int | None = None
    first: float | None = None


@dataclass(frozen=True)
class RowSearch:
    """The search of a row, or of one seed of a row, with all of its trials."""

    row: str
    seed: int | None
    results: tuple[TrialResult, ...]

    @property
    def pending(self) -> dict[str, int | None]:
        """The trials to run now, by their cells, and after how many epochs each of them pauses."""
        early = {result.cell: result.pause for result in self.results if result.state == "waiting"}
        return early or {result.cell: None for result in self._better_third() if result.state == "paused"}

    @property
    def first_scores(self) -> list[float | None]:
        """The scores of the trials up to the first that has not ended; with halving, those after a third."""
        ended = itertools.takewhile(lambda result: result.state != "waiting", self.results)
        return [result.score if result.pause is None else result.first for result in ended]

    def _better_third(self) -> list[TrialResult]:
        """The trials that go on after the first third of their epochs; the first of equals before the others."""
        ranked = sorted(self.results, key=lambda result: math.inf if result.first is None else -result.first)
        return ranked[: math.ceil(len(ranked) / THIRD)]

    def settled(self) -> "RowSearch":
        """The search in which only the better third has what lies beyond the first third of the epochs.

        Others may have it, too, if the search had fewer trials before, or did not halve them; a new run has the same.
        """
        better = self._better_third()
        if any(result.state == "waiting" for result in self.results):
            return self
        results = [
            replace(result, state="paused", score=result.first, why="")
            if result.pause is not None and result.first is not None and result not in better
            else result
            for result in self.results
        ]
        return replace(self, results=tuple(results))

    @property
    def best(self) -> TrialResult | None:
        """The trial with the best score, of equals the first; None if none has one, or some are still to be run."""
        scored = [result for result in self.results if result.score is not None]
        if self.pending or not scored:
            return None
        return max(scored, key=lambda result: result.score or 0.0)

    @property
    def failed(self) -> list[TrialResult]:
        return [result for result in self.results if result.state in ("failed", "oom")]

    def as_json(self, over: Over, fits: Callable[[str, Any], bool]) -> dict[str, Any]:
        """What the search has chosen, for the record of its grid; see :func:`edges`."""
        best = self.best
        return {
            "row": self.row,
            "seed": self.seed,
            "trial": None if best is None else best.trial.number,
            "settings": {} if best is None else best.trial.settings,
            "score": None if best is None else best.score,
            "tried": len(self.results),
            "cells": [result.cell for result in self.results],
            "failed": {str(result.trial.number): result.why for result in self.failed},
            "paused": sum(result.state == "paused" for result in self.results),
            "edges": [] if best is None else list(edges(self, best.trial, over, fits)),
        }


def result_of(
    trial: Trial,
    cell: str,
    spec: Mapping[str, Any],
    record: CellRecord | None,
    epochs: Sequence[EpochRecord],
    *,
    halving: bool,
) -> TrialResult:
    """How far a trial is, from its record and its epochs; None if it was never run."""
    total = spec["stages"][-1]["epochs"]
    pause = max(1, total // THIRD) if halving and total > 1 else None
    result = TrialResult(trial, cell, pause=pause)
    if record is None:
        return result
    last = [epoch for epoch in epochs if epoch.stage == len(spec["stages"]) - 1]
    so_far = [(epoch.epoch, score) for epoch in last if (score := score_in(epoch.scores, spec)) is not None]
    first = max((score for epoch, score in so_far if pause is None or epoch <= pause), default=None)
    match record.status:
        case "finished":
            score = score_in(record.scores, spec)
            state, why = ("finished", "") if score is not None else ("failed", "it has no score to choose by")
            return replace(result, state=state, score=score, why=why, first=first)
        case "failed" if (record.reason or "").startswith(DISK_FULL):
            return result  # nothing was tried
        case "failed" | "oom" as state:
            return replace(result, state=state, why=record.reason or "no reason given", first=first)
    if pause is not None and any(epoch.epoch >= pause for epoch in last):
        return replace(result, state="paused", score=max((score for _, score in so_far), default=None), first=first)
    return result


def score_in(scores: Mapping[str, float], spec: Mapping[str, Any]) -> float | None:
    """The selection score; the overall one where the last epoch is selected without any."""
    return scores.get("overall" if spec["selection"] == "last" else spec["selection"])


def edges(search: RowSearch, best: Trial, over: Over, fits: Callable[[str, Any], bool]) -> Iterator[dict[str, Any]]:
    """The paths in which the best trial has the least or the largest number that was tried, with a wider range to try.

    Only if the row could be run with the wider end (``fits``).
    """
    for path, values in over.items():
        tried = {result.trial.settings[path] for result in search.results} if path in best.settings else set()
        if len(tried) < 3 or not all(isinstance(value, int | float) and not isinstance(value, bool) for value in tried):
            continue
        for end, is_low in ((min(tried), True), (max(tried), False)):
            if best.settings[path] == end:
                wider, added = _wider(values, is_low=is_low)
                if fits(path, added):
                    yield {"path": path, "value": end, "try": wider}


def _wider(values: list[Any] | RangeSpec, *, is_low: bool) -> tuple[Any, Any]:
    """A list or a range with more room at one end, as a grid would have it, and the new end.

    >>> _wider([0.0, 0.1, 0.3], is_low=False), _wider([8, 16, 32], is_low=True)
    (([0.0, 0.1, 0.3, 0.5], 0.5), ([4, 8, 16, 32], 4))
    >>> _wider(RangeSpec(log=(1e-5, 1e-3)), is_low=True), _wider(RangeSpec(log=(1e-5, 0.1)), is_low=False)
    (({'log': [1e-06, 0.001]}, 1e-06), ({'log': [1e-05, 1.0]}, 1.0))
    """
    if isinstance(values, list):
        first, before, end = sorted(set(values), reverse=is_low)[-3:]
        has_ratio = min(values) > 0 and abs(before * before / (first * end) - 1) < 0.25
        added = end * end / before if has_ratio else end + (end - before)
        added = round(added) if all(isinstance(value, int) for value in values) else float(f"{added:.{DIGITS}g}")
        return ([added, *values] if is_low else [*values, added]), added
    low, high = values.bounds
    room = min((high / low) ** 0.5, 10) if values.log is not None else (high - low) / 2
    ends = (low / room, high * room) if values.log is not None else (low - room, high + room)
    added = float(f"{ends[not is_low]:.{DIGITS - 4}g}")
    return {"uniform" if values.log is None else "log": [added, high] if is_low else [low, added]}, added
