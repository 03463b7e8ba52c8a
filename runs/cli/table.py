"""``taskloom table``."""

from contextlib import nullcontext
from pathlib import Path

import click

from taskloom.core.errors import RequestError
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import CellRecord, GridCell, GridRecord
from taskloom.runs.cli.common import NotRunError, recorded_grid, say_table
from taskloom.runs.cli.options import format_option, registry_option


@click.command(short_help="Print the comparison table of a grid.")
@click.argument("grid")
@registry_option
@click.option("--reported", is_flag=True, help="Published figures beside ours, with the difference.")
@format_option
def table(grid: str, registry: Path, reported: bool, form: str) -> None:
    """Print the comparison table of GRID as far as it was run.

    GRID is the name of a grid in the registry or the path of its JSON file. Each row is the mean over its
    finished seeds ± their sample standard deviation; the best mean of a column is bold, or marked with * where
    plain text goes to a file. A row that lacks seeds shows how many are in and does not compete. Below the
    table are the reasons for missing figures.

    With --reported the figures that somebody published for a row are shown beside ours, with the difference (ours less
    theirs) where both are of the dev split. A published overall score is marked with † if it does not follow from
    the figures beside it, whatever rounding did. Works before anything was run, too.

    \b
    Examples:
      taskloom table quickstart
      taskloom table finetuning-techniques --reported
      taskloom table grid.json --format latex > table.tex
      taskloom table quickstart --format json | jq '.[0].metrics.overall.mean'
    """
    # For published figures the grid's file is enough.
    with (Ledger.find(registry) if reported else Ledger.open(registry, create=False)) or nullcontext() as ledger:
        try:
            record = unrun_grid(grid) if ledger is None else recorded_grid(ledger, grid)
        except NotRunError:
            if not reported:
                raise
            record = unrun_grid(grid)
    say_table(record, form, reported=reported)


def unrun_grid(source: str) -> GridRecord:
    """A grid's record before its first run: all holes."""
    from taskloom.runs.grid.expansion import expand
    from taskloom.runs.grid.grid import load_grid

    grid = load_grid(source)
    expansion = expand(grid, allow_large=True)
    if expansion.problems:
        raise RequestError(str(grid.path), expansion.problems)
    cells = [
        GridCell(variant.label, seed, variant.reported, CellRecord("", variant.spec, "planned"))
        for variant in expansion.variants
        for seed in grid.spec.seeds
    ]
    return GridRecord(grid.name, grid.raw, "", "", tuple(cells))
