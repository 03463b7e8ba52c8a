"""``taskloom table``."""

from pathlib import Path
from typing import Any

import click

from taskloom.core.errors import RequestError
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import CellRecord, GridCell, GridRecord
from taskloom.runs.analysis.tables import table_of
from taskloom.runs.cli.common import (
    NotRunError,
    format_option,
    on_terminal,
    recorded_grid,
    registry_option,
    say,
)
from taskloom.runs.show.render import render


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
    table stands why a figure is missing.

    With --reported the figures that somebody published for a row stand beside ours, with the difference (ours less
    theirs) where both are of the dev split. A published overall score is marked with † if it does not follow from
    the figures beside it, whatever rounding did. Works before anything was run, too.

    \b
    Examples:
      taskloom table quickstart
      taskloom table finetuning-techniques --reported
      taskloom table grid.json --format latex > table.tex
      taskloom table quickstart --format json | jq '.[0].metrics.overall.mean'
    """
    record = _known(grid, registry) if reported else _recorded(grid, registry)
    say(render(table_of(record), form, terminal=on_terminal(), reported=reported), styled=True)


def _recorded(source: str, registry: Path) -> GridRecord:
    with Ledger.open(registry, create=False) as ledger:
        return recorded_grid(ledger, source)


def _known(source: str, registry: Path) -> GridRecord:
    """The grid as it was last run, or as it stands in its file."""
    ledger = Ledger.find(registry)
    if ledger is None:
        return _unrun(source)
    with ledger:
        try:
            return recorded_grid(ledger, source)
        except NotRunError:
            return _unrun(source)


def _unrun(source: str) -> GridRecord:
    """A grid's record before its first run: all holes."""
    from taskloom.runs.grid.expansion import expand
    from taskloom.runs.grid.grid import load_grid

    grid = load_grid(source)
    expansion = expand(grid, allow_large=True)
    if expansion.problems:
        raise RequestError(str(grid.path), expansion.problems)
    cells = [
        GridCell(variant.label, seed, variant.reported, _new_cell(variant.spec))
        for variant in expansion.variants
        for seed in grid.spec.seeds
    ]
    return GridRecord(grid.name, grid.raw, "", "", tuple(cells))


def _new_cell(spec: dict[str, Any]) -> CellRecord:
    return CellRecord(
        id="",
        spec=spec,
        status="planned",
        reason=None,
        attempts=0,
        created="",
        started=None,
        finished=None,
        seconds=None,
        peak_memory=None,
        device=None,
        versions={},
        best_epoch=None,
    )
