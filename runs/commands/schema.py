"""``taskloom schema``."""

import click

from taskloom.runs.commands.common import say_json, strict_check, strict_option


@click.command(short_help="Print the JSON schema of grids.")
@strict_option
def schema() -> None:
    """Print the JSON schema of grids, with every installed component and its options.

    An editor that knows the schema completes and checks a grid while it is written: save it, and name the file
    under "$schema" in the grid.

    \b
    Example:
      taskloom schema > grid.schema.json
    """
    from taskloom.registry.catalogue import load_catalogue
    from taskloom.registry.schema import grid_schema

    say_json(grid_schema(strict_check(load_catalogue())))
