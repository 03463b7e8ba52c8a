"""``taskloom claims``, ``taskloom effects`` and ``taskloom seeds``: what a grid's results mean."""

import shlex
from pathlib import Path

import click

from taskloom.core.errors import count
from taskloom.runs.api.grid import Grid
from taskloom.runs.cli.common import program, registry_argument, say, say_answer
from taskloom.runs.cli.options import json_option, registry_option, split_option, table_options

column_option = click.option(
    "--on", "column", default="overall", show_default=True, metavar="COLUMN", help="A task, overall, or task:metric."
)


@click.command(short_help="Answer the claims of a grid: holds, contradicted, equal, not that large or open.")
@click.argument("grid")
@registry_option
@table_options
@split_option
@json_option
def claims(grid: str, registry: Path, split: str, as_json: bool) -> None:
    """Answer the claims that GRID makes about its rows.

    A claim is written into the grid, at best before it is run:

    \b
      "claims": [
        {"says": "PCGrad beats the summed loss", "better": "pcgrad", "than": "sum", "on": "overall"},
        {"says": "dropout hardly matters", "equal": "dropout 0.3", "than": "sum", "within": 0.01}
      ]

    A claim holds or is contradicted if the difference, with the noise of seeds and of examples, is on one side of
    zero; it is open otherwise. Claims are judged together (Holm), so that many of them do not make one true by chance.
    Where figures were published for both rows, their difference is shown beside ours; a claim that is open although
    the interval leaves out that size is "not that large".

    \b
    Examples:
      taskloom claims quickstart
      taskloom claims grid.json --json | jq '.claims[] | select(.answer == "open") | .more_seeds'
    """
    say_answer(Grid(grid, registry=registry).claims(split=split), as_json=as_json)


@click.command(short_help="Show what each axis of a grid does, over matched rows.")
@click.argument("grid")
@registry_option
@table_options
@column_option
@split_option
@json_option
def effects(grid: str, registry: Path, column: str, split: str, as_json: bool) -> None:
    """Show what each axis of GRID does to a score.

    The effect of a change is the mean over the pairs of rows that differ in nothing else. Interactions are differences
    of such differences; where one is not zero, the effects are shown for each level of the other axis. The axes of a
    grid of labelled cells are the paths that they set. What always moves together cannot be told apart, and is named.

    \b
    Examples:
      taskloom effects surgery.json
      taskloom effects surgery.json --on sts --json
    """
    say_answer(Grid(grid, registry=registry).effects(column, split=split), as_json=as_json)


@click.command(short_help="Say how many more seeds settle each open comparison.")
@click.argument("grid")
@registry_option
@table_options
@column_option
@click.option("--queue", is_flag=True, help="Let the next `taskloom run` of the grid add the seeds.")
@json_option
def seeds(grid: str, registry: Path, column: str, queue: bool, as_json: bool) -> None:
    """Say how many more seeds would settle each open comparison with the baseline, and each open claim.

    The number has a power of 80 % for a difference as large as the one found, and is planned with an upper limit of the
    noise: a few seeds often understate it. Some differences no number of seeds settles, because the dev set is too
    small for them. `taskloom run GRID --seeds +3` adds seeds.

    \b
    Examples:
      taskloom seeds quickstart
      taskloom seeds quickstart --queue && taskloom run quickstart
    """
    answer = Grid(grid, registry=registry).seeds_needed(column, queue=queue)
    say_answer(answer, as_json=as_json)

    from taskloom.runs.show.findings import advised_seeds, seeds_settle

    judged = [comparison.judged for comparison in answer.found]
    if (number := advised_seeds(judged)) and not as_json:
        run = f"{program()} run {shlex.quote(grid)}{registry_argument()}"
        added = f"The next `{run}` adds {count(number, 'seed')}, which" if queue else f"`{run} --seeds +{number}`"
        say(f"\n{added} {seeds_settle(judged, number)}.")
