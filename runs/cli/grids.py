"""``taskloom grids``."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import click

from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import GridRecord
from taskloom.runs.cli.common import (
    json_option,
    listing,
    note_left_out,
    registry_option,
    say,
    say_json,
    strict_check_only,
    strict_option,
)


@click.command(short_help="List the grids that can be run or were.")
@registry_option
@strict_option
@json_option
def grids(registry: Path, as_json: bool) -> None:
    """List the grids that come with the installed plugins, and those that were run in the registry.

    \b
    Examples:
      taskloom grids
      taskloom grids --json | jq -r '.packaged[].name'
    """
    from taskloom.registry.installed.manager import grid_plugins, packaged_grids

    strict_check_only()
    note_left_out(grid_plugins().failed)
    packaged = [
        {
            "name": grid.name,
            "description": _description(grid.path),
            "plugin": grid.plugin.name,
            "distribution": grid.plugin.distribution,
            "version": grid.plugin.version,
            "path": str(grid.path),
        }
        for grid in packaged_grids().values()
    ]
    ledger = Ledger.find(registry)
    recorded: list[dict[str, Any]] = []
    if ledger is not None:
        with ledger:
            recorded = [_recorded(record) for record in ledger.grids()]
    if as_json:
        say_json({"packaged": packaged, "recorded": recorded})
        return
    rows = [(grid["name"], f"{grid['distribution']} {grid['version']}", grid["description"]) for grid in packaged]
    say(listing(rows, ("packaged", "from", "description")))
    if recorded:
        lines = [(grid["name"], grid["updated"], _counts(grid["cells"]), grid["description"]) for grid in recorded]
        say("\n" + listing(lines, (f"run in {registry}", "last", "cells", "description")))


def _recorded(record: GridRecord) -> dict[str, Any]:
    return {
        "name": record.name,
        "description": record.spec.get("description", ""),
        "created": record.created,
        "updated": record.updated,
        "cells": dict(Counter(place.cell.status for place in record.cells)),
    }


def _counts(cells: dict[str, int]) -> str:
    return ", ".join(f"{count} {status}" for status, count in sorted(cells.items()))


def _description(path: Path) -> str:
    try:
        return str(json.loads(path.read_text(encoding="utf-8-sig")).get("description", ""))
    except (OSError, ValueError, AttributeError) as error:
        return f"cannot be read: {error}"
