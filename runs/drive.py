"""Plan → execution: the driver hands cells to an engine and writes down what they report."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taskloom.core import Engine, Event, Job
from taskloom.registry.artifacts import Artifacts
from taskloom.runs.build import make
from taskloom.runs.checkpoint import drop_checkpoints
from taskloom.runs.plan import Plan
from taskloom.runs.track import tell_trackers
from taskloom.runs.train import train

if TYPE_CHECKING:
    from taskloom.registry.catalogue import Catalogue
    from taskloom.registry.ledger import Ledger


@dataclass
class Outcome:
    """How many of a plan's cells were trained now, failed, or were there already."""

    finished: int = 0
    failed: int = 0
    cached: int = 0


def run_plan(
    plan: Plan,
    catalogue: "Catalogue",
    ledger: "Ledger",
    *,
    engine: str = "local",
    retry_failed: bool = True,
    listen: Callable[[Event], None] = lambda event: None,
) -> Outcome:
    """Run every chosen cell that is not finished; record the grid first, so that its table exists from the start.

    Cells that stand in the grid under several labels are run once. Only this function writes to the ledger.
    """
    runner = make(catalogue, Engine, {"name": engine})
    ledger.record_grid(plan.grid.name, plan.grid.raw, plan.cells)
    jobs: dict[str, Job] = {}
    outcome = Outcome()
    states = ledger.states()  # not the plan's: another driver may have finished cells since
    for cell in plan.chosen:
        state = states.get(cell.id)
        if state == "finished":
            outcome.cached += 1
            drop_checkpoints(Artifacts(ledger.folder).cell(cell.id))  # if it was killed right after its last word
        elif state == "failed" and not retry_failed:
            outcome.failed += 1
        elif cell.id not in jobs:
            jobs[cell.id] = Job(
                cell.id, cell.label, cell.seed, cell.spec, str(ledger.folder), cell.stage_keys, cell.versions
            )

    def emit(event: Event) -> None:
        if event.what == "started" or event.what == "resumed":
            event.facts["versions"] = {**event.facts.get("versions", {}), **jobs[event.cell].versions}
        ledger.write(event)
        outcome.finished += event.what == "finished"
        outcome.failed += event.what == "failed"
        for problem in tell_trackers(catalogue.plugins, event, jobs[event.cell]):
            listen(Event("log", event.cell, {"message": problem}))
        listen(event)

    runner.execute(list(jobs.values()), train, emit)
    return outcome
