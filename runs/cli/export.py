"""``taskloom export``."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from taskloom.core.errors import TaskloomError
from taskloom.runs.api.registry import Registry
from taskloom.runs.cli.common import checked_catalogue, nearby, note, say_answer
from taskloom.runs.cli.completion import GRID_OR_CELL, ROW
from taskloom.runs.cli.options import moved_data_option, path_option, read_path, registry_option, strict_option

if TYPE_CHECKING:
    from taskloom.runs.export.card import ExportFormat


@click.command(short_help="Write a finished cell's model for other programs.")
@click.argument("source", metavar="CELL|GRID", type=GRID_OR_CELL)
@click.argument("folder", metavar="[DIR]", required=False, type=click.Path(), callback=read_path)
@path_option("-o", "--out", help="The folder, if it is not the second argument.", metavar="DIR")
@click.option(
    "--format",
    "form",
    type=click.Choice(["sentence-transformers", "transformers", "onnx"]),
    default="sentence-transformers",
    show_default=True,
    help="What loads the folder.",
)
@click.option("--row", type=ROW, metavar="LABEL", help="Of GRID, only the row with this label.")
@click.option("--seed", type=int, metavar="N", help="Of GRID, only cells with this seed.")
@click.option("--replace", is_flag=True, help="Put it in the place of what was exported to DIR before.")
@moved_data_option
@registry_option
@strict_option
def export(
    source: str,
    folder: Path | None,
    out: Path | None,
    form: "ExportFormat",
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
      taskloom export 3f0c9a -o my-model --format transformers
      taskloom export quickstart graph --row pcgrad --seed 0 --format onnx
      taskloom export 3f0c9a my-model --replace
    """
    target = folder or out
    if target is None or (folder is not None and out is not None):
        raise TaskloomError(f"say once which folder to write: `taskloom export {source} -o my-model`")
    cell = Registry(nearby(registry, source)).cell(source, row, seed, note=note)
    checked_catalogue()
    say_answer(cell.export(target, form, replace=replace, data=data))
