"""``taskloom archive`` and ``taskloom import``."""

import os
from pathlib import Path

import click

from taskloom.core.errors import TaskloomError
from taskloom.runs.api.registry import Registry
from taskloom.runs.cli.common import nearby, say_answer
from taskloom.runs.cli.completion import GRID
from taskloom.runs.cli.options import path_option, registry_option


@click.command(short_help="Write results as one file to hand on: tables and predictions, no weights.")
@click.argument("grids", metavar="GRID... [OUT.zip]", nargs=-1, required=True, type=GRID)
@path_option("-o", "--out", help="The file, if it is not the last argument.", metavar="OUT.zip")
@click.option("--replace", is_flag=True, help="Replace OUT.zip if it is there already.")
@registry_option
def archive(grids: tuple[str, ...], out: Path | None, replace: bool, registry: Path) -> None:
    """Write the results of one GRID or several to OUT.zip, for a colleague, or to publish them beside a paper.

    It has what `table`, `claims`, `effects`, `compare`, `errors`, `seeds` and `report` need: grids, cells, scores,
    learning curves and the predictions for every example, by the examples' ids. Weights, texts, logs and checkpoints
    stay here, and so do names of computers, users and folders: of a path only the last name is kept. Cells that are not
    done are only named. The same results make the same file, byte for byte. `taskloom import` reads it.

    \b
    Examples:
      taskloom archive quickstart results.zip
      taskloom archive surgery.json losses.json -o results.zip --replace
    """
    if out is None:
        *names, last = grids
        if not names:
            raise TaskloomError(f"say which file to write: `taskloom archive {last} -o results.zip`")
        grids, out = tuple(names), Path(os.path.expanduser(last))  # noqa: PTH111 - the other raises
    say_answer(Registry(nearby(registry, grids[0])).archive(grids, out, replace=replace))


@click.command("import", short_help="Add the results of an archive to the registry.")
@click.argument("archive", metavar="ARCHIVE.zip", type=click.Path(path_type=Path))
@registry_option
def import_(archive: Path, registry: Path) -> None:
    """Add the results in ARCHIVE.zip, which `taskloom archive` wrote, to the registry.

    Afterwards every command that reads results shows them, and a run counts their cells as finished and adds to them.
    `cells`, `table`, `explain` and `report` say which were imported. No code of the archive is run. Of its figures only
    predictions and labels are taken: scores, intervals and what else follows from them is computed again with the
    installed metrics. Before anything is written it is checked that each file is as it was written, that each cell is
    the one that its specification, data and versions make and that its row in the grid states, that its scores are
    those that its predictions give, and that its examples are those of this registry, if it has them.

    Nothing is overwritten: a cell that is finished here keeps its result, and a grid that is another one here under the
    same name keeps it; the archive's gets one of its own. A second import changes nothing.

    \b
    Examples:
      taskloom import results.zip
      taskloom import results.zip --registry theirs && taskloom claims quickstart --registry theirs
    """
    say_answer(Registry(registry).import_archive(archive))
