"""Grid → plan: which cells there are, what each is exactly, and what is done already."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from taskloom.core import Problem, RequestError, unknown
from taskloom.runs.grid.canonical import digest
from taskloom.runs.grid.contents import Contents
from taskloom.runs.grid.grid import Grid, Variant, expand
from taskloom.runs.grid.grid_schema import judged
from taskloom.runs.grid.identity import facts, stage_keys
from taskloom.runs.grid.overrides import Overrides, override
from taskloom.runs.grid.paths import PathError, matches

if TYPE_CHECKING:
    from taskloom.registry.installed.catalogue import Catalogue
    from taskloom.registry.results.ledger import Ledger


@dataclass(frozen=True)
class PlannedCell:
    """One cell: a variant with a seed. ``id`` is its identity, ``spec`` the fully resolved run.

    ``facts`` are what its identity is made of. A cell that is not ``chosen`` is no part of this run, only of the table.
    """

    id: str
    label: str
    seed: int
    status: str
    spec: dict[str, Any]
    versions: dict[str, str]
    stage_keys: tuple[str, ...] = ()
    reported: dict[str, float] = field(default_factory=dict)
    chosen: bool = True
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """What a grid asks for, checked and complete; ``notes`` are for the log.

    ``excluded`` are the labels of rows that are left out, each with the place of the entry of ``exclude`` that does it.
    """

    grid: Grid
    cells: tuple[PlannedCell, ...]
    notes: tuple[str, ...]
    excluded: tuple[tuple[str, int], ...] = ()

    @property
    def chosen(self) -> tuple[PlannedCell, ...]:
        """The cells that this run is about."""
        return tuple(cell for cell in self.cells if cell.chosen)


def make_plan(
    grid: Grid,
    catalogue: "Catalogue",
    ledger: "Ledger | None",
    *,
    allow_large: bool = False,
    overrides: Overrides | None = None,
) -> Plan:
    """Expand and check a grid; every problem is found here, before the first step of training.

    ``ledger`` tells which cells are finished; without one all are new. ``overrides`` are laid over every row. Rows
    that they do not choose and that could not be run are left out.
    """
    overrides = overrides or Overrides()
    # What is laid over a grid may repair what its schema refuses, or leave it out.
    sort_out = partial(judged, grid, catalogue, complete=overrides == Overrides())
    expansion = expand(grid, allow_large=allow_large)
    problems = expansion.problems
    if not any(variant.spec for variant in expansion.variants):  # no base to speak of
        raise RequestError(str(grid.path), sort_out(problems))
    # What is left out is a matter of the grid as it is written, not of what is laid over it.
    rows = [_Checked(variant, catalogue) for variant in expansion.variants]
    excluded = _excluded(rows, grid, problems)
    kept = [each for each in rows if each.variant.label not in excluded or each.variant.explicit]
    wanted = override(grid, [each.variant for each in kept], overrides, catalogue)
    grid, contents = wanted.grid, Contents(catalogue, overrides)
    checked = [_Checked(variant, catalogue) for variant in wanted.variants]
    problems += _column_problems(checked, grid)
    for each in checked:
        each.problems += contents.problems(each.spec, {problem.path for problem in each.problems})
    checked = [each for each in checked if each.variant.chosen or not each.problems]
    found = sort_out([*problems, *_row_problems(checked)])
    if found:
        raise RequestError(str(grid.path), found)
    states = ledger.states() if ledger is not None else {}
    cells = []
    for each in checked:
        versions = catalogue.versions(each.spec)
        for seed in grid.spec.seeds:
            spec = {**each.spec, "seed": seed}
            made_of = facts(spec, catalogue, contents)
            cell = digest(made_of)
            cells.append(
                PlannedCell(
                    id=cell,
                    label=each.variant.label,
                    seed=seed,
                    status=states.get(cell, "new"),
                    spec=spec,
                    versions=versions,
                    stage_keys=stage_keys(spec, catalogue, contents),
                    reported=each.variant.reported,
                    chosen=each.variant.chosen,
                    facts=made_of,
                )
            )
    notes = (*wanted.notes, *contents.notes, *_replaced(grid, cells, ledger))
    return Plan(grid, tuple(cells), notes, tuple(excluded.items()))


def _replaced(grid: Grid, cells: list[PlannedCell], ledger: "Ledger | None") -> Iterator[str]:
    """A word of warning if nothing of what was run here under the grid's name is part of it any more."""
    if ledger is None or grid.name not in ledger.grid_names():
        return
    before = ledger.grid(grid.name)
    if not before.cells or not {place.cell.id for place in before.cells}.isdisjoint(cell.id for cell in cells):
        return
    explain = "`taskloom explain` says what"
    if before.spec == grid.raw:
        yield f"data, weights or a plugin changed since grid {grid.name!r} was last run here, so all is new; {explain}"
    elif {place.label for place in before.cells} & {cell.label for cell in cells}:
        yield f"every cell of grid {grid.name!r} differs from when it was last run here; {explain}"
    else:
        yield (
            f"another grid called {grid.name!r} was run here before and makes way for this one in listings; its "
            'results stay. To keep both, give one of them a "name" of its own.'
        )


class _Checked:
    """A variant with its resolved spec and what is wrong with it."""

    def __init__(self, variant: Variant, catalogue: "Catalogue") -> None:
        self.variant = variant
        self.spec, problems = catalogue.resolve_run(variant.spec)
        self.problems = [*variant.problems, *problems]


def _excluded(rows: list[_Checked], grid: Grid, problems: list[Problem]) -> dict[str, int]:
    """Label → place of the first entry of ``exclude`` that leaves a row of the product out.

    An entry may name values as the grid has them, or defaults.
    """
    excluded: dict[str, int] = {}
    product = [each for each in rows if not each.variant.explicit]
    for place, entry in enumerate(grid.spec.exclude):
        out = [each.variant.label for each in product if _matches(entry, each)]
        excluded = {**dict.fromkeys(out, place), **excluded}
        if not out:
            text = "leaves nothing out: no row of the product has all of these values"
            problems.append(Problem(f"exclude.{place}", f"{text}. Found {json.dumps(entry)}."))
    if all(each.variant.label in excluded and not each.variant.explicit for each in rows):
        problems.append(Problem("exclude", "the grid is empty: every cell is excluded"))
    return excluded


def _matches(entry: Mapping[str, Any], each: _Checked) -> bool:
    for run in (each.variant.spec, each.spec):
        try:
            if all(matches(run, path, value) for path, value in entry.items()):
                return True
        except PathError:
            continue  # this row lacks the place, say a second stage
    return False


def _column_problems(checked: list[_Checked], grid: Grid) -> Iterator[Problem]:
    """Columns and published figures that no row can have."""
    runs = [each.variant.spec.get("tasks") for each in checked]
    tasks = {name for run in runs if isinstance(run, dict) for name in run}
    columns = [*sorted(tasks), "overall", "seconds", "memory"]
    wanted = [("table.columns", column) for column in grid.spec.table.columns or ()]
    wanted += [(f"cells.{place}.reported", key) for place, cell in enumerate(grid.spec.cells) for key in cell.reported]
    for path, column in wanted:
        if column not in columns:
            yield Problem(path, unknown("column", column, columns, where="columns"), "form")
    twice = [column for column, count in Counter(grid.spec.table.columns or ()).items() if count > 1]
    if twice:
        text = f"each column should stand once. Found {', '.join(twice)} more than once."
        yield Problem("table.columns", text, "form")


def _row_problems(checked: list[_Checked]) -> Iterator[Problem]:
    """The problems of all rows, each said once with the rows it concerns."""
    rows: dict[Problem, list[str]] = {}
    for each in checked:
        for problem in dict.fromkeys(each.problems):
            rows.setdefault(problem, []).append(each.variant.label)
    for problem, labels in rows.items():
        where = ""
        if len(labels) < len(checked) and not problem.path.startswith("cells."):
            more = f" and {len(labels) - 3} more" if len(labels) > 3 else ""
            where = f" [in {', '.join(labels[:3])}{more}]"
        yield replace(problem, message=problem.message + where)
