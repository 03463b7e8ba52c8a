"""What can be known of a grid before it runs: ``taskloom validate``, ``plan`` and ``schema``."""

import json
from pathlib import Path
from typing import Any

import click

from taskloom.core.errors import Problem, RequestError, TaskloomError
from taskloom.runs.api import installed
from taskloom.runs.cli.common import checked_catalogue, say, say_answer, valid_grid
from taskloom.runs.cli.completion import GRID
from taskloom.runs.cli.options import (
    force_option,
    json_option,
    path_option,
    plan_options,
    registry_option,
    strict_option,
)


@click.command(short_help="Report all errors of a grid.")
@click.argument("grid", type=GRID)
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
        answer = valid_grid(grid, None).validate(**planning)
    except TaskloomError as error:
        if not as_json:
            raise
        problems = error.problems if isinstance(error, RequestError) else [Problem("", str(error))]
        errors = [vars(problem) for problem in problems]
        say(json.dumps({"valid": False, "errors": errors}, indent=2, allow_nan=False))
        context.exit(2)
    say_answer(answer, "json" if as_json else "plain")


@click.command(short_help="Show what the data of a grid hold.")
@click.argument("grid", type=GRID)
@plan_options
@json_option
def data(grid: str, as_json: bool, **planning: Any) -> None:
    """Show what the data of GRID hold: examples, labels, lengths of texts, and texts that occur twice.

    "constant" is the score of the best constant prediction, "words" the length of the median and the longest text,
    "shared" are examples that share a text with another, "seen" dev examples that are training examples, too, and "cut"
    is the share of sequences that are longer than the encoder takes, counted in at most 1,000 rows of a split.

    \b
    Examples:
      taskloom data quickstart
      taskloom data losing-to-win --data ~/data --weights minilm
      taskloom data grid.json --json | jq '.data[] | {task, split, classes}'
    """
    say_answer(valid_grid(grid, None).data(**planning), "json" if as_json else "plain")


@click.command(short_help="Show what running a grid would do.")
@click.argument("grid", type=GRID)
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
    say_answer(valid_grid(grid, registry).plan(**planning), "json" if as_json else "plain")


@click.command(short_help="Write the JSON schema of grids.")
@path_option("-o", "--out", help="Write it there instead of to stdout.", metavar="FILE")
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
    checked_catalogue()
    say_answer(installed.schema(out, force=force))
