"""``taskloom cells``."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from taskloom.core.errors import RegistryError
from taskloom.core.units import out_of_memory
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import GridRecord
from taskloom.runs.analysis.cell_states import STATES, CellState, states_of, states_of_cell
from taskloom.runs.cli.common import (
    NotRunError,
    json_option,
    listing,
    recorded_grid,
    registry_option,
    say,
    say_json,
)

HEADERS = ("cell", "grid", "label", "seed", "status", "epochs", "overall", "seconds", "attempts")
#: Columns that are left out where nothing stands in them.
MORE = ("worker", "driver", "reason")
#: Columns that a narrow terminal does without, and how much of a reason it shows.
SPARE, REASON = ("grid", "driver", "seconds", "cell", "overall"), 16
SHORT = 12  # characters of an identity that are shown


@click.command(short_help="List the cells that were planned or run, or show one.")
@click.argument("what", required=False, metavar="[GRID | CELL]")
@registry_option
@click.option("--state", "wanted", type=click.Choice(STATES), multiple=True, help="Only these; may be repeated.")
@click.option("--watch", is_flag=True, help="Look again every second until nothing runs or waits; Ctrl-C ends.")
@json_option
def cells(what: str | None, registry: Path, wanted: tuple[str, ...], watch: bool, as_json: bool) -> None:
    """List the cells of GRID, or of everything that the registry knows; or show one CELL.

    Works at any time, from any terminal, while cells run. A cell is one row of the table with one seed. Its status
    is planned, running, interrupted (the next run goes on from its last checkpoint), finished, failed or oom (out of
    memory); where it runs stand its worker and its driver, with the last sign of life.

    CELL is an identity, or as much of its beginning as is unique: shows what the cell is, its attempts with reasons,
    its epochs, and the end of its log.

    \b
    Examples:
      taskloom cells
      taskloom cells quickstart --watch
      taskloom cells quickstart --state failed --state oom
      taskloom cells 3f0c2a
      taskloom cells quickstart --json | jq '.cells[] | select(.status == "failed") | .reason'
    """
    with Ledger.open(registry, create=False) as ledger:
        look = _find(ledger, what)
        if isinstance(look, str):
            _show(ledger, look, as_json)
            return

        def write(states: Sequence[CellState], width: int | None = None) -> str:
            shown = [each for each in states if not wanted or each.state in wanted]
            if as_json:
                indent = None if watch else 2
                return json.dumps({"cells": [each.as_json() for each in shown]}, indent=indent, allow_nan=False)
            return _listing(shown, width)

        if watch:
            from taskloom.runs.show.watch import watch_cells

            watch_cells(look, write, say, plain=as_json)
        else:
            say(write(look()))


def _find(ledger: Ledger, what: str | None) -> "Callable[[], list[CellState]] | str":
    """How to look at what was asked for: a listing's states, or the identity of a single cell. Grids go first."""
    if what is None:
        return lambda: _everything(ledger)
    try:
        name = recorded_grid(ledger, what).name
    except NotRunError:
        raise
    except RegistryError as no_grid:
        if ledger.has_cell(what):
            return ledger.cell(what).id
        shown = f"{no_grid}, and no cell whose identity begins so; `taskloom cells` lists them"
        raise RegistryError(shown) from None
    return lambda: states_of(ledger, [ledger.grid(name)])


def _everything(ledger: Ledger) -> list[CellState]:
    grids: Sequence[GridRecord] = ledger.grids()
    known = {place.cell.id for grid in grids for place in grid.cells}
    # A grid that was changed leaves its former cells behind; their results still count.
    return states_of(ledger, grids, [cell for cell in ledger.cells() if cell.id not in known])


def _show(ledger: Ledger, cell: str, as_json: bool) -> None:
    from taskloom.runs.show.cell_view import view_json, view_text

    places = states_of_cell(ledger, cell)
    if as_json:
        say_json(view_json(ledger, places))
    else:
        say(view_text(ledger, places))


def _listing(states: Sequence[CellState], width: int | None = None) -> str:
    """Cells as a table; for a terminal of some width it leaves columns out until the rest is seen."""
    rows = [dict(zip((*HEADERS, *MORE), _row(each), strict=True)) for each in states]
    columns = [*HEADERS, *(name for name in MORE if any(row[name] for row in rows))]
    spare = [name for name in SPARE if name in columns and (name != "grid" or len({each.grid for each in states}) < 2)]
    while True:
        text = listing([[row[name] for name in columns] for row in rows], columns)
        if width is None or not spare or _needs(text, columns) <= width:
            return text
        columns.remove(spare.pop(0))


def _needs(text: str, columns: Sequence[str]) -> int:
    """How wide a listing is, with as much of its reasons as has to be seen."""
    line = text.splitlines()[1]  # of dashes
    return line.rfind(" ") + 1 + REASON if columns[-1] == "reason" else len(line)


def _row(each: CellState) -> tuple[object, ...]:
    cell = each.cell
    score = "" if each.score is None else f"{each.score:.3f}"
    seconds = "" if each.seconds is None else f"{each.seconds:.1f}"
    reason = out_of_memory(each.reason or "") if each.state == "oom" else each.reason
    found = (cell.id[:SHORT], each.grid, each.label, each.seed, each.state, each.epochs, score, seconds, cell.attempts)
    return (*found, each.worker, each.driver, reason)
