"""``taskloom schema``."""

import json
import os
from pathlib import Path

import click

from taskloom.core.errors import TaskloomError
from taskloom.registry.results.artifacts import write_text
from taskloom.runs.cli.common import note, note_left_out, say, strict_check, strict_option


@click.command(short_help="Write the JSON schema of grids.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write it there instead of to stdout.")
@strict_option
def schema(out: Path | None) -> None:
    """Write the JSON schema of grids, with every installed component and its options.

    An editor that knows the schema completes and checks a grid while it is written: names, options with their types,
    ranges, defaults and docstrings. Name the file under "$schema" in the grid:

    \b
      {"$schema": "./grid.schema.json", "base": …}

    It accepts every valid grid; `taskloom validate` checks the rest, such as where dotted paths lead.

    VS Code needs nothing else. For all grids of a folder without "$schema" in them, put into .vscode/settings.json:

    \b
      {"json.schemas": [{"fileMatch": ["grids/*.json"], "url": "./grid.schema.json"}]}

    \b
    Examples:
      taskloom schema --out grid.schema.json
      taskloom schema | jq '."$defs"."loss.smart".properties | keys'
    """
    from taskloom.registry.installed.catalogue import load_catalogue
    from taskloom.registry.installed.schema import grid_schema

    catalogue = strict_check(load_catalogue())
    text = json.dumps(grid_schema(catalogue), indent=1, ensure_ascii=False)
    note_left_out(catalogue.failed)
    if out is None:
        say(text)
    else:
        _write(out, f"{text}\n")
        note(f"wrote {out}")


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all; `~` is the user's folder."""
    path = Path(os.path.expanduser(path))  # noqa: PTH111 - the other raises
    try:
        write_text(path, text)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise TaskloomError(f"the schema cannot be written to {path}: {reason}") from None
