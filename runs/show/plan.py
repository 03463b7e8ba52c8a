"""A plan as a person reads it."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from taskloom.runs.driver.disk import in_units
from taskloom.runs.show.parts import Listing, Part

if TYPE_CHECKING:  # which import torch
    from taskloom.runs.driver.forecast import Cost
    from taskloom.runs.grid.plan import Plan


def plan_parts(plan: "Plan", costs: "Mapping[str, Cost]") -> Iterator[Part]:
    """The cells with what each takes, and what is left to do of them together."""
    headers = ("cell", "label", "seed", "status", *(("steps", "time", "keeps") if costs else ()))
    rows = []
    for cell in plan.chosen:
        cost = costs.get(cell.id)
        shown = () if cost is None else (f"{cost.steps:,}", in_time(cost.seconds), in_units(cost.bytes))
        rows.append((cell.id, cell.label, cell.seed, cell.status, *shown))
    yield Listing(rows, headers)
    counts = Counter(cell.status for cell in plan.chosen)
    said = f"{len(plan.chosen)} cells: " + ", ".join(f"{count} {status}" for status, count in counts.items())
    left = [costs[id] for id in {cell.id for cell in plan.chosen if cell.status != "finished"} if id in costs]
    if not left:
        yield said
        return
    known = [cost.seconds for cost in left if cost.seconds is not None]
    time = f", about {in_time(sum(known))} on one worker" if len(known) == len(left) else ""
    kept = in_units(sum(cost.bytes for cost in left))
    yield f"{said}. To do: {sum(cost.steps for cost in left):,} steps{time}; {kept} of weights to keep."


def in_time(seconds: float | None) -> str:
    """A duration as a person reads it; "?" if it is not known.

    >>> in_time(None), in_time(4.2), in_time(75), in_time(5400)
    ('?', '4 s', '1.2 min', '1.5 h')
    """
    if seconds is None:
        return "?"
    for limit, size, unit in ((60, 1, "s"), (3600, 60, "min")):
        if seconds < limit:
            return f"{seconds / size:.{0 if size == 1 else 1}f} {unit}"
    return f"{seconds / 3600:,.1f} h"
