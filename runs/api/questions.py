"""What can be asked of a grid's results, each question a function of the ledger and the recorded grid. No torch."""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from taskloom.core.errors import TaskloomError, unknown
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.outputs import check_kind, output
from taskloom.registry.results.records import GridRecord
from taskloom.runs.api.answer import Answer, TableAnswer, table_answer
from taskloom.runs.api.find import (
    check_split,
    checks_with_looks,
    counted_look,
    find_subject,
    finished_results,
    table_with_looks,
)
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
    from taskloom.runs.analysis.predictions import Subject
    from taskloom.runs.driver.forecast import Cost
    from taskloom.runs.grid.plan import Plan
    from taskloom.runs.show.findings import NamedContrast

#: The first line of the notes beside a csv table, by which a later table knows them.
NOTES = "What to know of this table:"
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
    split: str,
) -> TableAnswer:
    """The comparison table; without a ledger that of published figures."""
    from taskloom.runs.analysis.metrics import metric_named
    from taskloom.runs.analysis.results import Results
    from taskloom.runs.analysis.tables import TableRequest, table_of

    epochs = ledger.epochs if ledger else lambda cell: ()
    results = Results(grid, registry, metric_named(metric) if metric else None, checked_split(split), epochs)
    check_split(results)
    judged = table_of(results, TableRequest(tuple(columns), sort, group_by))
    return table_answer(table_with_looks(ledger, results, judged) if ledger else judged, reported=reported)


def write_table(table: TableAnswer, form: str, out: Path, *, force: bool = False) -> str:
    """Write a table to a file; csv has no room for what to know of it, which goes to a file beside it."""
    texts = {out: table.format(form)}
    if form == "csv" and table.checks:
        texts[out.with_name(f"{out.name}.notes.txt")] = "\n".join([NOTES, *table.checks])
    contents = {path: f"{text}\n".encode() for path, text in texts.items()}
    _write_files(contents, reads=table.reads, force=force)
    return "\n".join(f"{path} ({file_size(len(content))})" for path, content in contents.items())


def claims(ledger: Ledger, grid: GridRecord, split: str = "") -> "Answer[list[Claim]]":
    """The claims of a grid, answered."""
    from taskloom.runs.analysis.claims import claims_of
    from taskloom.runs.analysis.tables import table_of
    from taskloom.runs.show.findings import claims_json, claims_parts

    results = finished_results(ledger, grid, split=checked_split(split))
    answered = claims_of(results, table_of(results), ledger.claims(grid.name))
    checks = checks_with_looks(ledger, results) if answered else ()
    none = f"{grid.name} makes no claims; `taskloom claims --help` shows one"
    return Answer(
        answered,
        lambda: claims_parts(answered) if answered else [none],
        lambda: {"split": results.split or None, "claims": claims_json(answered), "checks": list(checks)},
        lambda: [flat(claim) for claim in claims_json(answered)],
        checks=checks,
    )


def effects(ledger: Ledger, grid: GridRecord, column: str, split: str = "") -> "Answer[Effects]":
    """What each axis of a grid does to a score."""
    from taskloom.runs.analysis.effects import effects_of
    from taskloom.runs.show.findings import effects_json, effects_parts

    results = finished_results(ledger, grid, column, checked_split(split))
    estimated = effects_of(results, column)
    checks = checks_with_looks(ledger, results)

    def records() -> list[dict[str, Any]]:
        shown = effects_json(estimated)
        return [{"kind": kind, **flat(effect)} for kind in ("main", "interactions", "simple") for effect in shown[kind]]

    return Answer(
        estimated,
        lambda: effects_parts(estimated),
        lambda: {**effects_json(estimated), "split": results.split or None, "checks": list(checks)},
        records,
        checks=checks,
    )


def seeds_needed(ledger: Ledger, grid: GridRecord, column: str, queue: bool) -> "Answer[list[NamedContrast]]":
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
    return Answer(
        comparisons,
        lambda: seeds_parts(comparisons),
        lambda: {"comparisons": seeds_json(comparisons), "checks": list(checks)},
        lambda: [flat(comparison) for comparison in seeds_json(comparisons)],
        checks=checks,
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
    ledger: Ledger, source: str, grids: Sequence[GridRecord], limit: int, data: Folder, split: str = ""
) -> "Answer[list[TaskErrors]]":
    """The worst errors of a row or cell, and what it confuses."""
    _check_limit(limit)
    subject = find_subject(ledger, source, grids)

    from taskloom.runs.analysis.errors import errors_of
    from taskloom.runs.show.errors import errors_json, show_errors

    shown: Any = checked_split(split) or "dev"
    found = errors_of(subject, ledger.folder, limit=limit, folder=folder_of(data), split=shown)
    checks = _subject_checks(ledger, subject, shown)

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

    return Answer(
        found,
        lambda: [Aligned(show_errors(subject, found))],
        lambda: {**errors_json(subject, found), "split": shown, "checks": list(checks)},
        records,
        checks=checks,
    )


def _subject_checks(ledger: Ledger, subject: "Subject", split: str) -> tuple[str, ...]:
    """What to know of a row or a cell. A look at its test scores is written down."""
    from dataclasses import replace

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
    ledger: Ledger, a: str, b: str, grids: Sequence[GridRecord], limit: int, data: Folder, split: str = ""
) -> "Answer[Comparison]":
    """Two rows or cells, example by example."""
    _check_limit(limit)
    first, second = (find_subject(ledger, source, grids) for source in (a, b))

    from dataclasses import replace

    from taskloom.runs.analysis import compare as comparing
    from taskloom.runs.show.errors import comparison_json, show_comparison

    shown: Any = checked_split(split) or "dev"
    made = comparing.compare(first, second, ledger.folder, folder=folder_of(data), split=shown, epochs=ledger.epochs)
    made = replace(made, checks=(*made.checks, *_looks(ledger, [first, second], shown)))

    def records() -> list[dict[str, Any]]:
        keys = ("task", "metric", "examples", "a", "b", "delta", "interval", "p", "verdict", "variance", "seeds")
        return [flat({key: task[key] for key in keys}) for task in comparison_json(made, 0)["tasks"]]

    return Answer(
        made,
        lambda: [Aligned(show_comparison(made, limit))],
        lambda: comparison_json(made, limit),
        records,
        checks=made.checks,
    )


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


def report(ledger: Ledger, grid: GridRecord, out: Path, split: str = "", **writing: Any) -> Answer[Path]:
    """The results as one HTML page; ``writing`` are arguments of :func:`output`."""
    from dataclasses import replace

    from taskloom.runs.analysis.overview import overview_of
    from taskloom.runs.show.report.page import render_report

    overview = overview_of(finished_results(ledger, grid, split=checked_split(split)), ledger)
    table = table_with_looks(ledger, overview.results, overview.table)
    return _written(out, render_report(replace(overview, table=table)).encode(), table.checks, **writing)


def plot(ledger: Ledger, grid: GridRecord, out: Path, kind: str, split: str = "", **writing: Any) -> Answer[Path]:
    """One figure of the results; ``writing`` are arguments of :func:`output`."""
    from taskloom.runs.analysis.overview import overview_of
    from taskloom.runs.show.plots import draw

    overview = overview_of(finished_results(ledger, grid, split=checked_split(split)), ledger)
    content = draw(overview, kind, out.suffix)
    written = _written(out, content, table_with_looks(ledger, overview.results, overview.table).checks, **writing)
    if overview.baseline != (stated := grid.spec.get("baseline")) and stated:
        return written.noting(
            [f"{stated!r}, the grid's baseline, has no result; differences are to {overview.baseline!r}."]
        )
    return written


def checked_split(split: str) -> str:
    """The split that is asked for, or ""; an error if there is none of that name."""
    from taskloom.runs.analysis.results import SPLITS

    if split and split not in SPLITS:
        raise TaskloomError(unknown("split", split, SPLITS, where="splits"))
    return split


def _check_limit(limit: int) -> None:
    if not isinstance(limit, int) or limit < 0:
        raise TaskloomError(f"limit should be an integer from 0 on. Found {limit!r}.")


def _write_files(contents: Mapping[Path, bytes], *, force: bool, reads: Iterable[str | Path] = ()) -> None:
    """Write all of these files, or none if one of them may not be written."""
    path = None
    try:
        with ExitStack() as files:
            for path, content in contents.items():
                part = files.enter_context(output(path, force=force, reads=reads))
                part.write_bytes(content)
                if not force:  # before any of them is put in its place
                    check_kind(part, path)
    except OSError as error:
        raise TaskloomError(f"{path} cannot be written: {error.strerror}; choose another file") from error


def _written(path: Path, content: bytes, checks: tuple[str, ...], **writing: Any) -> Answer[Path]:
    _write_files({path: content}, **writing)
    facts = {"path": str(path), "bytes": len(content)}
    return Answer(
        path,
        lambda: [f"{path} ({file_size(len(content))})"],
        lambda: {**facts, "checks": list(checks)},
        lambda: [facts],
        checks=checks,
    )
