"""``taskloom cells``."""

import json
from collections.abc import Sequence
from pathlib import Path

import click

from taskloom.runs.analysis.cell_states import STATES, CellState
from taskloom.runs.api.questions import CellAnswer, cells_answer
from taskloom.runs.api.registry import Registry
from taskloom.runs.cli.common import answers, nearby, say, say_answer
from taskloom.runs.cli.completion import GRID_OR_CELL
from taskloom.runs.cli.options import json_option, registry_option
from taskloom.runs.show.cells import watch_cells


@click.command(short_help="List the cells that were planned or run, or show one.")
@click.argument("source", required=False, metavar="[GRID | CELL]", type=GRID_OR_CELL)
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
    home = Registry(nearby(registry, source))
    answer = home.cells(source, wanted)
    if not watch or isinstance(answer, CellAnswer):
        say_answer(answer, "json" if as_json else "plain")
        return

    def listed(states: Sequence[CellState]) -> str:
        shown = cells_answer([state for state in states if not wanted or state.state in wanted])
        return json.dumps(shown.as_json(), allow_nan=False) if as_json else str(shown)

    watch_cells(lambda: [*home.cells(source).found], listed, say, answers(), plain=as_json)
