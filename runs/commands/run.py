"""``taskloom run``."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from taskloom.registry.artifacts import only_driver
from taskloom.registry.ledger import Ledger
from taskloom.runs.commands.common import (
    format_option,
    note,
    on_terminal,
    registry_option,
    say,
    strict_check,
    strict_end,
    strict_option,
    yes_option,
)
from taskloom.runs.commands.overriding import override_options
from taskloom.runs.render import render
from taskloom.runs.tables import table_of

if TYPE_CHECKING:
    from taskloom.runs.overrides import Overrides

INTERRUPTED = 130


@click.command(short_help="Run a grid and print its comparison table.")
@click.argument("grid")
@registry_option
@click.option("--engine", default="inline", show_default=True, help="Where cells are run.")
@click.option("--retry/--no-retry", default=True, show_default=True, help="Try failed cells again.")
@override_options
@yes_option
@strict_option
@format_option
@click.pass_context
def run(
    context: click.Context,
    grid: str,
    registry: Path,
    engine: str,
    retry: bool,
    yes: bool,
    form: str,
    overrides: "Overrides",
) -> None:
    """Run every cell of GRID that is not finished, then print the comparison table.

    GRID is the name of a packaged grid (see `taskloom grids`) or the path of a JSON file. All errors are reported
    before anything is trained. Progress goes to stderr and the table to stdout. Exits with 0 when every cell is
    finished, 1 when some cell failed, 2 when the request was wrong.

    What --data, --weights, --epochs, --set and --smoke change is part of each cell's recorded specification. A
    smoke run is recorded as GRID-smoke. With --only the other rows keep their place in the table.

    \b
    Examples:
      taskloom run quickstart
      taskloom run losing-to-win --smoke
      taskloom run finetuning-techniques --data ~/data --weights minilm --epochs 1 --only 'SMART*'
      taskloom run grid.json --registry results
      taskloom run grid.json --format github > table.md
    """
    from taskloom.runs.grid import load_grid

    loaded = load_grid(grid)  # before torch is imported: a misspelt path should be told at once

    from taskloom.registry.catalogue import load_catalogue
    from taskloom.runs.drive import run_plan
    from taskloom.runs.plan import make_plan
    from taskloom.runs.progress import show_progress

    catalogue = strict_check(load_catalogue())
    catalogue.get("engine", engine)  # before a registry is made: a misspelt name should leave nothing behind
    found = Ledger.find(registry)
    try:
        plan = make_plan(loaded, catalogue, found, allow_large=yes, overrides=overrides)
    except BaseException:
        if found is not None:
            found.close()
        raise
    with found or Ledger.open(registry, create=True) as ledger, only_driver(ledger.folder):
        try:
            with show_progress(plan) as progress:
                for line in plan.notes:
                    progress.say(line)
                outcome = run_plan(plan, catalogue, ledger, engine=engine, retry_failed=retry, listen=progress)
        except KeyboardInterrupt:
            outcome = None
        if outcome is None or outcome.interrupted:
            note("Interrupted. Finished cells and epochs are kept; the same command goes on from there.")
            context.exit(INTERRUPTED)
        record = ledger.grid(plan.grid.name)
    say(render(table_of(record), form, terminal=on_terminal()))
    context.exit(max(strict_end(catalogue), bool(outcome.failed)))
