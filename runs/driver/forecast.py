"""The cost of a plan: steps, time and disk space."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from taskloom.runs.driver.schedule import Durations
from taskloom.runs.grid.plan import Plan
from taskloom.runs.training.size import Sizes

if TYPE_CHECKING:
    from taskloom.registry.installed.catalogue import Catalogue
    from taskloom.registry.results.ledger import Ledger


@dataclass(frozen=True)
class Cost:
    """The cost of a cell: steps; seconds, ``None`` if no similar cell has run; bytes of its weights."""

    steps: int
    seconds: float | None
    bytes: int


def costs(plan: Plan, catalogue: "Catalogue", ledger: "Ledger | None") -> dict[str, Cost]:
    """The cost of every chosen cell by its identity, also of trials and of rows that wait for them."""
    sizes, durations = Sizes(catalogue), Durations()
    for record in ledger.cells() if ledger is not None else ():
        if record.status == "finished":
            durations.learn(record.spec, record.seconds)
    return {
        cell.id: Cost(sizes.steps(cell.spec), durations.expected(cell.id, cell.spec), sizes.weights(cell.spec))
        for cell in (*(plan.trials.chosen if plan.trials else ()), *plan.chosen, *plan.waiting)
    }
