"""A plan as text."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from taskloom.runs.driver.wording import duration, file_size
from taskloom.runs.show.parts import Listing, Part

if TYPE_CHECKING:  # which import torch
    from taskloom.runs.driver.forecast import Cost
    from taskloom.runs.grid.plan import Plan


def plan_parts(plan: "Plan", costs: "Mapping[str, Cost]") -> Iterator[Part]:
    """List the cells with the cost of each, then the total cost of those that are not finished."""
    headers = ("cell", "label", "seed", "status", *(("steps", "time", "keeps") if costs else ()))
    rows = []
    for cell in plan.chosen:
        cost = costs.get(cell.id)
        row: tuple[object, ...] = (cell.id, cell.label, cell.seed, cell.status)
        if cost is not None:
            time = "?" if cost.seconds is None else duration(cost.seconds)
            row += (f"{cost.steps:,}", time, file_size(cost.bytes))
        rows.append(row)
    yield Listing(rows, headers)
    counts = Counter(cell.status for cell in plan.chosen)
    summary = f"{len(plan.chosen)} cells: " + ", ".join(f"{count} {status}" for status, count in counts.items())
    left = [costs[id] for id in {cell.id for cell in plan.chosen if cell.status != "finished"} if id in costs]
    if not left:
        yield summary
        return
    known = [cost.seconds for cost in left if cost.seconds is not None]
    taking = f", about {duration(sum(known))} on one worker" if len(known) == len(left) else ""
    kept = file_size(sum(cost.bytes for cost in left))
    yield f"{summary}. To do: {sum(cost.steps for cost in left):,} steps{taking}; {kept} of weights to keep."
