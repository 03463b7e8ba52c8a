"""``taskloom table``."""

from pathlib import Path

import click

from taskloom.registry.ledger import Ledger
from taskloom.runs.commands.common import format_option, on_terminal, recorded_grid, registry_option, say
from taskloom.runs.render import render
from taskloom.runs.tables import table_of


@click.command(short_help="Print the comparison table of a grid.")
@click.argument("grid")
@registry_option
@format_option
def table(grid: str, registry: Path, form: str) -> None:
    """Print the comparison table of GRID as far as it was run.

    GRID is the name of a grid in the registry or the path of its JSON file. Each row is the mean over its
    finished seeds ± their sample standard deviation; the best mean of a column is bold, or marked with * where
    plain text goes to a file. A row that lacks seeds shows how many are in and does not compete. Below the
    table stands why a figure is missing.

    \b
    Examples:
      taskloom table quickstart
      taskloom table grid.json --format latex > table.tex
      taskloom table quickstart --format json | jq '.[0].metrics.overall.mean'
    """
    with Ledger.open(registry, create=False) as ledger:
        record = recorded_grid(ledger, grid)
    say(render(table_of(record), form, terminal=on_terminal()))
