"""``taskloom grids``."""

from pathlib import Path
from typing import Any

import click

from taskloom.runs.api import installed
from taskloom.runs.api.answer import Answer
from taskloom.runs.api.registry import Registry
from taskloom.runs.cli.common import checked_catalogue, is_strict, say_answer
from taskloom.runs.cli.completion import GRID
from taskloom.runs.cli.options import json_option, registry_option, strict_option


@click.command(short_help="List the grids that can be run or were, or print a packaged one.")
@click.argument("name", required=False, type=GRID)
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
    if is_strict():
        checked_catalogue()
    answer: Answer[Any] = Registry(registry).grids() if name is None else installed.packaged_grid(name)
    say_answer(answer, "json" if as_json and name is None else "plain")
