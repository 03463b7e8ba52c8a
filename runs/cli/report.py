"""``taskloom report`` and ``taskloom plot``: a grid's results as a page, and as figures for a paper."""

from pathlib import Path

import click

from taskloom.runs.api.grid import Grid
from taskloom.runs.cli.common import say_answer
from taskloom.runs.cli.options import force_option, path_option, split_option, stale_option, table_options

FIGURES = ("forest", "curves", "bars", "effects", "claims", "budget", "conflicts", "confusion")


@click.command(short_help="Write a grid's results as one HTML page.")
@table_options
@path_option("-o", "--out", help="The page.", metavar="FILE", default="report.html")
@split_option
@stale_option
@force_option
def report(grid: Grid, out: Path, split: str, stale: str, force: bool) -> None:
    """Write the results of GRID as one HTML page that needs nothing else: no network, no library, no server.

    It has the differences of all rows to the baseline with verdicts in words, the table (sort it, filter it, choose
    another baseline), claims, effects, learning curves, margins and conflicts, scores by task beside published figures,
    errors, failures and the environment. Every number leads to its cells. It can be read with scripts off, printed,
    and on a phone.

    \b
    Examples:
      taskloom report quickstart
      taskloom report grid.json -o grid.html
    """
    say_answer(grid.report(out, split=split, stale=stale, force=force))


@click.command(short_help="Draw a figure of a grid's results for a paper.")
@table_options
@click.option("--kind", type=click.Choice(FIGURES), default="forest", show_default=True, help="What is drawn.")
@path_option("-o", "--out", help="A .pdf, .svg or .png file.", metavar="FILE", required=True)
@split_option
@force_option
def plot(grid: Grid, kind: str, out: Path, split: str, force: bool) -> None:
    """Draw one figure of the results of GRID, as wide as a column of a paper, in colours that everybody can tell apart.

    \b
      forest     the difference of each row to the baseline, with its interval and verdict
      curves     scores over the epochs, dev and train
      bars       scores by task, with published figures
      effects    what each axis does
      claims     the difference that each claim is about, its answer and its published size; two columns wide
      budget     what each row scores at best, over the number of trials of its search
      conflicts  how often the gradients of two tasks disagree
      confusion  what the baseline predicted for what

    Needs matplotlib: pip install 'taskloom[plots]'.

    \b
    Examples:
      taskloom plot quickstart -o forest.pdf
      taskloom plot quickstart --kind curves -o curves.pdf
    """
    say_answer(grid.plot(out, kind, split=split, force=force))
