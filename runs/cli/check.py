"""What can be known of a grid before it runs: ``taskloom validate``, ``plan`` and ``schema``."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taskloom.core.errors import Problem, RequestError, TaskloomError, count
from taskloom.registry.results.outputs import output
from taskloom.runs.api.grid import Grid
from taskloom.runs.cli.common import checked_catalogue, note, say, say_answer, say_json
from taskloom.runs.cli.options import (
    force_option,
    json_option,
    path_option,
    plan_options,
    registry_option,
    strict_option,
)
from taskloom.runs.show.render import listing

if TYPE_CHECKING:
    from taskloom.runs.api.answer import Answer
    from taskloom.runs.grid.overrides import Overrides
    from taskloom.runs.grid.plan import Plan


def _checked(source: str, registry: Path | None, overrides: "Overrides", allow_large: bool) -> "Answer[Plan]":
    """Plan a grid; without a registry, as if nothing had been run."""
    grid = Grid(source, registry=registry)
    _ = grid.file  # before torch is imported: a misspelt path should be reported at once
    checked_catalogue(quiet=True)
    ask = grid.validate if registry is None else grid.plan
    return ask(**vars(overrides), allow_large=allow_large)


@click.command(short_help="Report all errors of a grid.")
@click.argument("grid")
@plan_options
@json_option
@click.pass_context
def validate(context: click.Context, /, grid: str, as_json: bool, **planning: Any) -> None:
    """Check GRID and everything that it names, and report all errors together. Exits with 2 if there are any.

    \b
    Examples:
      taskloom validate grid.json
      taskloom validate robust-embeddings --data ~/data --weights minilm
      taskloom validate grid.json --json | jq -r '.errors[] | "\\(.path): \\(.message)"'
    """
    try:
        answer = _checked(grid, None, **planning)
    except TaskloomError as error:
        if not as_json:
            raise
        problems = error.problems if isinstance(error, RequestError) else [Problem("", str(error))]
        say_json({"valid": False, "errors": [vars(problem) for problem in problems]})
        context.exit(2)
    for line in answer.notes:
        note(line)
    if as_json:
        say_json({"valid": True, "errors": [], "data": [vars(size) for size in answer.found.sizes]})
        return
    cells = answer.found.chosen
    say(f"{grid} is valid: {count(len(cells), 'cell')} in {count(len({cell.label for cell in cells}), 'row')}\n")
    sizes = [(size.task, size.split, size.examples, size.unreadable, size.unlabelled) for size in answer.found.sizes]
    say(listing(sizes, ("task", "split", "examples", "unreadable", "unlabelled")))


@click.command(short_help="Show what running a grid would do.")
@click.argument("grid")
@registry_option
@plan_options
@json_option
def plan(grid: str, registry: Path, as_json: bool, **planning: Any) -> None:
    """Check GRID and show what running it would do. Writes nothing.

    A cell's status is new, interrupted (continues from its checkpoint), failed (is tried again) or finished
    (is not run again). "time" is that of one worker, known once cells like it have run here; "keeps" are the weights of
    its best epoch, of which `taskloom run --keep` can leave less. While it trains, it also has two checkpoints, each
    up to three times as large.

    \b
    Examples:
      taskloom plan quickstart
      taskloom plan losing-to-win --data ~/data --weights minilm
      taskloom plan grid.json --json | jq '.cells[] | {label, seed, status}'
    """
    say_answer(_checked(grid, registry, **planning), as_json=as_json)


@click.command(short_help="Write the JSON schema of grids.")
@path_option("--out", help="Write it there instead of to stdout.", metavar="FILE")
@force_option
@strict_option
def schema(out: Path | None, force: bool) -> None:
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
    from taskloom.registry.installed.schema import grid_schema

    text = json.dumps(grid_schema(checked_catalogue()), indent=1, ensure_ascii=False)
    if out is None:
        say(text)
        return
    try:
        with output(out, force=force) as part:
            part.write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise TaskloomError(f"the schema cannot be written to {out}: {error.strerror}") from None
    note(f"wrote {out}")
