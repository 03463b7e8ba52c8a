"""Runs a plan: the driver submits cells to an engine and records their events."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from taskloom.core import Engine, Job
from taskloom.registry.results.artifacts import Artifacts, sweep
from taskloom.registry.results.locks import Claims
from taskloom.registry.results.tensors import Keep, drop_checkpoints
from taskloom.runs.driver.loop import Listen, Loop
from taskloom.runs.driver.loop import Outcome as Outcome
from taskloom.runs.driver.signals import Stop, stop_on_signals
from taskloom.runs.driver.trackers import Trackers
from taskloom.runs.driver.verdict import ATTEMPTS, next_micro_batch
from taskloom.runs.grid.plan import Plan

if TYPE_CHECKING:
    from taskloom.registry.installed.catalogue import Catalogue
    from taskloom.registry.results.ledger import Ledger

#: What an engine runs for every cell.
WORK = "taskloom.runs.training.train:train"


def run_plan(
    plan: Plan,
    catalogue: "Catalogue",
    ledger: "Ledger",
    *,
    engine: str | dict[str, Any] | Engine = "inline",
    retry_failed: bool = True,
    attempts: int = ATTEMPTS,
    timeout: float | None = None,
    listen: Listen = lambda event: None,
    stop: Stop | None = None,
    keep: Keep = "best",
    trackers: Trackers | None = None,
) -> Outcome:
    """Run every chosen cell of a recorded plan that is not finished.

    ``engine`` is a name, a name with options as in a grid, or an engine. Cells that are in the grid under several
    labels are run once, and those that another driver has are waited for. Only this function writes to the ledger.
    Ctrl-C once lets the cells write checkpoints, twice ends them. ``trackers`` are told of every chosen cell, also of
    those that were finished before.
    """
    runner = engine if isinstance(engine, Engine) else make_engine(catalogue, engine)
    runner.check()
    outcome, stop, trackers = Outcome(), stop or Stop(), trackers or Trackers()
    jobs = _jobs(plan, ledger, outcome, trackers, retry_failed=retry_failed)
    if not jobs:
        return outcome
    with Claims(ledger.folder) as claims:
        loop = Loop(jobs, runner, ledger, claims, trackers, outcome, listen, attempts, timeout, stop, keep)
        if claims.alone:  # else another driver may be writing these files
            sweep(ledger.folder)
        claims.share()
        try:
            with stop_on_signals(stop):
                runner.open(WORK, ledger.folder)
                loop.run()
        finally:
            runner.close()
    return outcome


def make_engine(catalogue: "Catalogue", spec: str | dict[str, Any]) -> Engine:
    """Construct an engine from a name, or a name with options."""
    return catalogue.make(Engine, {"name": spec} if isinstance(spec, str) else spec)


def _jobs(plan: Plan, ledger: "Ledger", outcome: Outcome, trackers: Trackers, *, retry_failed: bool) -> list[Job]:
    """Make a job for every cell to run; count the others, and pass their events to trackers."""
    jobs: dict[str, Job] = {}
    ended: dict[str, Job] = {}
    states = ledger.states()  # not the plan's: another driver may have finished cells since
    folder = str(ledger.folder.absolute())  # a plugin may leave the current folder
    for cell in plan.chosen:
        state = states.get(cell.id)
        job = Job(cell.id, cell.label, cell.seed, cell.spec, folder, cell.stage_keys, cell.versions)
        job = replace(job, content=cell.facts.get("content", {}), pause=cell.pause)
        if cell.tried and state != "finished":  # a trial that failed or paused, and counts as it is
            outcome.cached += 1
        elif state == "finished":
            outcome.cached += 1
            drop_checkpoints(Artifacts(ledger.folder).cell(cell.id))  # if its driver was killed right after it finished
            ended.setdefault(cell.id, job)
        elif state in ("failed", "oom") and not retry_failed:
            outcome.reasons[cell.id] = str(ledger.cell(cell.id).reason)
            ended.setdefault(cell.id, job)
        elif cell.id not in jobs:
            # A cell that ran out of memory before is resumed with a smaller micro-batch.
            past = ledger.attempts(cell.id) if state else ()
            micro_batch = next_micro_batch(past[-1].how, past[-1].micro_batch) if past else None
            jobs[cell.id] = replace(job, micro_batch=micro_batch)
    for job in ended.values():
        trackers.retell(job, ledger)
    return list(jobs.values())
