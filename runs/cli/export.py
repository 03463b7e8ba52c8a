"""``taskloom export``."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from taskloom.registry.results.ledger import Ledger
from taskloom.runs.api.cell import cell_of
from taskloom.runs.api.find import place_of
from taskloom.runs.cli.common import checked_catalogue, find_cell, say_answer
from taskloom.runs.cli.options import moved_data_option, read_path, registry_option, strict_option

if TYPE_CHECKING:
    from taskloom.runs.export.card import Form


@click.command(short_help="Write a finished cell's model for other programs.")
@click.argument("source", metavar="CELL|GRID")
@click.argument("folder", metavar="DIR", type=click.Path(), callback=read_path)
@click.option(
    "--format",
    "form",
    type=click.Choice(["sentence-transformers", "transformers", "onnx"]),
    default="sentence-transformers",
    show_default=True,
    help="What loads the folder.",
)
@click.option("--row", metavar="LABEL", help="Of GRID, only the row with this label.")
@click.option("--seed", type=int, metavar="N", help="Of GRID, only cells with this seed.")
@click.option("--replace", is_flag=True, help="Put it in the place of what was exported to DIR before.")
@moved_data_option
@registry_option
@strict_option
def export(
    source: str,
    folder: Path,
    form: "Form",
    row: str | None,
    seed: int | None,
    replace: bool,
    data: Path | None,
    registry: Path,
) -> None:
    """Write the model of a finished cell into DIR: the encoder as other programs load it, the heads, and a model card.

    CELL is a cell's identity or a prefix of one (see `taskloom cells`). With GRID, the finished cell with the
    best overall dev score is taken; --row and --seed narrow the choice.

    The other side needs no taskloom: SentenceTransformer(DIR), AutoModel.from_pretrained(DIR) or an ONNX runtime give
    the vectors that the cell's encoder gives. The card, README.md, has the lines of Python that use the heads, and the
    scores with their intervals; it holds no texts and no paths. DIR is written whole or not at all.

    \b
    Examples:
      taskloom export quickstart my-model
      taskloom export 3f0c9a my-model --format transformers
      taskloom export quickstart graph --row pcgrad --seed 0 --format onnx
      taskloom export 3f0c9a my-model --replace
    """
    with Ledger.open(registry, create=False) as ledger:
        cell = cell_of(place_of(ledger, find_cell(ledger, source, row, seed)), registry)
    checked_catalogue()
    say_answer(cell.export(folder, form, replace=replace, data=data))
