"""``taskloom run``."""

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taskloom.core.errors import RequestError, count
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.cli.common import checked_catalogue, counted_look, how_to_continue, note, say_table
from taskloom.runs.cli.options import (
    engine_options,
    format_option,
    is_strict,
    keep_option,
    plan_options,
    registry_option,
)
from taskloom.runs.driver.signals import INTERRUPTED, Stop
from taskloom.runs.show.render import failures_summary

if TYPE_CHECKING:
    from taskloom.runs.grid.overrides import Overrides
    from taskloom.runs.training.checkpoint import Keep


@click.command(short_help="Run a grid and print its comparison table.")
@click.argument("grid")
@registry_option
@engine_options
@keep_option
@click.option("--retry/--no-retry", default=True, show_default=True, help="Try failed cells again.")
@plan_options
@format_option
@click.pass_context
def run(
    context: click.Context,
    /,
    grid: str,
    registry: Path,
    engine: dict[str, Any],
    timeout: float | None,
    attempts: int,
    retry: bool,
    keep: "Keep",
    form: str,
    overrides: "Overrides",
    allow_large: bool,
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

    --seeds adds seeds to those of the grid, which stay with it in this registry: later runs and tables have them, too.
    `taskloom seeds GRID` says how many are worth it.

    What --weights, --epochs and --set change stands in the table beside the grid's own rows, as "sum [lr=0.001]", and
    stays there. With --name it is a table of its own, in which rows keep their labels, the baseline and claims hold,
    and later runs have the same settings. With --only the other rows keep their place and their results. A smoke run
    is recorded as GRID-smoke. Two files of one name are two grids; the second is recorded as FOLDER/NAME.

    \b
    Examples:
      taskloom run quickstart
      taskloom run quickstart --seeds +3
      taskloom run quickstart --only sum --set stages.0.optimizer.lr=0.001
      taskloom run quickstart --set stages.0.optimizer.lr=0.001 --name slow
      taskloom run losing-to-win --smoke
      taskloom run finetuning-techniques --data ~/data --weights minilm --epochs 1 --only 'SMART*'
      taskloom run grid.json --registry results --workers 2
      taskloom run grid.json --devices cuda:0,cuda:1 --cells-per-gpu 2
      taskloom run grid.json --format github > table.md
    """
    from taskloom.runs.grid.grid import load_grid

    loaded = load_grid(grid)  # before torch is imported: a misspelt path should be reported at once

    from taskloom.runs.analysis.results import Results
    from taskloom.runs.analysis.tables import table_of
    from taskloom.runs.driver.drive import make_engine, run_plan
    from taskloom.runs.driver.loop import broken_trackers
    from taskloom.runs.grid.plan import make_plan
    from taskloom.runs.show.progress import show_progress

    catalogue = checked_catalogue()
    given = {flag: value for flag, value in engine_flags.items() if value is not None}
    resolved, problems = catalogue.resolve("engine", {**engine, **given})
    if problems:
        raise RequestError(f"engine {engine.get('name')!r}", problems)
    runner = make_engine(catalogue, resolved)
    runner.check()  # whether it can work here
    with Ledger.find(registry) or nullcontext() as known:
        plan = make_plan(loaded, catalogue, known, allow_large=allow_large, overrides=overrides)
    with Ledger.open(registry, create=True) as ledger:  # only now: a refused request leaves nothing behind
        with show_progress(plan) as progress:
            stop = Stop(progress.say)
            for line in plan.notes:
                progress.say(line)
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
                keep=keep,
            )
        if outcome.interrupted and not outcome.halted:
            done = outcome.finished + outcome.cached + outcome.elsewhere
            failed = f", {outcome.failed} failed" if outcome.failed else ""
            note(f"Interrupted. {count(done, 'cell')} finished{failed}, {outcome.interrupted} unfinished.")
            note(how_to_continue())
            if stop.asked > 1:  # a thread that does not listen must not hold up the end
                ledger.close()
                sys.stderr.flush()
                os._exit(INTERRUPTED)
            context.exit(INTERRUPTED)
        record = ledger.grid(plan.grid.name)
        made = counted_look(ledger, table_of(Results(record, ledger.folder), ledger.epochs))
    say_table(made, form)
    if failures := failures_summary(record, registry, {cell.id for cell in plan.chosen}):
        note(failures)
    if outcome.halted:
        note(f"No further cell was started: {outcome.halted}. Make room and run the same command again.")
    broken = broken_trackers(catalogue.plugins) if is_strict() else []
    for failure in broken:
        note(f"--strict-plugins: {failure}")
    context.exit(1 if outcome.failed or broken else 0)
