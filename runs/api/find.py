"""Grids, rows and cells by what the user gave: a name, a path, a label, an identity. No torch."""

import json
import os
import shlex
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from taskloom.core.errors import RegistryError, RequestError, TaskloomError, unknown
from taskloom.registry.results.file import FILE
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import SOURCE, CellRecord, GridCell, GridRecord
from taskloom.registry.results.wording import format_state
from taskloom.runs.analysis.cell_states import verified
from taskloom.runs.api.arguments import REGISTRY

if TYPE_CHECKING:  # which import numpy
    from taskloom.runs.analysis.cell_states import CellState
    from taskloom.runs.analysis.predictions import Subject
    from taskloom.runs.analysis.results import Results
    from taskloom.runs.analysis.tables import Table

NO_CELL = "and no cell's identity begins with it (`taskloom cells` lists them)"
#: Takes what a reader should know beside the answer.
Note = Callable[[str], None]


class NotRunError(RegistryError):
    """The grid exists, but was not run in this registry."""


def recorded_grid(ledger: Ledger, source: str, note: Note, location: tuple[Path, str] | None = None) -> GridRecord:
    """The last run of a grid that is given by packaged name, by path, or by its name in the registry.

    Notes if the file has changed since. ``location`` is where the file is, if that is known.
    """
    from taskloom.runs.grid.file import extended, locate

    path, known_by = location or locate(source)
    names = ledger.grid_names()
    if not os.path.isfile(path):  # noqa: PTH113 - a name too long for a file is not a file, and not an error
        if source not in names:
            raise no_grid(source, ledger)
        if others := [name for name in names if name.endswith(f"/{source}")]:
            listed = ", ".join(others)
            note(f"{source!r} is the grid of {ledger.grid(source).spec.get(SOURCE)}; others of that name: {listed}")
        return ledger.grid(source)
    try:
        raw = json.loads(path.read_text(encoding="utf-8-sig"))
        known_by = "" if raw.get("name") else known_by
        name = str(raw.get("name") or path.stem)
        raw = extended(raw, path)
    except (OSError, ValueError, AttributeError):
        raw, name = None, path.stem
    except RequestError:  # it extends what is not there
        raw = None
    name = ledger.name_for(name, known_by, raw)
    if name not in names:
        raise not_run(ledger, name, f"`taskloom run {shlex.quote(source)}`", _elsewhere(path, name))
    record = ledger.grid(name)
    if raw != record.written:
        note(f"{path} has changed since grid {name!r} was last run ({record.updated}); this shows that run.")
    return record


def no_grid(source: str, ledger: Ledger | None) -> RegistryError:
    """The error for a name that is that of no grid."""
    from taskloom.registry.installed.manager import packaged_grids

    run = f"or run in registry {ledger.folder}" if ledger else "and nothing was run in this registry yet"
    names = {*packaged_grids(), *(ledger.grid_names() if ledger else ())}
    return RegistryError(f"{unknown('grid', source, names, where=f'packaged, {run}')}, and no file of that name")


def registry_beside(path: Path) -> Path | None:
    """The registry in the folder of a grid's file, if there is one."""
    folder = path.parent / REGISTRY
    return folder if os.path.isfile(folder / FILE) else None  # noqa: PTH113 - a name too long for a file is no error


def _elsewhere(path: Path, name: str) -> str:
    """That the registry beside a grid's file has its results, for a message; empty if it has none."""
    folder = registry_beside(path)
    with (Ledger.find(folder) if folder else None) or nullcontext() as ledger:
        return "" if ledger is None or name not in ledger.grid_names() else f"; --registry {folder} has it"


def not_run(ledger: Ledger, name: str, how: str, where: str = "") -> NotRunError:
    """The error for a grid that has no results here; ``how`` is what gives it some, ``where`` it may have others."""
    names = ", ".join(ledger.grid_names()) or "none"
    text = (
        f"grid {name!r} was not run in registry {ledger.folder} yet; {how} does that (run there so far: {names}){where}"
    )
    return NotRunError(text)


def grid_or_cell(ledger: Ledger, source: str, note: Note) -> GridRecord | CellRecord:
    """A grid by its name or path; failing that, a cell by its identity or a unique prefix of it."""
    try:
        return recorded_grid(ledger, source, note)
    except NotRunError:
        raise
    except RegistryError as error:
        if ledger.has_cell(source):
            return ledger.cell(source)
        raise RegistryError(f"{error}, {NO_CELL}") from None


def find_subject(ledger: Ledger, source: str, grids: Sequence[GridRecord]) -> "Subject":
    """The finished seeds of a row by its label; failing that, a cell by its identity or a unique prefix of it."""
    from taskloom.runs.analysis.predictions import Subject

    homes = [grid for grid in grids if any(row.label == source for row in grid.cells)]
    if len(homes) > 1:
        names = ", ".join(home.name for home in homes)
        raise RegistryError(f"row {source!r} is in several grids ({names}); choose one with --grid")
    if homes:
        (home,) = homes
        cells = tuple(row for row in home.cells if row.label == source and row.cell.status == "finished")
        if not cells:
            raise RegistryError(
                f"row {source!r} of grid {home.name!r} has no finished seed; `taskloom cells {home.name}` shows why"
            )
        return Subject(f"row {source!r} of grid {home.name!r}", cells, home)
    if not ledger.has_cell(source):
        labels = {row.label for grid in grids for row in grid.cells}
        raise RegistryError(f"{unknown('row', source, labels, where='rows')}, {NO_CELL}")
    grid_cell = with_label(ledger, ledger.cell(source))
    check_finished(grid_cell.cell, "has predictions")
    return Subject(f"cell {grid_cell.cell.id[:12]} (row {grid_cell.label!r}, seed {grid_cell.seed})", (grid_cell,))


def best_cell(registry: Path, grid: GridRecord, row: str | None, seed: int | None) -> tuple[GridCell, float | None]:
    """The finished cell with the best overall dev score, of the whole grid, of a row or of a seed, and the score.

    A score that is not a number, or that the cell's score file does not confirm, is the least.
    """
    labels = {grid_cell.label for grid_cell in grid.cells}
    if row is not None and row not in labels:
        raise RegistryError(unknown("row", row, labels, where="rows"))
    of_row = [grid_cell for grid_cell in grid.cells if row in (None, grid_cell.label)]
    chosen = [grid_cell for grid_cell in of_row if seed in (None, grid_cell.seed)]
    if not chosen:
        seeds = ", ".join(map(str, sorted({grid_cell.seed for grid_cell in of_row})))
        raise RegistryError(f"no cell has seed {seed} (seeds: {seeds})")
    finished = [grid_cell for grid_cell in chosen if grid_cell.cell.status == "finished"]
    if not finished:
        none = f"none of the {len(chosen)} cells of grid {grid.name!r} that match is finished"
        raise RegistryError(f"{none}; `taskloom cells {grid.name}` shows why")
    scores = [verified(registry, grid_cell.cell).scores.get("overall", -inf) for grid_cell in finished]
    best, score = max(zip(finished, scores, strict=True), key=lambda pair: pair[1] if isfinite(pair[1]) else -inf)
    return best, score if isfinite(score) else None


def with_label(ledger: Ledger, cell: CellRecord) -> GridCell:
    """A cell with the label of the first row that it is or was."""
    label = next((row.label for row in ledger.rows_of(cell.id)), "")
    return GridCell(label, int(cell.spec["seed"]), {}, cell)


def check_finished(cell: CellRecord, ability: str) -> None:
    """Raise an error if a cell is not finished; ``ability`` is what only a finished one has or can do."""
    if cell.status != "finished":
        state = format_state(cell.status, cell.reason, cell.epochs)
        raise RegistryError(f"only a finished cell {ability}. Cell {cell.id[:12]}: {state}")


def finished_results(ledger: Ledger, grid: GridRecord, column: str = "", split: str = "") -> "Results":
    """The results of a grid, of which at least one cell is finished and has a score in the column, on the split."""
    from taskloom.runs.analysis.results import Results

    results = Results(grid, ledger.folder, split=split, epochs=ledger.epochs)
    if not results.finished and grid.stale and not grid.cells:
        raise TaskloomError(f"all rows of {grid.name!r} are stale; --stale show shows them")
    if not results.finished:
        raise TaskloomError(f"no cell of {grid.name!r} is finished yet; `taskloom cells {grid.name}` shows why")
    check_split(results)
    if column and column not in results.columns:
        raise TaskloomError(unknown("column", column, results.columns, where=f"scores of {grid.name}"))
    return results


def check_split(results: "Results") -> None:
    """Raise an error if a split is asked for on which no finished cell was scored."""
    scored = [cell for (label, _), cell in results.finished.items() if results.final_scores(label, cell)]
    if results.finished and results.split and not scored:
        cell = next(iter(results.finished.values()))
        why = results.why_unscored(cell, "the grid", results.split)
        raise TaskloomError(f"no cell of {results.grid.name!r} has {results.split} scores: {why}")


def states_in(ledger: Ledger, grid: str | None) -> "list[CellState]":
    """The state of every cell of a grid, or of the whole registry."""
    from taskloom.runs.analysis.cell_states import states_of

    if grid is not None:
        return states_of(ledger, [ledger.grid(grid)])
    grids = ledger.grids()
    known = {row.cell.id for grid_record in grids for row in grid_record.cells}
    # A grid that was changed leaves its former cells behind; their results still count.
    return states_of(ledger, grids, [cell for cell in ledger.cells() if cell.id not in known])


def counted_look(ledger: Ledger, grid: str) -> list[str]:
    """Write down that a grid's test scores are looked at; a sentence from the second time on, or if it cannot be."""
    try:
        looks = ledger.add_look(grid)
    except RegistryError:  # a registry that may only be read
        return ["That the test scores were looked at could not be written down."]
    if looks < 2:
        return []
    return [f"The test scores of this grid were looked at {looks} times; what is chosen by them is no longer a test."]


def checks_with_looks(ledger: Ledger, results: "Results") -> tuple[str, ...]:
    """What a reader should know of results. A look at test scores is written down."""
    from taskloom.runs.analysis.checks import checks_of

    looks = counted_look(ledger, results.grid.name) if results.shows_test else []
    split = [f"Scores are on {results.split}."] if results.split not in ("", "dev") else []
    return (*split, *checks_of(results), *looks)


def table_with_looks(ledger: Ledger, results: "Results", table: "Table") -> "Table":
    """A table of these results. A look at test scores is written down."""
    looks = counted_look(ledger, results.grid.name) if results.shows_test else []
    return replace(table, checks=(*table.checks, *looks))
