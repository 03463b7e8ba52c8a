"""``taskloom claims``, ``effects``, ``budget`` and ``seeds``: what a grid's results mean."""

import shlex

import click

from taskloom.core.errors import count
from taskloom.runs.api.grid import Grid
from taskloom.runs.cli.common import program, registry_argument, say, say_answer
from taskloom.runs.cli.options import json_option, split_option, stale_option, table_options

column_option = click.option(
    "--on", "column", default="overall", show_default=True, metavar="COLUMN", help="A task, overall, or task:metric."
)


@click.command(short_help="Answer the claims of a grid: holds, contradicted, equal, not that large or open.")
@table_options
@split_option
@stale_option
@json_option
def claims(grid: Grid, split: str, stale: str, as_json: bool) -> None:
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
    say_answer(grid.claims(split=split, stale=stale), "json" if as_json else "plain")


@click.command(short_help="Show what each axis of a grid does, over matched rows.")
@table_options
@column_option
@split_option
@json_option
def effects(grid: Grid, column: str, split: str, as_json: bool) -> None:
    """Show what each axis of GRID does to a score.

    The effect of a change is the mean over the pairs of rows that differ in nothing else. Interactions are differences
    of such differences; where one is not zero, the effects are shown for each level of the other axis. The axes of a
    grid of labelled cells are the paths that they set. What always moves together cannot be told apart, and is named.

    \b
    Examples:
      taskloom effects surgery.json
      taskloom effects surgery.json --on sts --json
    """
    say_answer(grid.effects(column, split=split), "json" if as_json else "plain")


@click.command(short_help="Show what each row scores at best with few and many trials of its search.")
@table_options
@click.option(
    "--on", "column", default="", metavar="COLUMN", help="A task or overall; by default what the search chose by."
)
@json_option
def budget(grid: Grid, column: str, as_json: bool) -> None:
    """Show what each row of GRID, which has a search, is expected to score at best with 1, 2, … trials.

    A row that is ahead with 12 trials may be behind with 3, and whoever uses a method pays for its trials. The curve
    is computed from the trials of the row, as if each were drawn at random; a failed trial counts as tried. The scores
    are those on held-out training rows.

    \b
    Examples:
      taskloom budget quickstart-tuned
      taskloom budget quickstart-tuned --on sst --json
    """
    say_answer(grid.budget(column), "json" if as_json else "plain")


@click.command(short_help="Say how many more seeds settle each open comparison.")
@table_options
@column_option
@click.option("--queue", is_flag=True, help="Let the next `taskloom run` of the grid add the seeds.")
@json_option
def seeds(grid: Grid, column: str, queue: bool, as_json: bool) -> None:
    """Say how many more seeds would settle each open comparison with the baseline, and each open claim.

    The number has a power of 80 % for a difference as large as the one found, and is planned with an upper limit of the
    noise: a few seeds often understate it. Some differences no number of seeds settles, because the dev set is too
    small for them. `taskloom run GRID --seeds +3` adds seeds.

    \b
    Examples:
      taskloom seeds quickstart
      taskloom seeds quickstart --queue && taskloom run quickstart
    """
    answer = grid.seeds_needed(column, queue=queue)
    say_answer(answer, "json" if as_json else "plain")

    from taskloom.runs.show.findings import advised_seeds, seeds_settle

    judged = [comparison.judged for comparison in answer.found]
    if (number := advised_seeds(judged)) and not as_json:
        run = f"{program()} run {shlex.quote(grid.source)}{registry_argument()}"
        added = f"The next `{run}` adds {count(number, 'seed')}, which" if queue else f"`{run} --seeds +{number}`"
        say(f"\n{added} {seeds_settle(judged, number)}.")
