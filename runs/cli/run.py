"""``taskloom run``."""

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taskloom.core.errors import EngineError, count
from taskloom.registry.results.errors import HeldUpError
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.analysis.tables import table_of
from taskloom.runs.cli.common import (
    format_option,
    note,
    note_left_out,
    on_terminal,
    registry_option,
    say,
    strict_check,
    strict_end,
    strict_option,
    yes_option,
)
from taskloom.runs.cli.engine_options import checked_engine, engine_options
from taskloom.runs.cli.overriding import override_options
from taskloom.runs.driver.signals import INTERRUPTED, Stop
from taskloom.runs.show.render import failures_summary, render
from taskloom.runs.show.visible import visible

if TYPE_CHECKING:
    from taskloom.runs.driver.loop import Outcome
    from taskloom.runs.grid.overrides import Overrides


_GIVEN = "taskloom run"


class _Run(click.Command):
    """Keeps the arguments that it was given, to show the command that continues a run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_GIVEN] = shlex.join(["taskloom", "run", *args])
        return super().parse_args(ctx, args)


@click.command(cls=_Run, short_help="Run a grid and print its comparison table.")
@click.argument("grid")
@registry_option
@engine_options
@click.option("--retry/--no-retry", default=True, show_default=True, help="Try failed cells again.")
@override_options
@yes_option
@strict_option
@format_option
@click.pass_context
def run(
    context: click.Context,
    /,
    grid: str,
    registry: Path,
    engine: str,
    timeout: float | None,
    attempts: int,
    retry: bool,
    yes: bool,
    form: str,
    overrides: "Overrides",
    **engine_flags: Any,
) -> None:
    """Run every cell of GRID that is not finished, then print the comparison table.

    GRID is the name of a packaged grid (see `taskloom grids`) or the path of a JSON file. All errors are reported
    before anything is trained. Progress goes to stderr and the table to stdout. Exits with 0 when every cell is
    finished, 1 when some cell failed, the ledger could not be written or the cluster is gone, 2 when the request was
    wrong, 130 when it was interrupted.

    Ctrl-C, SIGTERM or a closed terminal lets the running cells write a checkpoint; Ctrl-C twice ends at once. The
    same command continues from there. Several runs may share a registry, and a grid: each cell is run by one of them,
    and the others wait for it.

    What --data, --weights, --epochs, --set and --smoke change is part of each cell's recorded specification. A
    smoke run is recorded as GRID-smoke. With --only the other rows keep their place in the table.

    \b
    Examples:
      taskloom run quickstart
      taskloom run losing-to-win --smoke
      taskloom run finetuning-techniques --data ~/data --weights minilm --epochs 1 --only 'SMART*'
      taskloom run grid.json --registry results --workers 2
      taskloom run grid.json --devices cuda:0,cuda:1 --cells-per-gpu 2
      taskloom run grid.json --format github > table.md
    """
    from taskloom.runs.grid.grid import load_grid

    loaded = load_grid(grid)  # before torch is imported: a misspelt path should be reported at once

    from taskloom.registry.installed.catalogue import load_catalogue
    from taskloom.runs.driver.drive import run_plan
    from taskloom.runs.grid.plan import make_plan
    from taskloom.runs.show.progress import show_progress

    catalogue = strict_check(load_catalogue())
    note_left_out(catalogue.failed)
    with _exit_code_1(), ExitStack() as stack:
        runner = checked_engine(catalogue, engine, engine_flags)
        ledger = Ledger.find(registry)
        if ledger is not None:
            stack.enter_context(ledger)
        plan = make_plan(loaded, catalogue, ledger, allow_large=yes, overrides=overrides)
        if ledger is None:  # only now: a refused request leaves nothing behind
            ledger = stack.enter_context(Ledger.open(registry, create=True))
        with show_progress(plan) as progress:
            for line in plan.notes:
                progress.say(line)
            stop = Stop(progress.say)
            outcome = run_plan(
                plan,
                catalogue,
                ledger,
                engine=runner,
                retry_failed=retry,
                attempts=attempts,
                timeout=timeout,
                listen=progress,
                stop=stop,
            )
        if outcome.interrupted and not outcome.halted:
            note(f"{_interrupted(outcome)} {_how_to_continue()}")
            if stop.asked > 1:  # a thread that does not listen must not hold up the end
                ledger.close()
                sys.stderr.flush()
                os._exit(INTERRUPTED)
            context.exit(INTERRUPTED)
        record = ledger.grid(plan.grid.name)
    say(render(table_of(record), form, terminal=on_terminal()), styled=True)
    if failures := failures_summary(record, registry, {cell.id for cell in plan.chosen}):
        note(failures)
    if outcome.halted:
        note(f"No further cell was started: {outcome.halted}. Make room and run the same command again.")
    context.exit(max(strict_end(catalogue), int(outcome.failed > 0)))


@contextmanager
def _exit_code_1() -> Iterator[None]:
    """For errors that are not the request's fault: the same one may succeed later."""
    try:
        yield
    except (EngineError, HeldUpError) as error:
        raise click.ClickException(visible(f"{error}\n{_how_to_continue()}")) from error


def _how_to_continue() -> str:
    command = click.get_current_context().meta[_GIVEN]
    return f"Run the same command again to continue from the last checkpoints:\n  {command}"


def _interrupted(outcome: "Outcome") -> str:
    done = outcome.finished + outcome.cached + outcome.elsewhere
    failed = f", {outcome.failed} failed" if outcome.failed else ""
    return f"Interrupted. {count(done, 'cell')} finished{failed}, {outcome.interrupted} unfinished."
