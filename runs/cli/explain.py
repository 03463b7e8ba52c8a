"""``taskloom explain``."""

from pathlib import Path
from typing import Any

import click

from taskloom.runs.api.grid import Grid
from taskloom.runs.api.registry import Registry
from taskloom.runs.cli.common import checked_catalogue, nearby, say_answer
from taskloom.runs.cli.completion import GRID_OR_CELL, ROW
from taskloom.runs.cli.options import json_option, plan_options, registry_option


@click.command(short_help="Say why a cell is new, cached, excluded or stale.")
@click.argument("source", metavar="CELL|GRID", type=GRID_OR_CELL)
@click.argument("row", required=False, type=ROW)
@registry_option
@plan_options
@json_option
def explain(source: str, row: str | None, registry: Path, as_json: bool, **planning: Any) -> None:
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
    subject = Registry(nearby(registry, source)).find(source, cells=row is None)
    checked_catalogue(quiet=True)
    answer = subject.explain(row, **planning) if isinstance(subject, Grid) else subject.explain()
    say_answer(answer, "json" if as_json else "plain")
