"""A grid is run: plan → engine → ledger → table, with progress on stderr."""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from taskloom.core.errors import RequestError, TaskloomError, count
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.api.answer import TableAnswer, table_answer
from taskloom.runs.api.find import table_with_looks
from taskloom.runs.driver.signals import Stop
from taskloom.runs.show.parts import Aligned, as_html
from taskloom.runs.show.render import failures_summary, render
from taskloom.runs.show.visible import visible

if TYPE_CHECKING:  # which import torch
    from taskloom.runs.driver.loop import Outcome
    from taskloom.runs.grid.grid import GridFile
    from taskloom.runs.grid.plan import Plan


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class Ran(TableAnswer):
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
    *,
    engine: str | Mapping[str, Any] | None,
    workers: int | None,
    progress: bool,
    stop: Stop | None,
    trackers: Sequence[str | Mapping[str, Any]] | None,
    planning: Mapping[str, Any],
    **driving: Any,
) -> Ran:
    """Run what is not finished of a grid; ``planning`` and ``driving`` are arguments of make_plan and run_plan."""
    from taskloom.registry.installed.catalogue import load_catalogue
    from taskloom.runs.analysis.results import Results
    from taskloom.runs.analysis.tables import table_of
    from taskloom.runs.driver.drive import make_engine, run_plan
    from taskloom.runs.driver.trackers import Trackers, make_trackers
    from taskloom.runs.show.progress import show_progress
    from taskloom.runs.training.checkpoint import Keep

    if driving["keep"] not in get_args(Keep):
        raise TaskloomError(f"keep should be one of {', '.join(get_args(Keep))}. Found {driving['keep']!r}.")
    if not isinstance(driving["attempts"], int) or driving["attempts"] < 1:
        raise TaskloomError(f"attempts should be an integer of at least 1. Found {driving['attempts']!r}.")
    if driving["timeout"] is not None and not (isinstance(driving["timeout"], int | float) and driving["timeout"] > 0):
        raise TaskloomError(f"timeout should be a number of seconds above 0. Found {driving['timeout']!r}.")
    catalogue = load_catalogue()
    runner = make_engine(catalogue, _engine(catalogue, engine, workers))
    runner.check()  # whether it can work here
    told = make_trackers(catalogue, _named_trackers() if trackers is None else trackers)
    plan = _recorded_plan(grid, catalogue, registry, planning)
    stop = stop or Stop(end=interrupt)
    with (
        Ledger.open(registry, create=True) as ledger,
        Trackers(told, ledger.folder, plan.grid.name) as tracking,
    ):
        with show_progress(plan) if progress else nullcontext() as shown:
            if shown is not None:
                stop.say = tracking.say = shown.say
                driving["listen"] = shown
                for line in plan.notes:
                    shown.say(line)
            outcome = run_plan(plan, catalogue, ledger, engine=runner, stop=stop, trackers=tracking, **driving)
        tracking.say = _say if progress else tracking.say
        if outcome.interrupted and not outcome.halted:
            tracking.patience *= stop.asked < 2
            raise InterruptedRun(outcome)
        record = ledger.grid(plan.grid.name)
        results = Results(record, ledger.folder, epochs=ledger.epochs)
        table = table_with_looks(ledger, results, table_of(results))
        tracking.grid_finished(render(table, "github"))
    made = table_answer(table, () if progress else plan.notes)
    failures = [failures_summary(record, registry, {cell.id for cell in plan.chosen})]
    if outcome.halted:
        failures.append(f"No further cell was started: {outcome.halted}. Make room and run the same command again.")
    return Ran(
        **vars(made), outcome=outcome, failures="\n".join(filter(None, failures)), untracked=tuple(tracking.failures)
    )


def _recorded_plan(grid: "GridFile", catalogue: Any, registry: Path, planning: Mapping[str, Any]) -> "Plan":
    """Plan a grid and record it; plan again whenever another process has recorded the grid in between."""
    from taskloom.runs.grid.plan import make_plan

    while True:
        with Ledger.find(registry) or nullcontext() as known:
            plan = make_plan(grid, catalogue, known, **planning)
        with Ledger.open(registry, create=True) as ledger:  # only now: a refused request leaves nothing behind
            if ledger.record_grid(plan.grid.name, plan.grid.raw, plan.cells, basis=plan.basis):
                return plan


def _say(text: str) -> None:
    """A line on stderr, when there is no progress any more."""
    print(visible(text), file=sys.stderr, flush=True)


def _named_trackers() -> list[str]:
    names = os.environ.get("TASKLOOM_TRACKERS", "").split(",")
    return [name.strip() for name in names if name.strip()]


def _engine(catalogue: Any, given: str | Mapping[str, Any] | None, workers: int | None) -> dict[str, Any]:
    """An engine with its options, checked."""
    given = given or os.environ.get("TASKLOOM_ENGINE") or "local"
    options: dict[str, Any] = {"name": given} if isinstance(given, str) else dict(given)
    if workers is not None:
        options["workers"] = workers
    resolved: dict[str, Any]
    resolved, problems = catalogue.resolve("engine", options)
    if problems:
        raise RequestError(f"engine {options.get('name')!r}", problems)
    return resolved
