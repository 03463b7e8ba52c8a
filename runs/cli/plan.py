"""``taskloom plan``."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from taskloom.registry.results.ledger import Ledger
from taskloom.runs.cli.common import (
    json_option,
    listing,
    note,
    registry_option,
    say,
    say_json,
    strict_check,
    strict_option,
    yes_option,
)
from taskloom.runs.cli.overriding import override_options

if TYPE_CHECKING:
    from taskloom.runs.grid.overrides import Overrides


@click.command(short_help="Show what running a grid would do.")
@click.argument("grid")
@registry_option
@override_options
@yes_option
@strict_option
@json_option
def plan(grid: str, registry: Path, yes: bool, as_json: bool, overrides: "Overrides") -> None:
    """Check GRID and show what running it would do. Writes nothing.

    A cell's status is new, interrupted (goes on from its checkpoint), failed (is tried again) or finished
    (is not run again).

    \b
    Examples:
      taskloom plan quickstart
      taskloom plan losing-to-win --data ~/data --weights minilm
      taskloom plan grid.json --json | jq '.cells[] | {label, seed, status}'
    """
    from taskloom.registry.installed.catalogue import load_catalogue
    from taskloom.runs.grid.grid import load_grid
    from taskloom.runs.grid.plan import make_plan

    loaded = load_grid(grid)
    ledger = Ledger.find(registry)
    try:
        made = make_plan(loaded, strict_check(load_catalogue()), ledger, allow_large=yes, overrides=overrides)
    finally:
        if ledger is not None:
            ledger.close()
    for line in made.notes:
        note(line)
    if as_json:
        keys = ("id", "label", "seed", "status", "spec")
        say_json({"cells": [{key: getattr(cell, key) for key in keys} for cell in made.chosen]})
        return
    say(
        listing(
            [(cell.id, cell.label, cell.seed, cell.status) for cell in made.chosen], ("cell", "label", "seed", "status")
        )
    )
    counts = Counter(cell.status for cell in made.chosen)
    say(f"\n{len(made.chosen)} cells: " + ", ".join(f"{count} {status}" for status, count in counts.items()))
