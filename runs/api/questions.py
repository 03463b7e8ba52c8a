"""What can be asked of a grid's results, each question a function of the ledger and the recorded grid. No torch."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from taskloom.core.errors import TaskloomError
from taskloom.registry.results.artifacts import write_bytes
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import GridRecord
from taskloom.runs.api.answer import Answer, TableAnswer, table_answer
from taskloom.runs.api.find import counted_look, find_subject, finished_results
from taskloom.runs.driver.wording import file_size
from taskloom.runs.show.parts import Aligned
from taskloom.runs.show.plan import plan_parts

if TYPE_CHECKING:  # which import numpy
    from taskloom.runs.analysis.cell_states import CellState
    from taskloom.runs.analysis.claims import Claim
    from taskloom.runs.analysis.compare import Comparison
    from taskloom.runs.analysis.effects import Effects
    from taskloom.runs.analysis.errors import TaskErrors
    from taskloom.runs.analysis.explain import Explanation
    from taskloom.runs.driver.forecast import Cost
    from taskloom.runs.grid.plan import Plan
    from taskloom.runs.show.findings import NamedContrast

#: Where the data of a run are now, if they were moved.
Folder = str | os.PathLike[str] | None


def flat(record: dict[str, Any]) -> dict[str, Any]:
    """One level of columns: an interval as ``low`` and ``high``, a list as text.

    >>> flat({"delta": 0.1, "interval": [0.0, 0.2], "paths": ["a", "b"]})
    {'delta': 0.1, 'low': 0.0, 'high': 0.2, 'paths': 'a, b'}
    """
    made: dict[str, Any] = {}
    for key, value in record.items():
        if key == "interval":
            made["low"], made["high"] = value or (None, None)
        else:
            made[key] = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
    return made


def plan_answer(plan: "Plan", costs: "Mapping[str, Cost]" = MappingProxyType({})) -> "Answer[Plan]":
    """The cells of a plan, with what each takes if that is known."""
    keys = ("id", "label", "seed", "status")

    def records() -> list[dict[str, Any]]:
        return [
            {key: getattr(cell, key) for key in keys} | (vars(costs[cell.id]) if costs else {}) for cell in plan.chosen
        ]

    return Answer(
        plan,
        lambda: plan_parts(plan, costs),
        lambda: {"cells": [{**row, "spec": cell.spec} for row, cell in zip(records(), plan.chosen, strict=True)]},
        records,
        plan.notes,
    )


def table(
    ledger: Ledger | None,
    grid: GridRecord,
    registry: Path,
    *,
    reported: bool,
    columns: Sequence[str],
    sort: str,
    group_by: str,
    metric: str,
) -> TableAnswer:
    """The comparison table; without a ledger that of published figures."""
    from taskloom.runs.analysis.results import Results, metric_named
    from taskloom.runs.analysis.tables import Wanted, table_of

    epochs = ledger.epochs if ledger else lambda cell: ()
    results = Results(grid, registry, metric_named(metric) if metric else None)
    made = table_of(results, epochs, Wanted(tuple(columns), sort, group_by))
    return table_answer(counted_look(ledger, made) if ledger else made, reported=reported)


def claims(ledger: Ledger, grid: GridRecord) -> "Answer[list[Claim]]":
    """The claims of a grid, answered."""
    from taskloom.runs.analysis.claims import claims_of
    from taskloom.runs.show.findings import claims_json, claims_parts

    results = finished_results(ledger, grid)
    found = claims_of(results, ledger.claims(grid.name), grid.spec.get("margin"))
    none = f"{grid.name} makes no claims; `taskloom claims --help` shows one"
    return Answer(
        found,
        lambda: claims_parts(found) if found else [none],
        lambda: claims_json(found),
        lambda: [flat(each) for each in claims_json(found)],
    )


def effects(ledger: Ledger, grid: GridRecord, column: str) -> "Answer[Effects]":
    """What each axis of a grid does to a score."""
    from taskloom.runs.analysis.effects import effects_of
    from taskloom.runs.show.findings import effects_json, effects_parts

    found = effects_of(finished_results(ledger, grid, column), column)

    def records() -> list[dict[str, Any]]:
        shown = effects_json(found)
        return [{"kind": kind, **flat(each)} for kind in ("main", "interactions", "simple") for each in shown[kind]]

    return Answer(found, lambda: effects_parts(found), lambda: effects_json(found), records)


def seeds_needed(ledger: Ledger, grid: GridRecord, column: str, queue: bool) -> "Answer[list[NamedContrast]]":
    """How many more seeds settle each open comparison with the baseline, and each open claim."""
    from taskloom.runs.analysis.claims import claims_of
    from taskloom.runs.analysis.contrasts import judge
    from taskloom.runs.show.findings import NamedContrast, advised_seeds, seeds_json, seeds_parts

    results = finished_results(ledger, grid, column)
    margin, baseline = grid.spec.get("margin"), results.baseline
    rows = [row for row in results.rows if row != baseline] if baseline in results.rows else []
    judged = judge([results.difference(column, row, str(baseline)) for row in rows], margin)
    found = [
        *(NamedContrast(f"{row} − {baseline}", column, each) for row, each in zip(rows, judged, strict=True)),
        *(
            NamedContrast(claim.says, claim.column, claim.judged)
            for claim in claims_of(results, ledger.claims(grid.name), margin)
            if claim.answer == "open"
        ),
    ]
    number = advised_seeds([comparison.judged for comparison in found])
    if queue and number:
        ledger.queue_seeds(grid.name, number)
    if not found:
        raise TaskloomError(f"{grid.name} has no baseline and no open claims, so there is nothing to compare")
    return Answer(
        found,
        lambda: seeds_parts(found),
        lambda: seeds_json(found),
        lambda: [flat(each) for each in seeds_json(found)],
    )


def cells_answer(states: "Sequence[CellState]") -> "Answer[Sequence[CellState]]":
    """Cells with their states."""
    from taskloom.runs.show.cells import list_cells

    records = ("grid", "label", "seed", "status", "reason", "score", "seconds", "id")
    return Answer(
        states,
        lambda: [Aligned(list_cells(states))],
        lambda: {"cells": [each.as_json() for each in states]},
        lambda: [{key: each.as_json()[key] for key in records} for each in states],
    )


def errors(
    ledger: Ledger, source: str, grids: Sequence[GridRecord], limit: int, data: Folder
) -> "Answer[list[TaskErrors]]":
    """The worst errors of a row or cell, and what it confuses."""
    _check_limit(limit)
    subject = find_subject(ledger, source, grids)

    from taskloom.runs.analysis.errors import errors_of
    from taskloom.runs.show.errors import errors_json, show_errors

    found = errors_of(subject, ledger.folder, limit=limit, folder=folder_of(data))

    def records() -> list[dict[str, Any]]:
        return [
            {
                "task": task.of.task,
                "id": each.id,
                "text": " | ".join(each.texts or ()),
                "label": each.label,
                "predicted": list(each.predicted[0]),
                "confidence": each.confidence[0],
                "seeds": each.seeds,
            }
            for task in found
            for each in task.worst
        ]

    return Answer(found, lambda: [Aligned(show_errors(subject, found))], lambda: errors_json(subject, found), records)


def compare(
    ledger: Ledger, a: str, b: str, grids: Sequence[GridRecord], limit: int, data: Folder
) -> "Answer[Comparison]":
    """Two rows or cells, example by example."""
    _check_limit(limit)
    first, second = (find_subject(ledger, source, grids) for source in (a, b))

    from taskloom.runs.analysis import compare as comparing
    from taskloom.runs.show.errors import comparison_json, show_comparison

    made = comparing.compare(first, second, ledger.folder, folder=folder_of(data))

    def records() -> list[dict[str, Any]]:
        keys = ("task", "metric", "examples", "a", "b", "delta", "interval", "p", "verdict", "variance", "seeds")
        return [flat({key: task[key] for key in keys}) for task in comparison_json(made, 0)["tasks"]]

    return Answer(made, lambda: [Aligned(show_comparison(made, limit))], lambda: comparison_json(made, limit), records)


def folder_of(data: Folder) -> Path | None:
    """Where somebody says that the data are now."""
    folder = None if data is None else Path(os.path.expanduser(data))  # noqa: PTH111 - the other raises
    if folder is not None and not os.path.isdir(folder):  # noqa: PTH112 - a name too long is not a folder
        raise TaskloomError(f"--data {folder} is not a folder")
    return folder


def explained(found: "Sequence[Explanation]", grid: str, notes: Iterable[str]) -> "Answer[Sequence[Explanation]]":
    """Why each row of a grid is new, cached, stale or excluded."""
    from taskloom.runs.show.explain import show_explained

    keys = ("label", "seed", "state", "why", "cell", "against")
    return Answer(
        found,
        lambda: [Aligned(show_explained(found))],
        lambda: {"grid": grid, "cells": [one.as_dict() for one in found]},
        lambda: [{key: getattr(one, key) for key in keys} for one in found],
        tuple(notes),
    )


def report(ledger: Ledger, grid: GridRecord, out: Path) -> Answer[Path]:
    """The results as one HTML page."""
    from dataclasses import replace

    from taskloom.runs.analysis.overview import overview_of
    from taskloom.runs.show.report.page import render_report

    overview = overview_of(ledger, grid)
    return _written(out, render_report(replace(overview, table=counted_look(ledger, overview.table))).encode())


def plot(ledger: Ledger, grid: GridRecord, out: Path, kind: str) -> Answer[Path]:
    """One figure of the results."""
    from taskloom.runs.analysis.overview import overview_of
    from taskloom.runs.show.plots import draw

    overview = overview_of(ledger, grid)
    made = _written(out, draw(overview, kind, out.suffix))
    if overview.baseline != (stated := grid.spec.get("baseline")) and stated:
        return made.noting(
            [f"{stated!r}, the grid's baseline, has no result; differences are to {overview.baseline!r}."]
        )
    return made


def _check_limit(limit: int) -> None:
    if not isinstance(limit, int) or limit < 0:
        raise TaskloomError(f"limit should be an integer from 0 on. Found {limit!r}.")


def _written(path: Path, content: bytes) -> Answer[Path]:
    try:
        write_bytes(path, content)
    except OSError as error:
        raise TaskloomError(f"{path} cannot be written: {error.strerror}; choose another file") from error
    facts = {"path": str(path), "bytes": len(content)}
    return Answer(path, lambda: [f"{path} ({file_size(len(content))})"], lambda: facts, lambda: [facts])
