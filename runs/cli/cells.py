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
@click.argument("source", required=False, metavar="[GRID | CELL]")
@registry_option
@click.option(
    "--state", "wanted", type=click.Choice(STATES), multiple=True, help="Only cells in this state; may be repeated."
)
@click.option("--watch", is_flag=True, help="Refresh every second until nothing runs or waits; Ctrl-C ends.")
@json_option
def cells(source: str | None, registry: Path, wanted: tuple[str, ...], watch: bool, as_json: bool) -> None:
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
        record = None if source is None else grid_or_cell(ledger, source)
        if isinstance(record, CellRecord):
            row_states = states_of_cell(ledger, record)
            if as_json:
                say_json(cell_json(ledger, row_states))
            else:
                say(describe_cell(ledger, row_states))
            return

        def look() -> list[CellState]:
            return states_in(ledger, None if record is None else record.name)

        def write(states: Sequence[CellState]) -> str:
            shown = [state for state in states if not wanted or state.state in wanted]
            if not as_json:
                return list_cells(shown)
            answer = {"cells": [state.as_json() for state in shown]}
            return json.dumps(answer, indent=None if watch else 2, allow_nan=False)

        if watch:
            watch_cells(look, write, say, answers(), plain=as_json)
        else:
            say(write(look()))
