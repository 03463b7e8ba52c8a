"""A grid is run: plan → engine → ledger → table, with progress on stderr."""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from taskloom.core.errors import RequestError, TaskloomError, count
from taskloom.registry.results.errors import HeldUpError
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import ADDED_SEEDS
from taskloom.runs.api.answer import TableAnswer
from taskloom.runs.api.find import table_with_looks
from taskloom.runs.driver.signals import Stop
from taskloom.runs.show.parts import Aligned, as_html
from taskloom.runs.show.render import failures_summary, render
from taskloom.runs.show.visible import visible

if TYPE_CHECKING:  # which import torch
    from taskloom.runs.driver.loop import Outcome
    from taskloom.runs.grid.grid import GridFile
    from taskloom.runs.grid.overrides import Overrides
    from taskloom.runs.grid.plan import Plan


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class RunResult(TableAnswer):
    """A run that has ended: its table, how many cells were trained, and what went wrong.

    ``outcome`` counts the cells that were ``finished`` now, ``cached`` before, or ``failed``; ``failures`` says which
    and why, "" if none did. A cell's failure is no exception: its hole in the table says why. ``untracked`` are the
    trackers that failed, a line for each.
    """

    outcome: "Outcome"
    failures: str
    untracked: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n\n".join(filter(None, [super().__str__(), self.failures]))

    def _repr_html_(self) -> str:
        return "\n".join([super()._repr_html_(), as_html([Aligned(self.failures)])])


class InterruptedRun(KeyboardInterrupt):
    """Somebody asked a run to stop, and it has: its cells wrote checkpoints, and running it again continues."""

    def __init__(self, outcome: "Outcome") -> None:
        self.outcome = outcome
        done = outcome.finished + outcome.cached + outcome.elsewhere
        failed = f", {outcome.failed} failed" if outcome.failed else ""
        super().__init__(f"Interrupted. {count(done, 'cell')} finished{failed}, {outcome.interrupted} unfinished.")


def interrupt() -> None:
    """What the third Ctrl-C does in somebody else's program: an exception, not the end of it."""
    raise KeyboardInterrupt


def run_grid(
    grid: "GridFile",
    registry: Path,
    overrides: "Overrides",
    *,
    allow_large: bool,
    engine: str | Mapping[str, Any] | None,
    workers: int | None,
    progress: bool | str,
    stop: Stop | None,
    trackers: Sequence[str | Mapping[str, Any]] | None,
    **driving: Any,
) -> RunResult:
    """Run what is not finished of a grid; ``driving`` are arguments of run_plan."""
    from taskloom.registry.installed.catalogue import load_catalogue
    from taskloom.registry.results.tensors import Keep
    from taskloom.runs.analysis.results import Results
    from taskloom.runs.analysis.tables import table_of
    from taskloom.runs.driver.drive import make_engine, run_plan
    from taskloom.runs.driver.trackers import Trackers, make_trackers
    from taskloom.runs.grid.plan import make_plan
    from taskloom.runs.show.progress import show_progress

    if driving["keep"] not in get_args(Keep):
        raise TaskloomError(f"keep should be one of {', '.join(get_args(Keep))}. Found {driving['keep']!r}.")
    if not isinstance(driving["attempts"], int) or driving["attempts"] < 1:
        raise TaskloomError(f"attempts should be an integer of at least 1. Found {driving['attempts']!r}.")
    if driving["timeout"] is not None and not (isinstance(driving["timeout"], int | float) and driving["timeout"] > 0):
        raise TaskloomError(f"timeout should be a number of seconds above 0. Found {driving['timeout']!r}.")
    catalogue = load_catalogue()
    runner = make_engine(catalogue, _engine(catalogue, engine, workers))
    runner.check()  # whether it can work here
    chosen_trackers = make_trackers(catalogue, _named_trackers() if trackers is None else trackers)
    stop = stop or Stop(end=interrupt)
    noted: set[str] = set()

    def run_step(step: "Plan", ledger: Ledger, tracking: Trackers) -> "Outcome":
        """Run the trials of a grid, or its rows."""
        with show_progress(step, lines=progress == "lines") if progress else nullcontext() as shown:
            if shown is not None:
                stop.say = tracking.say = shown.say
                driving["listen"] = shown
                for line in (line for line in step.notes if line not in noted):
                    shown.say(line)
                noted.update(step.notes)
            retry = {"retry_failed": driving["retry_failed"] or step is not plan}  # of trials, the plan says which
            outcome = run_plan(step, catalogue, ledger, engine=runner, stop=stop, trackers=tracking, **driving | retry)
        tracking.say = _say if progress else tracking.say
        if outcome.interrupted and not outcome.halted:
            tracking.patience *= stop.asked < 2
            raise InterruptedRun(outcome)
        return outcome

    with Ledger.find(registry) or nullcontext() as known:
        plan = make_plan(grid, catalogue, known, allow_large=allow_large, overrides=overrides)
    retry, untracked = bool(driving["retry_failed"]), list[str]()
    with Ledger.open(registry, create=True) as ledger:  # only now: a refused request leaves nothing
        while True:
            step = plan.step(retry=retry)
            # If it is not recorded, another process has recorded the grid in between.
            if ledger.record_grid(step.grid.name, step.grid.raw, step.cells, basis=step.basis):
                if step is plan:
                    break
                with Trackers(chosen_trackers, ledger.folder, step.grid.name) as tracking:
                    outcome = run_step(step, ledger, tracking)
                untracked += tracking.failures
                if outcome.halted:
                    raise HeldUpError(f"no further trial was started: {outcome.halted}. Make room and run it again")
                # The seeds that this run adds are the same ones in all of its plans.
                overrides, retry = replace(overrides, seeds=(*plan.grid.raw.get(ADDED_SEEDS, ()),)), False
            plan = make_plan(grid, catalogue, ledger, allow_large=allow_large, overrides=overrides)
        with Trackers(chosen_trackers, ledger.folder, plan.grid.name) as tracking:
            outcome = run_step(plan, ledger, tracking)
            record = ledger.grid(plan.grid.name)
            results = Results(record, ledger.folder, epochs=ledger.epochs)
            table = table_with_looks(ledger, results, table_of(results))
            tracking.grid_finished(render(table, "github"))
    failures = [failures_summary(record, registry, {cell.id for cell in plan.chosen})]
    if outcome.halted:
        failures.append(f"No further cell was started: {outcome.halted}. Make room and run the same command again.")
    return RunResult(
        table,
        notes=() if progress else plan.notes,
        checks=table.checks,
        outcome=outcome,
        failures="\n".join(filter(None, failures)),
        untracked=(*untracked, *tracking.failures),
    )


def _say(text: str) -> None:
    """A line on stderr, when there is no progress any more."""
    print(visible(text), file=sys.stderr, flush=True)


def _named_trackers() -> list[str]:
    names = os.environ.get("TASKLOOM_TRACKERS", "").split(",")
    return [name.strip() for name in names if name.strip()]


def _engine(catalogue: Any, request: str | Mapping[str, Any] | None, workers: int | None) -> dict[str, Any]:
    """An engine with its options, checked."""
    request = request or os.environ.get("TASKLOOM_ENGINE") or "local"
    options: dict[str, Any] = {"name": request} if isinstance(request, str) else dict(request)
    if workers is not None:
        options["workers"] = workers
    resolved: dict[str, Any]
    resolved, problems = catalogue.resolve("engine", options)
    if problems:
        raise RequestError(f"engine {options.get('name')!r}", problems)
    return resolved
