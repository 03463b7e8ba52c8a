"""``taskloom plan``."""

from collections import Counter
from pathlib import Path

import click

from taskloom.registry.ledger import Ledger
from taskloom.runs.commands.common import (
    json_option,
    listing,
    note,
    registry_option,
    say,
    say_json,
    yes_option,
)


@click.command(short_help="Show what running a grid would do.")
@click.argument("grid")
@registry_option
@yes_option
@json_option
def plan(grid: str, registry: Path, yes: bool, as_json: bool) -> None:
    """Check GRID and show what running it would do. Writes nothing.

    A cell's status is new, interrupted (goes on from its checkpoint), failed (is tried again) or finished
    (is not run again).

    \b
    Examples:
      taskloom plan quickstart
      taskloom plan grid.json --json | jq '.cells[] | {label, seed, status}'
    """
    from taskloom.registry.catalogue import load_catalogue
    from taskloom.runs.grid import load_grid
    from taskloom.runs.plan import make_plan

    loaded = load_grid(grid)
    ledger = Ledger.find(registry)
    try:
        made = make_plan(loaded, load_catalogue(), ledger, allow_large=yes)
    finally:
        if ledger is not None:
            ledger.close()
    for line in made.notes:
        note(line)
    if as_json:
        keys = ("id", "label", "seed", "status", "spec")
        say_json({"cells": [{key: getattr(cell, key) for key in keys} for cell in made.cells]})
        return
    say(
        listing(
            [(cell.id, cell.label, cell.seed, cell.status) for cell in made.cells], ("cell", "label", "seed", "status")
        )
    )
    counts = Counter(cell.status for cell in made.cells)
    say(f"\n{len(made.cells)} cells: " + ", ".join(f"{count} {status}" for status, count in counts.items()))
