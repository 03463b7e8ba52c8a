"""``taskloom table``."""

from pathlib import Path

import click

from taskloom.runs.api.grid import Grid
from taskloom.runs.cli.common import note, say_answer
from taskloom.runs.cli.completion import METRIC
from taskloom.runs.cli.options import (
    force_option,
    format_option,
    path_option,
    split_option,
    stale_option,
    table_options,
)


@click.command(short_help="Print the comparison table of a grid.")
@table_options
@click.option("--reported", is_flag=True, help="Published figures beside ours, with the difference.")
@click.option(
    "--columns",
    callback=lambda context, option, text: tuple(filter(None, map(str.strip, text.split(",")))),
    default="",
    metavar="LIST",
    help="Only these: tasks, task:metric, overall, seconds, memory, examples, backwards; separated by commas.",
)
@click.option("--sort", default="", metavar="COLUMN", help="The best row of a column first.")
@click.option("--group-by", default="", metavar="AXIS", help="A row per value of an axis: the mean over its rows.")
@click.option(
    "--metric",
    type=METRIC,
    default="",
    metavar="NAME",
    help="Score what is stored anew, by any installed metric, or f1:2 for the F1 of class 2.",
)
@split_option
@stale_option
@format_option
@path_option("-o", "--out", help="Write to a file; of csv, what to know goes to FILE.notes.txt.", metavar="FILE")
@force_option
def table(
    grid: Grid,
    reported: bool,
    form: str,
    columns: tuple[str, ...],
    sort: str,
    group_by: str,
    metric: str,
    split: str,
    stale: str,
    out: Path | None,
    force: bool,
) -> None:
    """Print the comparison table of GRID as far as it was run.

    GRID is the name of a grid in the registry or the path of its JSON file. Each row is the mean over its finished
    seeds ± their sample standard deviation. The difference to the baseline has a 95 % interval and a p value, both
    corrected for the number of rows, and a verdict: better, worse, equal (within the grid's margin) or open. Both the
    noise of seeds and that of the scored examples count. A mean is bold, or marked with *, only if it is better than
    every other of its column by the same test. A row that lacks seeds shows how many are in and does not compete.
    Below the table are the reasons for missing figures, how differences were judged, and what else was found by
    computing. With the --weights, --epochs and --set of a run it is the table of that run.

    With --reported the figures that somebody published for a row are shown beside ours, with the difference (ours less
    theirs). A row that was reported on test shows our test score, never one on dev. A published overall score is
    marked with † if it does not follow from the figures beside it, whatever rounding did. Any figure is marked with ‡
    if it is no better than the majority class or another constant, counted on the examples that were scored here.
    Works before anything was run, too, without ‡.

    \b
    Examples:
      taskloom table quickstart
      taskloom table quickstart --set stages.0.optimizer.lr=0.001
      taskloom table quickstart --columns overall,seconds,memory --sort overall
      taskloom table grid.json --group-by stages.0.combiner
      taskloom table quickstart --metric macro_f1
      taskloom table finetuning-techniques --reported
      taskloom table grid.json --format latex > table.tex
      taskloom table grid.json --format csv -o table.csv
      taskloom table grid.json --split test
      taskloom table quickstart --format json | jq '.rows[] | [.label, .metrics.overall.verdict]'
    """
    answer = grid.table(
        columns=columns, sort=sort, group_by=group_by, metric=metric, split=split, reported=reported, stale=stale
    )
    if out is not None:
        say_answer(answer.write(out, form, force=force))
        return
    say_answer(answer, form)
    if form == "csv":
        for line in answer.checks:
            note(line)
