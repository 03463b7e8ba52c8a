"""``taskloom predict``."""

from math import inf, isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING

import click

from taskloom.core.errors import RegistryError, count, unknown
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import CellRecord, GridCell
from taskloom.runs.cli.common import checked_catalogue, grid_or_cell, note, say
from taskloom.runs.cli.options import UserPath, moved_data_option, registry_option, strict_option
from taskloom.runs.driver.wording import format_state
from taskloom.runs.show.render import listing

if TYPE_CHECKING:
    from taskloom.core.data import Split
    from taskloom.runs.training.submission import Form


@click.command(short_help="Write what a finished cell predicts, as files to hand in.")
@click.argument("source", metavar="CELL|GRID")
@click.option("--row", metavar="LABEL", help="Of GRID, only the row with this label.")
@click.option("--seed", type=int, metavar="N", help="Of GRID, only cells with this seed.")
@click.option("--task", "tasks", multiple=True, metavar="NAME", help="Only this task; may be repeated.")
@click.option("--split", type=click.Choice(["dev", "test"]), default="test", show_default=True, help="Of which data.")
@click.option(
    "--out",
    type=UserPath(),
    default=Path("predictions"),
    show_default=True,
    metavar="FOLDER",
    help="Where the files go; those of the same name are replaced.",
)
@moved_data_option
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

    CELL is a cell's identity or a prefix of one (see `taskloom cells`). With GRID, the finished cell with the
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
        state = format_state(cell.status, cell.reason, cell.epochs)
        raise RegistryError(f"only a finished cell can predict. Cell {cell.id}: {state}")

    from taskloom.runs.training.predict import predict_cell

    outcome = predict_cell(cell, checked_catalogue(), registry, out, split=split, only=tasks, data=data, form=form)
    for line in outcome.notes:
        note(line)
    for file in outcome.files:
        if file.skipped:
            rows = count(len(file.skipped), "row")
            note(f"{file.task}: no prediction for {rows} that cannot be read, the first: {file.skipped[0]}")
    for name, reason in outcome.missing.items():
        note(f"{name} not written: {reason}")
    say(listing([(file.task, file.rows, file.path) for file in outcome.files], ("task", "rows", "file")))
    context.exit(1 if outcome.missing else 0)


def _find(ledger: Ledger, source: str, row: str | None, seed: int | None) -> CellRecord:
    """The cell that is meant: of a grid the best, or one by its identity."""
    grid = grid_or_cell(ledger, source)
    if isinstance(grid, CellRecord):
        if row is not None or seed is not None:
            raise RegistryError(f"--row and --seed choose among the cells of a grid; {source!r} is a single cell")
        return grid
    places = [place for place in grid.cells if row in (None, place.label)]
    if row is not None and not places:
        raise RegistryError(unknown("row", row, {place.label for place in grid.cells}, where="rows"))
    seeds = sorted({place.seed for place in places})
    places = [place for place in places if seed in (None, place.seed)]
    if not places:
        raise RegistryError(f"no cell has seed {seed} (seeds: {', '.join(map(str, seeds))})")
    finished = [place for place in places if place.cell.status == "finished"]
    if not finished:
        raise RegistryError(
            f"none of the {len(places)} cells of grid {grid.name!r} that match is finished; `taskloom cells {source}` "
            "shows why"
        )
    best = max(finished, key=_overall)
    score = f", overall {_overall(best):.3f}" if isfinite(_overall(best)) else ""
    note(f"Cell {best.cell.id[:12]}: row {best.label!r}, seed {best.seed}{score}.")
    return best.cell


def _overall(place: GridCell) -> float:
    """The score by which cells are compared; one that is not a number is the least."""
    score = place.cell.scores.get("overall", nan)
    return score if isfinite(score) else -inf
