"""``taskloom cells``."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from taskloom.registry.ledger import Ledger
from taskloom.registry.records import CellRecord
from taskloom.runs.commands.common import (
    json_option,
    listing,
    recorded_grid,
    registry_option,
    say,
    say_json,
)

HEADERS = ("cell", "grid", "label", "seed", "status", "epochs", "overall", "seconds", "reason")
SHORT = 12  # characters of an identity that are shown


@click.command(short_help="List the cells that were planned or run.")
@click.argument("grid", required=False)
@registry_option
@json_option
def cells(grid: str | None, registry: Path, as_json: bool) -> None:
    """List the cells of GRID, or of everything that the registry knows.

    A cell is one row of the table with one seed. Its status is planned, running (or interrupted), finished, or
    failed with a reason.

    \b
    Examples:
      taskloom cells
      taskloom cells quickstart
      taskloom cells quickstart --json | jq '.cells[] | select(.status == "failed") | .reason'
    """
    with Ledger.open(registry, create=False) as ledger:
        grids = ledger.grids() if grid is None else (recorded_grid(ledger, grid),)
        places = [(record.name, place.label, place.seed, place.cell) for record in grids for place in record.cells]
        if grid is None:
            known = {cell.id for *_, cell in places}
            # A grid that was changed leaves its former cells behind; their results still count.
            places += [("", "", cell.spec["seed"], cell) for cell in ledger.cells() if cell.id not in known]
    if as_json:
        say_json({"cells": [_object(*place) for place in places]})
    else:
        say(listing([_line(*place) for place in places], HEADERS))


def _line(grid: str, label: str, seed: int, cell: CellRecord) -> tuple[object, ...]:
    overall = f"{cell.scores['overall']:.3f}" if "overall" in cell.scores else ""
    seconds = "" if cell.seconds is None else f"{cell.seconds:.1f}"
    return (cell.id[:SHORT], grid, label, seed, cell.status, cell.epochs, overall, seconds, cell.reason)


def _object(grid: str, label: str, seed: int, cell: CellRecord) -> dict[str, Any]:
    facts = asdict(cell)
    # JSON has no NaN; a score that is no number is null.
    facts["scores"] = {task: x if math.isfinite(x) else None for task, x in cell.scores.items()}
    return {"id": facts.pop("id"), "grid": grid or None, "label": label or None, "seed": seed, **facts}
