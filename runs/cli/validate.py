"""``taskloom validate``."""

from typing import TYPE_CHECKING

import click

from taskloom.core.errors import Problem, RequestError, TaskloomError
from taskloom.runs.cli.common import json_option, note, say, say_json, strict_check, strict_option, yes_option
from taskloom.runs.cli.overriding import override_options

if TYPE_CHECKING:
    from taskloom.runs.grid.overrides import Overrides


@click.command(short_help="Report all errors of a grid.")
@click.argument("grid")
@override_options
@yes_option
@strict_option
@json_option
@click.pass_context
def validate(context: click.Context, grid: str, yes: bool, as_json: bool, overrides: "Overrides") -> None:
    """Check GRID and everything that it names, and report all errors together. Exits with 2 if there are any.

    \b
    Examples:
      taskloom validate grid.json
      taskloom validate robust-embeddings --data ~/data --weights minilm
      taskloom validate grid.json --json | jq -r '.errors[] | "\\(.path): \\(.message)"'
    """
    from taskloom.registry.installed.catalogue import load_catalogue
    from taskloom.runs.grid.grid import load_grid
    from taskloom.runs.grid.plan import make_plan

    try:
        catalogue = strict_check(load_catalogue())
        made = make_plan(load_grid(grid), catalogue, None, allow_large=yes, overrides=overrides)
    except TaskloomError as error:
        if not as_json:
            raise
        problems = error.problems if isinstance(error, RequestError) else [Problem("", str(error))]
        say_json({"valid": False, "errors": [vars(problem) for problem in problems]})
        context.exit(2)
    if as_json:
        say_json({"valid": True, "errors": []})
        return
    for line in made.notes:
        note(line)
    rows = len({cell.label for cell in made.chosen})
    say(f"{grid} is valid: {len(made.chosen)} cells in {rows} rows")
