"""``taskloom cells``."""

import json
from collections.abc import Sequence
from pathlib import Path

import click

from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import CellRecord
from taskloom.runs.analysis.cell_states import STATES, CellState, states_of_cell
from taskloom.runs.api.find import states_in
from taskloom.runs.cli.common import answers, grid_or_cell, say, say_json
from taskloom.runs.cli.options import json_option, registry_option
from taskloom.runs.show.cells import cell_json, describe_cell, list_cells, watch_cells


@click.command(short_help="List the cells that were planned or run, or show one.")
@click.argument("what", required=False, metavar="[GRID | CELL]")
@registry_option
@click.option(
    "--state", "wanted", type=click.Choice(STATES), multiple=True, help="Only cells in this state; may be repeated."
)
@click.option("--watch", is_flag=True, help="Refresh every second until nothing runs or waits; Ctrl-C ends.")
@json_option
def cells(what: str | None, registry: Path, wanted: tuple[str, ...], watch: bool, as_json: bool) -> None:
    """List the cells of GRID, or of everything that the registry knows; or show one CELL.

    Works at any time, from any terminal, while cells run. A cell is one row of the table with one seed. Its status
    is planned, running, interrupted (the next run continues from its last checkpoint), finished, failed or oom (out
    of memory). A running cell is listed with its worker and its driver.

    CELL is an identity or a unique prefix of one: shows what the cell is, its attempts with reasons, its epochs, and
    the end of its log.

    \b
    Examples:
      taskloom cells
      taskloom cells quickstart --watch
      taskloom cells quickstart --state failed --state oom
      taskloom cells 3f0c2a
      taskloom cells quickstart --json | jq '.cells[] | select(.status == "failed") | .reason'
    """
    with Ledger.open(registry, create=False) as ledger:
        found = None if what is None else grid_or_cell(ledger, what)
        if isinstance(found, CellRecord):
            places = states_of_cell(ledger, found)
            if as_json:
                say_json(cell_json(ledger, places))
            else:
                say(describe_cell(ledger, places))
            return

        def look() -> list[CellState]:
            return states_in(ledger, None if found is None else found.name)

        def write(states: Sequence[CellState]) -> str:
            shown = [each for each in states if not wanted or each.state in wanted]
            if not as_json:
                return list_cells(shown)
            answer = {"cells": [each.as_json() for each in shown]}
            return json.dumps(answer, indent=None if watch else 2, allow_nan=False)

        if watch:
            watch_cells(look, write, say, answers(), plain=as_json)
        else:
            say(write(look()))
