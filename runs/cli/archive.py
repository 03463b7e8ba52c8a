"""``taskloom archive`` and ``taskloom import``."""

from pathlib import Path

import click

from taskloom.core.errors import TaskloomError, count
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.analysis.cell_states import SHORT
from taskloom.runs.cli.common import note, recorded_grid, say
from taskloom.runs.cli.options import registry_option
from taskloom.runs.driver.wording import file_size


@click.command(short_help="Write results as one file to hand on: tables and predictions, no weights.")
@click.argument("grids", metavar="GRID...", nargs=-1, required=True)
@click.argument("out", metavar="OUT.zip", type=click.Path(path_type=Path))
@click.option("--replace", is_flag=True, help="Replace OUT.zip if it is there already.")
@registry_option
def archive(grids: tuple[str, ...], out: Path, replace: bool, registry: Path) -> None:
    """Write the results of one GRID or several to OUT.zip, for a colleague, or to publish them beside a paper.

    It has what `table`, `claims`, `effects`, `compare`, `errors`, `seeds` and `report` need: grids, cells, scores,
    learning curves and the predictions for every example, by the examples' ids. Weights, texts, logs and checkpoints
    stay here, and so do names of computers, users and folders: of a path only the last name is kept. Cells that are not
    done are only named. The same results make the same file, byte for byte. `taskloom import` reads it.

    \b
    Examples:
      taskloom archive quickstart results.zip
      taskloom archive surgery.json losses.json results.zip --replace
    """
    from taskloom.registry.results.archive import make_archive, without_folders
    from taskloom.registry.results.outputs import output

    if out.suffix != ".zip":
        raise TaskloomError(f"the last argument should be the file to write, such as results.zip. Found {str(out)!r}.")
    if out.exists() and not replace:
        raise TaskloomError(f"{out} is there already; --replace replaces it, or choose another name")
    with Ledger.open(registry, create=False) as ledger:
        archived, content = make_archive(ledger, [recorded_grid(ledger, grid).name for grid in grids])
    try:
        with output(out, force=None) as part:
            part.write_bytes(content)
    except OSError as error:
        raise TaskloomError(f"{out} cannot be written: {error.strerror}") from error
    records = [cell.record for cell in archived.cells]
    if named := [record.id[:SHORT] for record in records if without_folders(record.facts) != record.facts]:
        note(
            f"A path is part of what {count(len(named), 'cell')} are, such as {named[0]}, and so it is in the archive; "
            "look at it before you publish it."
        )
    finished = sum(record.status == "finished" for record in records)
    summary = f"{count(len(archived.grids), 'grid')}, {finished} of {count(len(records), 'cell')} finished"
    say(f"{out} ({file_size(len(content))}): {summary}")


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
    from taskloom.registry.results.imports import import_archive
    from taskloom.registry.results.unpacking import Checks
    from taskloom.runs.grid.identity import digest
    from taskloom.runs.grid.recorded import check_rows, is_same_spec

    done = import_archive(archive, registry, Checks(digest, is_same_spec, check_rows))
    for name, here in done.grids.items():
        if name != here:
            note(f"Another grid {name!r} is here, which stays as it is; the archive's is called {here!r}.")
    for cells, outcome in (
        (done.different, "finished here with other scores, which stay"),
        (done.unfinished, "begun here, and left to `taskloom run`"),
    ):
        if cells:
            shown = ", ".join(id[:SHORT] for id in cells[:5]) + (", …" if len(cells) > 5 else "")
            note(f"{count(len(cells), 'cell')} of the archive: {outcome} ({shown}).")
    known = f", {len(done.same)} already here with the same result" if done.same else ""
    say(f"{count(len(done.added), 'cell')} imported{known}. Grids: {', '.join(done.grids.values())}")
