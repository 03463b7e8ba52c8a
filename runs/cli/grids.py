"""``taskloom grids``."""

import json
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taskloom.core.errors import TaskloomError, unknown
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.cli.common import checked_catalogue, note, say, say_json
from taskloom.runs.cli.options import is_strict, json_option, registry_option, strict_option
from taskloom.runs.show.render import listing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taskloom.registry.installed.manager import PackagedGrid


@click.command(short_help="List the grids that can be run or were, or print a packaged one.")
@click.argument("name", required=False)
@registry_option
@strict_option
@json_option
def grids(name: str | None, registry: Path, as_json: bool) -> None:
    """List the grids that come with the installed plugins, and those that were run in the registry.

    With NAME, print that packaged grid as it is written: a file to start from. One that should keep all rows of a
    packaged grid need not be a copy of it:

    \b
      {"extends": "quickstart", "seeds": [0, 1, 2, 3, 4]}

    \b
    Examples:
      taskloom grids
      taskloom grids quickstart > mine.json
      taskloom grids --json | jq -r '.packaged[].name'
    """
    from taskloom.registry.installed.manager import grid_plugins, packaged_grids

    if is_strict():
        checked_catalogue()
    for failure in grid_plugins().failed:
        note(f"left out: {failure}")
    if name is not None:
        say(_text(name, packaged_grids()).rstrip("\n"))
        return
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
    with Ledger.find(registry) or nullcontext() as ledger:
        recorded: list[dict[str, Any]] = [
            {
                "name": record.name,
                "description": record.spec.get("description", ""),
                "created": record.created,
                "updated": record.updated,
                "cells": dict(Counter(grid_cell.cell.status for grid_cell in record.cells)),
            }
            for record in (ledger.grids() if ledger is not None else ())
        ]
    if as_json:
        say_json({"packaged": packaged, "recorded": recorded})
        return
    rows = [(grid["name"], f"{grid['distribution']} {grid['version']}", grid["description"]) for grid in packaged]
    say(listing(rows, ("packaged", "from", "description")))
    if recorded:
        lines = []
        for grid in recorded:
            counts = ", ".join(f"{count} {status}" for status, count in sorted(grid["cells"].items()))
            lines.append((grid["name"], grid["updated"], counts, grid["description"]))
        say("\n" + listing(lines, (f"run in {registry}", "last", "cells", "description")))


def _text(name: str, packaged: "Mapping[str, PackagedGrid]") -> str:
    if name not in packaged:
        raise TaskloomError(unknown("packaged grid", name, packaged, where="packaged"))
    try:
        return packaged[name].path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise TaskloomError(f"packaged grid {name!r} cannot be read: {error}") from None


def _description(path: Path) -> str:
    try:
        return str(json.loads(path.read_text(encoding="utf-8-sig")).get("description", ""))
    except (OSError, ValueError, AttributeError) as error:
        return f"cannot be read: {error}"
