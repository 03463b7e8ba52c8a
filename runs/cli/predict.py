"""``taskloom predict``."""

from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import click

from taskloom.core.errors import RegistryError, count, unknown
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import CellRecord
from taskloom.runs.analysis.cell_states import SHORT, finite
from taskloom.runs.cli.common import checked_catalogue, grid_or_cell, note, say
from taskloom.runs.cli.options import moved_data_option, path_option, registry_option, strict_option
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
@path_option("--out", help="Where the files go; those of the same name are replaced.", default="predictions")
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
    labels = {place.label for place in grid.cells}
    if row is not None and row not in labels:
        raise RegistryError(unknown("row", row, labels, where="rows"))
    seeds = sorted({place.seed for place in grid.cells})
    if seed is not None and seed not in seeds:
        raise RegistryError(f"no cell has seed {seed} (seeds: {', '.join(map(str, seeds))})")
    places = [place for place in grid.cells if row in (None, place.label) and seed in (None, place.seed)]
    if not places:
        seeds = sorted({place.seed for place in grid.cells if row in (None, place.label)})
        raise RegistryError(f"no cell has seed {seed} (seeds: {', '.join(map(str, seeds))})")
    finished = [place for place in places if place.cell.status == "finished"]
    if not finished:
        which = f"none of the {len(places)} cells of grid {grid.name!r} that match is finished"
        raise RegistryError(f"{which}; `taskloom cells {source}` shows why")
    # A score that is not a number is the least.
    scores = [finite(place.cell.scores.get("overall")) for place in finished]
    score, best = max(zip(scores, finished, strict=True), key=lambda pair: -inf if pair[0] is None else pair[0])
    overall = "" if score is None else f", overall {score:.3f}"
    note(f"Cell {best.cell.id[:SHORT]}: row {best.label!r}, seed {best.seed}{overall}.")
    return best.cell
