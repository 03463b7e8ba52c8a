"""A registry from Python: its grids and cells, whichever grid they are of, its disk usage, and its archives."""

import os
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskloom.core.errors import RegistryError, TaskloomError, count
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import CellRecord, GridRecord
from taskloom.registry.results.wording import file_size
from taskloom.runs.analysis.cell_states import SHORT, CellState, states_of_cell
from taskloom.runs.api import questions
from taskloom.runs.api.answer import Answer
from taskloom.runs.api.arguments import registry_folder
from taskloom.runs.api.cell import Cell
from taskloom.runs.api.find import NO_CELL, Note, best_cell, grid_or_cell, recorded_grid, states_in, with_label
from taskloom.runs.api.grid import Grid
from taskloom.runs.show.parts import Aligned, Listing

if TYPE_CHECKING:  # which import numpy or torch
    from taskloom.registry.results.archive import Archive
    from taskloom.registry.results.imports import Imported
    from taskloom.registry.results.tensors import Keep
    from taskloom.runs.analysis.compare import Comparison
    from taskloom.runs.analysis.errors import TaskErrors
    from taskloom.runs.driver.disk import DiskUse


class Registry:
    """A folder that keeps results: by default ``TASKLOOM_REGISTRY`` or ``taskloom-runs``, as of a ``Grid``."""

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = registry_folder(folder)

    def __repr__(self) -> str:
        return f"Registry({str(self.folder)!r})"

    def _ledger(self) -> Ledger:
        return Ledger.open(self.folder, create=False)

    # Grids and cells

    def find(self, source: str, *, cells: bool = True) -> Grid | Cell:
        """A grid by its name or file; failing that, and with ``cells``, a cell by its identity or a prefix of it."""
        try:
            grid = Grid(source, registry=self.folder)
            _ = grid.file
        except RegistryError as error:  # no grid is called that
            with Ledger.find(self.folder) or nullcontext() as ledger:
                if ledger is None or not cells or not ledger.has_cell(source):
                    raise RegistryError(f"{error}, {NO_CELL}") from None
                return Cell.of(with_label(ledger, ledger.cell(source)), self.folder)
        return grid

    def cell(self, source: str, row: str | None = None, seed: int | None = None, *, note: Note = print) -> Cell:
        """A cell by its identity, or the finished cell of a grid with the best overall dev score.

        ``row`` and ``seed`` choose among the cells of a grid; ``note`` is told which it is.
        """
        with self._ledger() as ledger:
            record = grid_or_cell(ledger, source, note)
            if isinstance(record, GridRecord):
                chosen, score = best_cell(self.folder, record, row, seed)
                overall = "" if score is None else f", overall {score:.3f}"
                note(f"Cell {chosen.cell.id[:SHORT]}: row {chosen.label!r}, seed {chosen.seed}{overall}.")
            elif row is not None or seed is not None:
                raise RegistryError(f"--row and --seed choose among the cells of a grid; {source!r} is a single cell")
            else:
                chosen = with_label(ledger, record)
        return Cell(chosen.label, chosen.seed, chosen.cell, self.folder)

    def cells(self, source: str | None = None, states: Collection[str] = ()) -> Answer[Sequence[CellState]]:
        """The states of all cells, or those of a grid; or all about one cell. ``states`` leaves out the others."""
        from taskloom.runs.show.cells import cell_json, describe_cell

        notes: list[str] = []
        with self._ledger() as ledger:
            record = None if source is None else grid_or_cell(ledger, source, notes.append)
            if isinstance(record, CellRecord):
                rows = states_of_cell(ledger, record)
                facts = cell_json(ledger, rows)
                records = questions.cells_answer(rows).records
                return questions.CellAnswer(rows, [Aligned(describe_cell(ledger, rows))], facts, records)
            cells = states_in(ledger, None if record is None else record.name)
        return questions.cells_answer([cell for cell in cells if not states or cell.state in states]).noting(notes)

    def grids(self) -> Answer[list[dict[str, Any]]]:
        """The packaged grids, and those that were run in the registry."""
        from taskloom.runs.api.installed import broken_grids, packaged_grids_json

        packaged = packaged_grids_json()
        with Ledger.find(self.folder) or nullcontext() as ledger:
            recorded: list[dict[str, Any]] = [
                {
                    "name": record.name,
                    "description": record.spec.get("description", ""),
                    "created": record.created,
                    "updated": record.updated,
                    "cells": dict(Counter(grid_cell.cell.status for grid_cell in record.cells)),
                }
                for record in (ledger.grids() if ledger is not None else ())
            ]
        rows = [(grid["name"], f"{grid['distribution']} {grid['version']}", grid["description"]) for grid in packaged]
        parts = [Listing(rows, ("packaged", "from", "description"))]
        if recorded:
            lines = []
            for grid in recorded:
                counts = ", ".join(f"{number} {status}" for status, number in sorted(grid["cells"].items()))
                lines.append((grid["name"], grid["updated"], counts, grid["description"]))
            parts.append(Listing(lines, (f"run in {self.folder}", "last", "cells", "description")))
        return Answer(recorded, parts, {"packaged": packaged, "recorded": recorded}, recorded, broken_grids())

    # Rows, example by example

    def errors(
        self, source: str, *, grid: str | None = None, limit: int = 10, data: questions.Folder = None, split: str = ""
    ) -> "Answer[list[TaskErrors]]":
        """What a row of ``grid``, or of the only grid that has it, or a cell gets wrong on the examples of a split."""
        with self._ledger() as ledger:
            grids, notes = self._grids(ledger, grid)
            return questions.errors(ledger, grids, source, limit=limit, data=data, split=split).noting(notes)

    def compare(
        self,
        a: str,
        b: str,
        *,
        grid: str | None = None,
        limit: int = 10,
        data: questions.Folder = None,
        split: str = "",
    ) -> "Answer[Comparison]":
        """What differs between two rows or cells, example by example, and whether it is more than noise."""
        with self._ledger() as ledger:
            grids, notes = self._grids(ledger, grid)
            return questions.compare(ledger, grids, a, b, limit=limit, data=data, split=split).noting(notes)

    def _grids(self, ledger: Ledger, grid: str | None) -> tuple[Sequence[GridRecord], list[str]]:
        """The grids that a row may belong to: the one that is named, or all; with notes."""
        notes: list[str] = []
        return ledger.grids() if grid is None else (recorded_grid(ledger, grid, notes.append),), notes

    # Files

    def archive(self, grids: Iterable[str], out: Path, *, replace: bool = False) -> "Answer[Archive]":
        """Write the results of grids as one file to hand on: tables and predictions, no weights."""
        from taskloom.registry.results.archive import make_archive, without_folders
        from taskloom.registry.results.outputs import output

        if out.suffix != ".zip":
            raise TaskloomError(f"the file to write should end in .zip, such as results.zip. Found {str(out)!r}.")
        if out.exists() and not replace:
            raise TaskloomError(f"{out} is there already; --replace replaces it, or choose another name")
        notes: list[str] = []
        with self._ledger() as ledger:
            names = [recorded_grid(ledger, grid, notes.append).name for grid in grids]
            archive, content = make_archive(ledger, names)
        try:
            with output(out, force=None) as part:
                part.write_bytes(content)
        except OSError as error:
            raise TaskloomError(f"{out} cannot be written: {error.strerror}") from error
        cells = [cell.record for cell in archive.cells]
        if named := [cell.id[:SHORT] for cell in cells if without_folders(cell.facts) != cell.facts]:
            notes.append(
                f"A path is part of what {count(len(named), 'cell')} are, such as {named[0]}, and so it is in the "
                "archive; look at it before you publish it."
            )
        finished = sum(cell.status == "finished" for cell in cells)
        summary = f"{count(len(archive.grids), 'grid')}, {finished} of {count(len(cells), 'cell')} finished"
        facts = {"path": str(out), "bytes": len(content), "grids": len(archive.grids), "cells": len(cells)}
        return Answer(archive, [f"{out} ({file_size(len(content))}): {summary}"], facts, [facts], tuple(notes))

    def import_archive(self, path: Path) -> "Answer[Imported]":
        """Add the results of an archive, each checked; nothing is overwritten."""
        from taskloom.registry.results.imports import import_archive
        from taskloom.registry.results.unpacking import Checks
        from taskloom.runs.grid.identity import digest
        from taskloom.runs.grid.recorded import check_rows, is_same_spec

        imported = import_archive(path, self.folder, Checks(digest, is_same_spec, check_rows))
        notes = [
            f"Another grid {name!r} is here, which stays as it is; the archive's is called {here!r}."
            for name, here in imported.grids.items()
            if name != here
        ]
        for cells, outcome in (
            (imported.different, "finished here with other scores, which stay"),
            (imported.unfinished, "begun here, and left to `taskloom run`"),
        ):
            if cells:
                shown = ", ".join(id[:SHORT] for id in cells[:5]) + (", …" if len(cells) > 5 else "")
                notes.append(f"{count(len(cells), 'cell')} of the archive: {outcome} ({shown}).")
        known = f", {len(imported.same)} already here with the same result" if imported.same else ""
        names = ", ".join(imported.grids.values())
        text = f"{count(len(imported.added), 'cell')} imported{known}. Grids: {names}"
        return Answer(imported, [text], vars(imported), [vars(imported)], tuple(notes))

    def collect(
        self, *, dry_run: bool = False, keep: "Keep" = "best", cells: Collection[str] = ()
    ) -> "Answer[list[DiskUse]]":
        """What takes disk space, and remove what may go: caches, leftovers, and weights that ``keep`` leaves out.

        ``cells`` are cells without a row whose weights and checkpoints go as well; ``dry_run`` removes nothing.
        """
        from taskloom.runs.driver.disk import WITHOUT_ROW, collect, disk_uses, without_row

        with self._ledger() as ledger:
            named = without_row(ledger, cells)
            usage = disk_uses(ledger, keep, named)
            freed = 0 if dry_run else collect(ledger, keep, named)
        sums: dict[str, dict[str, int]] = {}
        rowless = Counter[str]()
        for use in usage:
            kind = sums.setdefault(use.what, {"bytes": 0, "may_go": 0})
            kind["bytes"] += use.bytes
            kind["may_go"] += use.may_go
            if use.what == WITHOUT_ROW:
                rowless[use.path.parent.name] += use.bytes
        total, may_go = (sum(kind[key] for kind in sums.values()) for key in ("bytes", "may_go"))
        by_size = sorted(sums.items(), key=lambda pair: -pair[1]["bytes"])
        rows = [(kind, *map(file_size, sizes.values())) for kind, sizes in by_size]
        parts: list[Listing | str] = [Listing(rows, ("what", "takes", "may go"))]
        if rowless:
            listed = [(cell, file_size(size), "may go" if cell in named else "kept") for cell, size in rowless.items()]
            parts.append(Listing(listed, ("cell without a row", "takes", "")))
        takes = f"takes {file_size(total)}; {file_size(may_go)} may go."
        parts.append(f"{self.folder} {takes if dry_run else f'took {file_size(total)}; {file_size(freed)} freed.'}")
        totals = {"bytes": total, "may_go": may_go, "freed": freed}
        as_json = {"uses": sums, **totals, "without_row": dict(rowless)}
        return Answer(usage, parts, as_json, [{"what": kind, **sizes} for kind, sizes in sums.items()])
