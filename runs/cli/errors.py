"""``taskloom compare`` and ``taskloom errors``."""

from pathlib import Path

import click

from taskloom.runs.api.registry import Registry
from taskloom.runs.cli.common import nearby, say_answer
from taskloom.runs.cli.completion import GRID, ROW_OR_CELL
from taskloom.runs.cli.options import combined, json_option, moved_data_option, registry_option, split_option

_options = combined(
    click.option("--grid", type=GRID, metavar="GRID", help="Of which grid a row is, by name or path."),
    click.option(
        "--limit",
        type=click.IntRange(min=0),
        default=10,
        show_default=True,
        metavar="N",
        help="Examples in a list.",
    ),
    moved_data_option,
    registry_option,
    split_option,
    json_option,
)


@click.command(short_help="Show what differs between two rows or cells, example by example.")
@click.argument("a", metavar="A", type=ROW_OR_CELL)
@click.argument("b", metavar="B", type=ROW_OR_CELL)
@_options
def compare(
    a: str,
    b: str,
    grid: str | None,
    limit: int,
    data: Path | None,
    registry: Path,
    split: str,
    as_json: bool,
) -> None:
    """Compare A and B on the dev examples, or on those of --split test: which flipped in either direction, and whether
    that is more than noise.

    A and B are labels of rows, or identities of cells or unique prefixes of them (see `taskloom cells`). A row stands
    for all its finished seeds: pairs of one seed are compared, and an example counts as flipped if it did in most of
    them. A value, such as a similarity, flips if its error shrinks or grows.

    Two single models are compared by McNemar's exact test on classes; others by the paired test of the table, for
    which both seeds and examples count as noise. The difference is also broken down by class and by length of text.

    Texts are read again from the data of the run. If that cannot be done, ids are shown.

    \b
    Examples:
      taskloom compare sum pcgrad --grid quickstart
      taskloom compare sum pcgrad --limit 30
      taskloom compare 3f0c9a 81d2e4 --data ~/data
      taskloom compare sum pcgrad --json | jq '.tasks[] | {task, delta, p}'
    """
    answer = Registry(nearby(registry, grid)).compare(a, b, grid=grid, limit=limit, data=data, split=split)
    say_answer(answer, "json" if as_json else "plain")


@click.command(short_help="Show the worst errors of a row or cell, and which classes it confuses.")
@click.argument("source", metavar="CELL|ROW", type=ROW_OR_CELL)
@_options
def errors(
    source: str,
    grid: str | None,
    limit: int,
    data: Path | None,
    registry: Path,
    split: str,
    as_json: bool,
) -> None:
    """Show what a cell, or a row over its finished seeds, gets wrong on the dev examples, or on those of --split test.

    ROW is a label, CELL the identity of a cell or a unique prefix of it (see `taskloom cells`). Of classes the worst
    errors are shown, with label, prediction and how sure the model was of it, the surest first; then the confusion
    matrix, and precision, recall and F1 of each class. Of values the largest errors, and the confusion matrix of bins.

    Texts are read again from the data of the run. If that cannot be done, ids are shown.

    \b
    Examples:
      taskloom errors pcgrad --grid quickstart
      taskloom errors 3f0c9a --limit 30
      taskloom errors pcgrad --json | jq '.tasks[0].confusion'
    """
    answer = Registry(nearby(registry, grid)).errors(source, grid=grid, limit=limit, data=data, split=split)
    say_answer(answer, "json" if as_json else "plain")
