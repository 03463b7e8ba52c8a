"""Check imported records: each cell against its identity, each row against its grid."""

import math
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from taskloom.core.errors import RequestError
from taskloom.registry.results.archive import without_folders
from taskloom.registry.results.records import CHANGES, OVERRIDES, TRIALS_OF, TUNED, CellRecord, GridRecord
from taskloom.runs.grid.expansion import LARGE, copied, expand
from taskloom.runs.grid.grid import read_grid
from taskloom.runs.grid.identity import without_defaults
from taskloom.runs.grid.overrides import Overrides, change_runs, complete, recorded_overrides
from taskloom.runs.grid.paths import PathError, assign
from taskloom.runs.grid.search import trial_rows

#: What is no part of a result, what --data replaces, and what a smoke run does.
FREE = frozenset({"resources"})
DATA, SMOKE = FREE | {"data"}, FREE | {"data", "encoder", "epochs", "iterations"}


def is_same_spec(cell: CellRecord) -> bool:
    """Whether a cell's specification, without defaults and locations, is the one in the facts of its identity."""
    from taskloom.registry.installed.catalogue import load_catalogue

    stated, catalogue = cell.facts["spec"], load_catalogue()
    if "plugins" in cell.facts:  # up to 0.2 the facts had every option
        stated = without_defaults(stated, catalogue)
    return bool(without_defaults(cell.spec, catalogue) == stated)


def check_rows(record: GridRecord) -> str:
    """What is wrong with the rows of an imported grid; empty if nothing is.

    The grid is expanded as it is written, with the recorded changes. Every recorded row has to be one of its rows, and
    the row's cells must have the settings that the grid states. Locations of files may differ.
    """
    try:
        grid = read_grid({**record.written, "name": record.name}, Path(record.name))
    except RequestError as error:
        return str(error.problems[0])
    size = math.prod(
        [*map(len, grid.spec.axes.values()), *(len(next(iter(axes.values()))) for axes in grid.spec.zip if axes)]
    )
    packaged = f" (it builds on the packaged grid {grid.spec.base!r})" if isinstance(grid.spec.base, str) else ""
    expansion = expand(grid, allow_large=size <= 10 * LARGE)
    specs = {row.label: complete(row.spec) for row in expansion.variants if not row.problems}
    rows = {label: spec for label, spec in specs.items() if spec is not None}
    overrides = recorded_overrides(record)
    change_runs([*rows.values()], overrides, strict=False)
    for change in record.spec.get(CHANGES, ()):  # up to 0.2, changed rows in the table of the grid itself
        changed = {f"{row} [{change.get('label')}]": copied(rows[row]) for row in change.get("rows", ()) if row in rows}
        own = Overrides(settings=change.get("settings", {}), epochs=change.get("epochs"))
        change_runs([*changed.values()], own, strict=False)
        rows |= changed
    if TRIALS_OF in record.spec and grid.spec.search is not None:
        tried = [replace(row, spec=rows[row.label]) for row in expansion.variants if row.label in rows]
        trials = trial_rows(tried, grid.spec, (*grid.spec.seeds, *record.added_seeds))
        rows = {trial.label: trial.spec for trial in trials}
    chosen = {} if TRIALS_OF in record.spec else _chosen(record)
    rows = {without_folders(label): spec for label, spec in rows.items()}
    published = {without_folders(row.label): row.reported for row in expansion.variants}
    lines = record.spec.get(OVERRIDES, ())
    replaced = SMOKE if overrides.smoke else DATA if lines else FREE
    for row in record.cells:
        if row.label not in rows:
            return f"it has no row {row.label!r}{packaged}"
        if row.reported and row.reported != published.get(row.label, row.reported):
            return f"row {row.label!r} has other published figures than the grid states{packaged}"
        stated, actual = {**copied(rows[row.label]), "seed": row.seed}, complete(row.cell.spec) or {"tasks": {}}
        for path, value in chosen.get((row.label, row.seed), chosen.get((row.label, None), {})).items():
            with suppress(PathError):  # the cell then differs
                assign(stated, path, value)
        stated["tasks"] = {
            task: stated["tasks"].get(task, {}) for task in actual["tasks"]
        }  # those that no stage has: none
        if not _states(stated, actual, replaced):
            return f"row {row.label!r}, seed {row.seed} has another cell than the grid states{packaged}"
    return ""


def _chosen(record: GridRecord) -> dict[tuple[str, int | None], dict[str, Any]]:
    """Row and seed, None for all seeds → the settings that a search has chosen, as far as the grid searches them."""
    search, rows = record.spec.get("search") or {}, record.spec.get(TUNED, {}).get("rows", ())
    own = [cell["search"]["over"] for cell in record.spec.get("cells", ()) if cell.get("search")]
    searched = {path for over in (search.get("over", {}), *own) for path in over}
    return {
        (row["row"], row["seed"]): {path: value for path, value in row["settings"].items() if path in searched}
        for row in rows
    }


def _states(stated: Any, actual: Any, replaced: frozenset[str]) -> bool:
    """Whether a cell's specification has what a row states; components may be written as names."""
    match stated, actual:
        case (None, _):
            return True
        case (str(), {"name": name}):
            return bool(stated == name)
        case (str(), str()):
            return Path(stated).name == Path(actual).name
        case ({}, {}):
            return all(key in replaced or _states(value, actual.get(key), replaced) for key, value in stated.items())
        case ([*parts], [*others]):
            return len(parts) == len(others) and all(
                _states(a, b, replaced) for a, b in zip(parts, others, strict=True)
            )
        case ([first, *_], _):  # further metrics are no part of a cell
            return _states(first, actual, replaced)
    return bool(stated == actual)
