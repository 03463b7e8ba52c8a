"""``taskloom explain``."""

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from taskloom.core.errors import RegistryError
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.api.cell import Cell, cell_of
from taskloom.runs.api.find import NO_CELL, place_of
from taskloom.runs.api.grid import Grid
from taskloom.runs.cli.common import checked_catalogue, say_answer
from taskloom.runs.cli.options import json_option, plan_options, registry_option

if TYPE_CHECKING:
    from taskloom.runs.grid.overrides import Overrides


@click.command(short_help="Say why a cell is new, cached, excluded or stale.")
@click.argument("source", metavar="CELL|GRID")
@click.argument("row", required=False)
@registry_option
@plan_options
@json_option
def explain(
    source: str, row: str | None, registry: Path, as_json: bool, overrides: "Overrides", allow_large: bool
) -> None:
    """Say why a cell is new, cached, excluded or stale, as a difference field by field.

    With CELL, a cell's identity or a prefix of it: which rows it is or was, when and with which versions it ran, and
    whether the same specification with today's data and plugins would still be that cell.

    With GRID, and perhaps the label of one ROW: what running it now would find. A row is cached (its result is
    there), stale (its earlier result was for another specification, other data or other plugins), new, running,
    interrupted, failed, oom, or excluded. Give the options with which the grid is run.

    \b
    Examples:
      taskloom explain 3f0c9a
      taskloom explain grid.json
      taskloom explain grid.json pcgrad
      taskloom explain quickstart --json | jq -r '.cells[].differences[].text'
    """
    subject: Grid | Cell
    try:
        subject = Grid(source, registry=registry)
        _ = subject.file
    except RegistryError as error:  # no grid is called that
        subject = _cell(registry, source if row is None else "", error)
    checked_catalogue(quiet=True)
    if isinstance(subject, Cell):
        say_answer(subject.explain(), as_json=as_json)
    else:
        say_answer(subject.explain(row, **vars(overrides), allow_large=allow_large), as_json=as_json)


def _cell(registry: Path, source: str, error: RegistryError) -> Cell:
    """Find a cell by its identity, after no grid of that name was found."""
    with Ledger.find(registry) or nullcontext() as ledger:
        if ledger is None or not source or not ledger.has_cell(source):
            raise RegistryError(f"{error}, {NO_CELL}") from None
        return cell_of(place_of(ledger, ledger.cell(source)), registry)
