"""``taskloom predict``."""

import os
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

import click

from taskloom.core.errors import RegistryError, unknown
from taskloom.registry.installed.quiet import aside
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import CellRecord, GridCell
from taskloom.runs.cli.common import (
    NotRunError,
    listing,
    note,
    note_left_out,
    recorded_grid,
    registry_option,
    say,
    strict_check,
    strict_option,
)

if TYPE_CHECKING:
    from taskloom.core.data import Split
    from taskloom.runs.training.submission import Form

HEADERS = ("task", "rows", "file")


def _expanded(context: click.Context, option: click.Parameter, given: Path | None) -> Path | None:
    return None if given is None else Path(os.path.expanduser(given))  # noqa: PTH111 - the other raises


@click.command(short_help="Write what a finished cell predicts, as files to hand in.")
@click.argument("source", metavar="CELL|GRID")
@click.option("--row", metavar="LABEL", help="Of GRID, only the row with this label.")
@click.option("--seed", type=int, metavar="N", help="Of GRID, only cells with this seed.")
@click.option("--task", "tasks", multiple=True, metavar="NAME", help="Only this task; may be repeated.")
@click.option("--split", type=click.Choice(["dev", "test"]), default="test", show_default=True, help="Of which data.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    callback=_expanded,
    default=Path("predictions"),
    show_default=True,
    metavar="FOLDER",
    help="Where the files go; those of the same name are replaced.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    callback=_expanded,
    metavar="FOLDER",
    help="Where the data are now: in FOLDER, or in a folder of the data set's name in it.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["submission", "jsonl"]),
    default="submission",
    show_default=True,
    help="CSV, the course's own for its data; or JSON lines as runs keep them.",
)
@registry_option
@strict_option
@click.pass_context
def predict(
    context: click.Context,
    source: str,
    row: str | None,
    seed: int | None,
    tasks: tuple[str, ...],
    split: "Split",
    out: Path,
    data: Path | None,
    form: "Form",
    registry: Path,
) -> None:
    """Write what a finished cell predicts for the test or dev data of its tasks, one file per task.

    CELL is a cell's identity or the beginning of one (see `taskloom cells`). With GRID, the finished cell with the
    best overall dev score is taken; --row and --seed narrow the choice.

    For the course's data the files are those that its own code writes (sst-test-output.csv …, lines "id , value"),
    for others a CSV with the columns id and prediction. Test data need no labels. A task whose data cannot be read is
    named on stderr and the others are still written. Exits with 0 when every task was written, 1 when some were, 2
    when none was.

    \b
    Examples:
      taskloom predict 3f0c9a
      taskloom predict quickstart --row pcgrad --seed 0 --split dev
      taskloom predict finetuning-techniques --data ~/data --task sst --task sts
      taskloom predict 3f0c9a --format jsonl --out answers
    """
    with Ledger.open(registry, create=False) as ledger:
        cell = _find(ledger, source, row, seed)
    if cell.status != "finished":
        why = f" ({cell.reason})" if cell.reason else ""
        raise RegistryError(f"cell {cell.id} is {cell.status}{why}; only a finished cell predicts. Run its grid first.")

    from taskloom.registry.installed.catalogue import load_catalogue
    from taskloom.runs.training.predict import predict_cell

    catalogue = strict_check(load_catalogue())
    note_left_out(catalogue.failed)
    with aside():  # what a plugin prints is no part of the answer
        outcome = predict_cell(cell, catalogue, registry, out, split=split, only=tasks, data=data, form=form)
    for line in outcome.notes:
        note(line)
    for file in outcome.files:
        if file.skipped:
            more = f" and {len(file.skipped) - 1} more" if len(file.skipped) > 1 else ""
            note(f"{file.task}: no prediction for what cannot be read: {file.skipped[0]}{more}")
    for name, reason in outcome.missing.items():
        note(f"{name} not written: {reason}")
    say(listing([(file.task, file.rows, file.path) for file in outcome.files], HEADERS))
    context.exit(1 if outcome.missing else 0)


def _find(ledger: Ledger, source: str, row: str | None, seed: int | None) -> CellRecord:
    """The cell that is meant: of a grid the best, or one by its identity."""
    try:
        grid = recorded_grid(ledger, source)
    except NotRunError:
        raise
    except RegistryError as error:
        if row is not None or seed is not None:
            raise
        if not ledger.has_cell(source):
            raise RegistryError(f"{error}; and no cell begins so (`taskloom cells` lists them)") from None
        return ledger.cell(source)
    places = list(grid.cells)
    if row is not None:
        places = [place for place in places if place.label == row]
        if not places:
            raise RegistryError(unknown("row", row, {place.label for place in grid.cells}, where="rows"))
    if seed is not None:
        seeds = sorted({place.seed for place in places})
        places = [place for place in places if place.seed == seed]
        if not places:
            raise RegistryError(f"no cell with seed {seed} there (seeds: {', '.join(map(str, seeds))})")
    finished = [place for place in places if place.cell.status == "finished"]
    if not finished:
        raise RegistryError(
            f"of the {len(places)} cells of grid {grid.name!r} that fit, none is finished; `taskloom cells {source}` "
            "says why"
        )
    best = max(finished, key=_overall)
    score = f", overall {_overall(best):.3f}" if isfinite(_overall(best)) else ""
    note(f"Cell {best.cell.id[:12]}: row {best.label!r}, seed {best.seed}{score}.")
    return best.cell


def _overall(place: GridCell) -> float:
    """The score by which cells are compared; one that is no number is the least."""
    score = place.cell.scores.get("overall", float("nan"))
    return score if isfinite(score) else float("-inf")
