"""Plan → execution: the driver hands cells to an engine and writes down what they report."""

from typing import TYPE_CHECKING, Any

from taskloom.core import Engine, Job
from taskloom.registry.artifacts import Artifacts
from taskloom.runs.build import make
from taskloom.runs.checkpoint import drop_checkpoints
from taskloom.runs.loop import Listen, Loop, Outcome
from taskloom.runs.plan import Plan
from taskloom.runs.signals import Stop, stop_on_signals
from taskloom.runs.verdict import ATTEMPTS

if TYPE_CHECKING:
    from taskloom.registry.catalogue import Catalogue
    from taskloom.registry.ledger import Ledger

#: What an engine runs for every cell.
WORK = "taskloom.runs.train:train"

__all__ = ["WORK", "Outcome", "run_plan"]


def run_plan(
    plan: Plan,
    catalogue: "Catalogue",
    ledger: "Ledger",
    *,
    engine: str | dict[str, Any] = "inline",
    retry_failed: bool = True,
    attempts: int = ATTEMPTS,
    timeout: float | None = None,
    listen: Listen = lambda event: None,
    stop: Stop | None = None,
) -> Outcome:
    """Run every chosen cell that is not finished; record the grid first, so that its table exists from the start.

    ``engine`` is a name, or a name with options as in a grid. Cells that stand in the grid under several labels are
    run once. Only this function writes to the ledger. Ctrl-C once lets the cells write checkpoints, twice ends them.
    """
    runner = make(catalogue, Engine, {"name": engine} if isinstance(engine, str) else engine)
    runner.check()
    ledger.record_grid(plan.grid.name, plan.grid.raw, plan.cells)
    outcome = Outcome()
    jobs = _jobs(plan, ledger, outcome, retry_failed=retry_failed)
    stop = stop or Stop()
    loop = Loop(
        jobs,
        runner,
        ledger,
        catalogue.plugins,
        outcome,
        listen=listen,
        attempts=attempts,
        timeout=timeout,
        stop=stop,
    )
    if jobs:
        try:
            with stop_on_signals(stop):
                runner.open(WORK, ledger.folder)
                loop.run()
        finally:
            runner.close()
    return outcome


def _jobs(plan: Plan, ledger: "Ledger", outcome: Outcome, *, retry_failed: bool) -> list[Job]:
    """A job for every cell that is to be run; the others are counted."""
    jobs: dict[str, Job] = {}
    states = ledger.states()  # not the plan's: another driver may have finished cells since
    for cell in plan.chosen:
        state = states.get(cell.id)
        if state == "finished":
            outcome.cached += 1
            drop_checkpoints(Artifacts(ledger.folder).cell(cell.id))  # if it was killed right after its last word
        elif state in ("failed", "oom") and not retry_failed:
            outcome.fail(cell.id, "failed before")
        elif cell.id not in jobs:
            jobs[cell.id] = Job(
                cell.id, cell.label, cell.seed, cell.spec, str(ledger.folder), cell.stage_keys, cell.versions
            )
    return list(jobs.values())
