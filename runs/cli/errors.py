"""``taskloom compare`` and ``taskloom errors``."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from taskloom.core.errors import RegistryError, TaskloomError, unknown
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import GridCell
from taskloom.runs.cli.common import recorded_grid, say, say_json
from taskloom.runs.cli.options import combined, json_option, moved_data_option, registry_option
from taskloom.runs.driver.wording import format_state

if TYPE_CHECKING:
    from taskloom.runs.analysis.predictions import Subject

_options = combined(
    click.option("--grid", metavar="GRID", help="Of which grid a row is, by name or path."),
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
    json_option,
)


@click.command(short_help="Show what differs between two rows or cells, example by example.")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@_options
def compare(
    a: str,
    b: str,
    grid: str | None,
    limit: int,
    data: Path | None,
    registry: Path,
    as_json: bool,
) -> None:
    """Compare A and B on the dev examples: which flipped in either direction, and whether that is more than noise.

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
    with Ledger.open(registry, create=False) as ledger:
        first, second = (_subject(ledger, source, grid) for source in (a, b))

    from taskloom.runs.analysis import compare as comparing
    from taskloom.runs.show.errors import comparison_json, show_comparison

    made = comparing.compare(first, second, registry, folder=_folder(data))
    if as_json:
        say_json(comparison_json(made, limit))
    else:
        say(show_comparison(made, limit))


@click.command(short_help="Show the worst errors of a row or cell, and which classes it confuses.")
@click.argument("source", metavar="CELL|ROW")
@_options
def errors(
    source: str,
    grid: str | None,
    limit: int,
    data: Path | None,
    registry: Path,
    as_json: bool,
) -> None:
    """Show what a cell, or a row over its finished seeds, gets wrong on the dev examples.

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
    with Ledger.open(registry, create=False) as ledger:
        subject = _subject(ledger, source, grid)

    from taskloom.runs.analysis.errors import errors_of
    from taskloom.runs.show.errors import errors_json, show_errors

    found = errors_of(subject, registry, limit=limit, folder=_folder(data))
    if as_json:
        say_json(errors_json(subject, found))
    else:
        say(show_errors(subject, found))


def _folder(data: Path | None) -> Path | None:
    if data is not None and not data.is_dir():
        raise TaskloomError(f"--data {data} is not a folder")
    return data


def _subject(ledger: Ledger, source: str, grid: str | None) -> "Subject":
    """The finished seeds of a row by its label; failing that, a cell by its identity or a unique prefix of it."""
    from taskloom.runs.analysis.predictions import Subject

    grids = ledger.grids() if grid is None else (recorded_grid(ledger, grid),)
    homes = [each for each in grids if any(place.label == source for place in each.cells)]
    if len(homes) > 1:
        names = ", ".join(each.name for each in homes)
        raise RegistryError(f"row {source!r} is in several grids ({names}); choose one with --grid")
    if homes:
        (home,) = homes
        cells = tuple(place for place in home.cells if place.label == source and place.cell.status == "finished")
        if not cells:
            raise RegistryError(
                f"row {source!r} of grid {home.name!r} has no finished seed; `taskloom cells {home.name}` shows why"
            )
        return Subject(f"row {source!r} of grid {home.name!r}", cells, home)
    if not ledger.has_cell(source):
        labels = {place.label for each in grids for place in each.cells}
        raise RegistryError(
            f"{unknown('row', source, labels, where='rows')}, and no cell's identity begins with it (`taskloom cells` "
            "lists them)"
        )
    cell = ledger.cell(source)
    if cell.status != "finished":
        state = format_state(cell.status, cell.reason, cell.epochs)
        raise RegistryError(f"only a finished cell has predictions. Cell {cell.id[:12]}: {state}")
    place = GridCell(next((row.label for row in ledger.rows_of(cell.id)), ""), int(cell.spec["seed"]), {}, cell)
    return Subject(f"cell {cell.id[:12]} (row {place.label!r}, seed {place.seed})", (place,))
