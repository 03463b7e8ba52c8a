"""A plan as text."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from taskloom.core.errors import count
from taskloom.registry.results.wording import duration, file_size, named
from taskloom.runs.show.parts import Listing, Part

if TYPE_CHECKING:  # which import torch
    from taskloom.runs.driver.forecast import Cost
    from taskloom.runs.grid.plan import Plan
    from taskloom.runs.grid.planned import PlannedCell


def plan_parts(plan: "Plan", costs: "Mapping[str, Cost]") -> Iterator[Part]:
    """List the cells with the cost of each, then the total cost of those that are not finished.

    The trials of a search come first, then what follows once they have ended.
    """
    if plan.trials is not None:
        yield from _cells(plan.trials.chosen, costs)
        yield from _searched(plan, plan.trials, costs)
    if plan.chosen or plan.trials is None:
        yield from _cells(plan.chosen, costs)
    if plan.waiting:
        rows = named([cell.label for cell in plan.waiting])
        steps = (
            f", {sum(costs[cell.id].steps for cell in plan.waiting):,} steps with the settings in the grid"
            if costs
            else ""
        )
        yield f"{count(len(plan.waiting), 'cell')} of {rows} follow with the settings of their best trials{steps}."


def _searched(plan: "Plan", planned: "Plan", costs: "Mapping[str, Cost]") -> Iterator[str]:
    """What either kind of search costs, at the mean steps of the trials that are known, and what halving spares."""
    search, seeds = plan.grid.spec.search, len(plan.grid.spec.seeds)
    assert search is not None
    follows, trials = search.sampler.name != "design", plan.trial_count
    steps = sum(costs[cell.id].steps for cell in planned.chosen if cell.id in costs)

    def cost(times: float) -> str:
        number = round(trials * times)
        in_steps = f" ({round(number * steps / len(planned.chosen)):,} steps)" if steps else ""
        return f"{count(number, 'trial')}{in_steps}"

    per_row, per_seed = (cost(1), cost(seeds)) if search.per == "row" else (cost(1 / seeds), cost(1))
    yield f"A search per row has {per_row}, one per seed {per_seed}; this is one per {search.per}."
    if follows:
        yield f"The next trial of a row is known once {search.sampler.name} has the score of the one before."
    if search.halving:
        yield "Halving: a trial pauses after a third of its epochs, and the better third of a row's go on: fewer steps."


def _cells(cells: "Sequence[PlannedCell]", costs: "Mapping[str, Cost]") -> Iterator[Part]:
    headers = ("cell", "label", "seed", "status", *(("steps", "time", "keeps") if costs else ()))
    rows = []
    for cell in cells:
        cost = costs.get(cell.id)
        row: tuple[object, ...] = (cell.id, cell.label, cell.seed, cell.status)
        if cost is not None:
            time = "?" if cost.seconds is None else duration(cost.seconds)
            row += (f"{cost.steps:,}", time, file_size(cost.bytes))
        rows.append(row)
    yield Listing(rows, headers)
    counts = Counter(cell.status for cell in cells)
    summary = f"{count(len(cells), 'cell')}: " + ", ".join(f"{number} {status}" for status, number in counts.items())
    left = [
        costs[id] for id in {cell.id for cell in cells if cell.status != "finished" and not cell.tried} if id in costs
    ]
    if not left:
        yield summary
        return
    known = [cost.seconds for cost in left if cost.seconds is not None]
    taking = f", about {duration(sum(known))} on one worker" if len(known) == len(left) else ""
    kept = file_size(sum(cost.bytes for cost in left))
    yield f"{summary}. To do: {sum(cost.steps for cost in left):,} steps{taking}; {kept} of weights to keep."
