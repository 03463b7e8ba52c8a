"""What can be asked of a grid's results, each question a function of the ledger and the recorded grid. No torch."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from taskloom.core.errors import TaskloomError, count
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import TRIALS_OF, GridRecord
from taskloom.runs.api.answer import Answer, existing_folder, flat, written
from taskloom.runs.api.arguments import check_limit, checked, checked_split
from taskloom.runs.api.find import (
    checks_with_looks,
    counted_look,
    find_subject,
    finished_results,
    table_with_looks,
)
from taskloom.runs.show.data import data_listing
from taskloom.runs.show.parts import Aligned, Listing
from taskloom.runs.show.plan import plan_parts

if TYPE_CHECKING:  # which import numpy
    from taskloom.runs.analysis.budget import Budget
    from taskloom.runs.analysis.cell_states import CellState
    from taskloom.runs.analysis.claims import Claim
    from taskloom.runs.analysis.compare import Comparison
    from taskloom.runs.analysis.effects import Effects
    from taskloom.runs.analysis.errors import TaskErrors
    from taskloom.runs.analysis.overview import Overview
    from taskloom.runs.analysis.predictions import Subject
    from taskloom.runs.driver.forecast import Cost
    from taskloom.runs.grid.data_facts import SplitFacts
    from taskloom.runs.grid.plan import Plan
    from taskloom.runs.grid.planned import PlannedCell
    from taskloom.runs.show.findings import NamedContrast

#: Where the data of a run are now, if they were moved.
Folder = str | os.PathLike[str] | None


def plan_answer(plan: "Plan", costs: "Mapping[str, Cost]" = MappingProxyType({})) -> "Answer[Plan]":
    """The cells of a plan, with what each takes if that is known."""
    keys = ("id", "label", "seed", "status")

    def records(cells: "Iterable[PlannedCell]") -> list[dict[str, Any]]:
        return [{key: getattr(cell, key) for key in keys} | (vars(costs[cell.id]) if costs else {}) for cell in cells]

    def listed(cells: "Sequence[PlannedCell]") -> list[dict[str, Any]]:
        return [{**record, "spec": cell.spec} for record, cell in zip(records(cells), cells, strict=True)]

    json: dict[str, Any] = {"cells": listed(plan.chosen), "remarks": [*plan.remarks]}
    if plan.trials is not None:
        waiting = [{"label": cell.label, "seed": cell.seed} for cell in plan.waiting]
        json |= {"trials": listed(plan.trials.chosen), "waiting": waiting}
    return Answer(plan, [*plan_parts(plan, costs)], json, records(plan.chosen), plan.notes)


def validated(plan: "Plan", source: str) -> "Answer[Plan]":
    """That a grid is valid, and the sizes of the data that it reads."""
    cells = (*plan.chosen, *plan.waiting)
    rows = f"{count(len(cells), 'cell')} in {count(len({cell.label for cell in cells}), 'row')}"
    rows += f", after {count(plan.trial_count, 'trial')}" if plan.trial_count else ""
    columns = ("task", "split", "examples", "unreadable", "unlabelled")
    sizes = [tuple(getattr(facts, column) for column in columns) for facts in plan.data]
    records = [facts.record() for facts in plan.data]
    return Answer(
        plan,
        [f"{source} is valid: {rows}", Listing([*dict.fromkeys(sizes)], columns)],
        {"valid": True, "errors": [], "data": records, "remarks": [*plan.remarks]},
        records,
        plan.notes,
    )


def data_answer(plan: "Plan") -> "Answer[tuple[SplitFacts, ...]]":
    """What the data hold that a grid reads, by task and split."""
    records = [facts.record() for facts in plan.data]
    shown = {"data": records, "remarks": [*plan.remarks]}
    return Answer(plan.data, [data_listing(plan.data)], shown, records, plan.notes)


def claims(ledger: Ledger, grid: GridRecord, *, split: str) -> "Answer[list[Claim]]":
    """The claims of a grid, answered."""
    from taskloom.runs.analysis.claims import claims_of
    from taskloom.runs.analysis.tables import table_of
    from taskloom.runs.show.findings import claims_json, claims_parts

    results = finished_results(ledger, grid, split=checked_split(split))
    answered = claims_of(results, table_of(results), ledger.claims(grid.name))
    checks = checks_with_looks(ledger, results) if answered else ()
    none = f"{grid.name} makes no claims; `taskloom claims --help` shows one"
    shown = claims_json(answered)
    return Answer(
        answered,
        [*claims_parts(answered)] if answered else [none],
        {"split": results.split or None, "claims": shown, "checks": list(checks)},
        [flat(claim) for claim in shown],
        checks=checks,
    )


def effects(ledger: Ledger, grid: GridRecord, *, column: str, split: str) -> "Answer[Effects]":
    """What each axis of a grid does to a score."""
    from taskloom.runs.analysis.effects import effects_of
    from taskloom.runs.show.findings import effects_json, effects_parts

    results = finished_results(ledger, grid, column, checked_split(split))
    estimated = effects_of(results, column)
    checks = checks_with_looks(ledger, results)
    shown = effects_json(estimated)
    return Answer(
        estimated,
        [*effects_parts(estimated)],
        {**shown, "split": results.split or None, "checks": list(checks)},
        [{"kind": kind, **flat(effect)} for kind in ("main", "interactions", "simple") for effect in shown[kind]],
        checks=checks,
    )


def budget(ledger: Ledger, grid: GridRecord, *, column: str) -> "Answer[Budget]":
    """What each row is expected to score at best, by the number of trials of its search."""
    from taskloom.runs.analysis.budget import budget_of, no_trials
    from taskloom.runs.show.budget import budget_parts

    estimated = budget_of(ledger, grid, column)
    if estimated is None and (searched := grid.spec.get(TRIALS_OF)):
        raise TaskloomError(f"{grid.name!r} has the trials of {searched!r}; ask for the budget of that grid")
    if estimated is None:
        raise no_trials(grid.name)
    records = [{"row": row.row, **vars(best)} for row in estimated.rows for best in row.curve]
    return Answer(estimated, [*budget_parts(estimated)], asdict(estimated), records, checks=tuple(estimated.checks))


def seeds_needed(ledger: Ledger, grid: GridRecord, *, column: str, queue: bool) -> "Answer[list[NamedContrast]]":
    """How many more seeds settle each open comparison with the baseline, and each open claim."""
    from taskloom.runs.analysis.claims import claims_of
    from taskloom.runs.analysis.tables import table_of
    from taskloom.runs.show.findings import OPEN, NamedContrast, advised_seeds, seeds_json, seeds_parts

    results = finished_results(ledger, grid, column)
    judged = table_of(results)
    comparisons = [
        *(
            NamedContrast(f"{row} − {judged.baseline}", column, difference)
            for (row, of), difference in judged.differences.items()
            if of == column
        ),
        *(
            NamedContrast(claim.says, claim.column, claim.judged)
            for claim in claims_of(results, judged, ledger.claims(grid.name))
            if claim.answer in OPEN
        ),
    ]
    number = advised_seeds([comparison.judged for comparison in comparisons])
    if queue and number:
        ledger.queue_seeds(grid.name, number)
    if not comparisons:
        raise TaskloomError(f"{grid.name} has no baseline and no open claims, so there is nothing to compare")
    checks = checks_with_looks(ledger, results)
    shown = seeds_json(comparisons)
    return Answer(
        comparisons,
        [*seeds_parts(comparisons)],
        {"comparisons": shown, "checks": list(checks)},
        [flat(comparison) for comparison in shown],
        checks=checks,
    )


class CellAnswer(Answer["Sequence[CellState]"]):
    """All that is known of one cell, in the rows that it is in."""


def cells_answer(states: "Sequence[CellState]") -> "Answer[Sequence[CellState]]":
    """Cells with their states."""
    from taskloom.runs.show.cells import list_cells

    cells, keys = [state.as_json() for state in states], ("grid", "label", "seed", "status", "reason", "score")
    records = [{key: cell[key] for key in (*keys, "seconds", "id")} for cell in cells]
    return Answer(states, [list_cells(states)], {"cells": cells}, records)


def errors(
    ledger: Ledger, grids: Sequence[GridRecord], source: str, *, limit: int, data: Folder, split: str
) -> "Answer[list[TaskErrors]]":
    """The worst errors of a row or cell, and what it confuses."""
    check_limit(limit)
    subject = find_subject(ledger, source, grids)

    from taskloom.runs.analysis.errors import errors_of
    from taskloom.runs.show.errors import errors_json, show_errors

    shown: Any = checked_split(split) or "dev"
    by_task = errors_of(subject, ledger.folder, limit=limit, folder=existing_folder(data), split=shown)
    checks = _subject_checks(ledger, subject, shown)
    records = [
        {
            "task": task.of.task,
            "id": example.id,
            "text": " | ".join(example.texts or ()),
            "label": example.label,
            "predicted": list(example.predicted[0]),
            "confidence": example.confidence[0],
            "seeds": example.seeds,
        }
        for task in by_task
        for example in task.worst
    ]
    as_json = {**errors_json(subject, by_task), "split": shown, "checks": list(checks)}
    return Answer(by_task, [Aligned(show_errors(subject, by_task))], as_json, records, checks=checks)


def _with_stale(subject: "Subject") -> "Subject":
    """The same row of a grid that knows whether it would be another run now."""
    from taskloom.runs.analysis.stale import with_stale

    return subject if subject.grid is None or subject.grid.stale else replace(subject, grid=with_stale(subject.grid))


def _subject_checks(ledger: Ledger, subject: "Subject", split: str) -> tuple[str, ...]:
    """What to know of a row or a cell. A look at its test scores is written down."""
    from taskloom.runs.analysis.checks import checks_of
    from taskloom.runs.analysis.results import Results

    grid = subject.grid or GridRecord("", {}, "", "", subject.cells)
    rows = [cell for cell in grid.cells if cell.label == subject.cells[0].label]
    results = Results(replace(grid, cells=tuple(rows)), ledger.folder, split=split, epochs=ledger.epochs)
    shown = [f"Scores and predictions are those of {split}."] if split != "dev" else []
    return (*shown, *checks_of(results), *_looks(ledger, [subject], split))


def _looks(ledger: Ledger, subjects: "Sequence[Subject]", split: str) -> list[str]:
    """Write down that the test scores of the grids of these rows or cells are looked at."""
    if split != "test":
        return []
    grids = dict.fromkeys(
        subject.grid.name if subject.grid else row.grid
        for subject in subjects
        for row in ledger.rows_of(subject.cells[0].cell.id)[:1]
    )
    return [line for grid in grids for line in counted_look(ledger, grid)]


def compare(
    ledger: Ledger, grids: Sequence[GridRecord], a: str, b: str, *, limit: int, data: Folder, split: str
) -> "Answer[Comparison]":
    """Two rows or cells, example by example."""
    check_limit(limit)
    first, second = (_with_stale(find_subject(ledger, source, grids)) for source in (a, b))

    from taskloom.runs.analysis.compare import compare as compare_subjects
    from taskloom.runs.show.errors import comparison_json, comparison_parts

    shown: Any = checked_split(split) or "dev"
    folder = existing_folder(data)
    comparison = compare_subjects(first, second, ledger.folder, folder=folder, split=shown, epochs=ledger.epochs)
    comparison = replace(comparison, checks=(*comparison.checks, *_looks(ledger, [first, second], shown)))
    as_json = comparison_json(comparison, limit)
    keys = ("task", "metric", "examples", "a", "b", "delta", "interval", "p", "verdict", "variance", "seeds")
    records = [flat({key: task[key] for key in keys}) for task in as_json["tasks"]]
    return Answer(comparison, comparison_parts(comparison, limit), as_json, records, checks=comparison.checks)


def report(ledger: Ledger, grid: GridRecord, *, out: Folder, split: str, **writing: Any) -> Answer[Path]:
    """The results as one HTML page; ``writing`` are arguments of :func:`written`."""
    from taskloom.runs.show.report.page import render_report

    path, overview = Path(checked("out", out)), _overview(ledger, grid, split)
    return written({path: render_report(overview).encode()}, checks=overview.table.checks, **writing)


def plot(ledger: Ledger, grid: GridRecord, *, out: Folder, kind: str, split: str, **writing: Any) -> Answer[Path]:
    """One figure of the results; ``writing`` are arguments of :func:`written`."""
    from taskloom.runs.show.plots import draw

    path, overview = Path(checked("out", out)), _overview(ledger, grid, split)
    figure = written({path: draw(overview, kind, path.suffix)}, checks=overview.table.checks, **writing)
    if overview.baseline != (stated := grid.spec.get("baseline")) and stated:
        return figure.noting(
            [f"{stated!r}, the grid's baseline, has no result; differences are to {overview.baseline!r}."]
        )
    return figure


def _overview(ledger: Ledger, grid: GridRecord, split: str) -> "Overview":
    """All results of a grid. A look at test scores is written down."""
    from taskloom.runs.analysis.overview import overview_of

    overview = overview_of(finished_results(ledger, grid, split=checked_split(split)), ledger)
    return replace(overview, table=table_with_looks(ledger, overview.results, overview.table))
