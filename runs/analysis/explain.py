"""Why a cell is new, cached, excluded or stale: its identity today compared with recorded cells."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from taskloom.core import TaskloomError
from taskloom.registry.results.locks import holder
from taskloom.registry.results.wording import format_reason
from taskloom.runs.analysis.cell_states import SHORT
from taskloom.runs.analysis.tuning import in_words
from taskloom.runs.grid.contents import Contents
from taskloom.runs.grid.differences import Difference, causes_of, differences, fields_of
from taskloom.runs.grid.identity import digest, facts, modern_facts
from taskloom.runs.grid.overrides import Overrides
from taskloom.runs.grid.search import RowSearch, TrialResult

if TYPE_CHECKING:
    from taskloom.registry.installed.catalogue import Catalogue
    from taskloom.registry.results.ledger import Ledger
    from taskloom.registry.results.records import CellRecord, PastRow
    from taskloom.runs.grid.plan import Plan

#: Ledger status → state of an explanation, where the two differ.
STATE_OF_STATUS = {"finished": "cached", "planned": "new", "running": "interrupted"}


@dataclass(frozen=True)
class Explanation:
    """A cell's ``state`` – new, cached, running, interrupted, failed, oom, stale or excluded – and ``why``.

    ``against`` is the cell that it is compared with, ``differences`` lists the fields in which the two differ.
    ``rows`` is every grid row this cell has occupied, each with the differences of its present cell.
    """

    state: str
    why: str
    cell: str | None = None
    label: str = ""
    seed: int | None = None
    against: str | None = None
    differences: Sequence[Difference] = ()
    exclude: Mapping[str, Any] | None = None
    rows: Sequence[tuple["PastRow", list[Difference]]] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values, without ``rows``."""
        return {key: value for key, value in vars(self).items() if key != "rows"}


def explain_plan(plan: "Plan", ledger: "Ledger | None", catalogue: "Catalogue") -> list[Explanation]:
    """Explain every row and seed of a plan, then the rows that the grid excludes."""
    waiting = [
        Explanation(cell.status, "its settings are chosen once its trials have ended", label=cell.label, seed=cell.seed)
        for cell in plan.waiting
    ]
    trials = [_trial(result) for search in plan.searches for result in _best_first(search)]
    known = {cell.id: cell for cell in ledger.cells()} if ledger is not None else {}
    history = ledger.history_of(plan.grid.name) if ledger is not None else {}
    started = [record for record in reversed(known.values()) if record.status != "planned"]
    modern = {record.id: modern_facts(record.facts, catalogue) for record in started if record.facts}
    same_spec = {
        digest(modern[record.id].get("spec")): record
        for record in reversed(started)
        if record.status == "finished" and record.id in modern
    }
    fields = {record.id: _comparable(modern.get(record.id, {})) for record in started}
    explanations = [*trials, *waiting]
    for cell in plan.chosen:
        cell_key: dict[str, Any] = {"cell": cell.id, "label": cell.label, "seed": cell.seed}
        if ledger is not None and cell.id in known:
            state, why = _state(known[cell.id], ledger)
            if state == "running" or cell.status != "new":
                explanations.append(Explanation(state, why, **cell_key))
                continue
        before = [known[id] for id in history.get((cell.label, cell.seed), ()) if id != cell.id and id in known]
        results = [record for record in before if record.status == "finished"]
        # Another grid, or this one under another name, may have a result of the same spec and seed.
        if against := results[-1] if results else same_spec.get(digest(cell.facts["spec"])):
            causes = "; ".join(causes_of(against, cell.facts, catalogue)) or "it was made by another version"
            state, why = "stale", f"its earlier result is that of cell {against.id[:SHORT]}; it is run again: {causes}"
        elif started:
            planned = _comparable(cell.facts)
            against = min(started, key=lambda record: len({key for key, _ in planned ^ fields[record.id]}))
            state = "new"
            why = f"it was never run; it differs from the nearest cell that was, {against.id[:SHORT]}, in:"
        else:
            explanations.append(Explanation("new", "it was never run, and nothing else was run here", **cell_key))
            continue
        changes = differences(modern.get(against.id, {}), cell.facts)
        explanations.append(Explanation(state, why, **cell_key, against=against.id, differences=changes))
    for label, number in plan.excluded:
        entry = plan.grid.spec.exclude[number]
        why = f"exclude.{number} leaves it out: {json.dumps(entry, ensure_ascii=False)}"
        explanations.append(Explanation("excluded", why, label=label, exclude=dict(entry)))
    return explanations


def _best_first(search: RowSearch) -> list[TrialResult]:
    """The trials of a search, the best first, and those without a score last."""
    return sorted(search.results, key=lambda result: math.inf if result.score is None else -result.score)


def _trial(result: TrialResult) -> Explanation:
    """A trial of a row: how far it is, and with which settings and score."""
    score = "" if result.score is None else f", {result.score:.3f} on the held-out rows"
    why = f"trial {result.trial.number}: {in_words(result.trial.settings)}{score}"
    if result.why:
        why += f"; {format_reason(result.state, result.why)}"
    return Explanation(f"trial {result.state}", why, result.cell, result.trial.row, result.trial.seed)


def _comparable(facts: Mapping[str, Any]) -> frozenset[tuple[tuple[str, str], str]]:
    return frozenset((key, json.dumps(value, sort_keys=True)) for key, value in fields_of(facts).items())


def _state(record: "CellRecord", ledger: "Ledger") -> tuple[str, str]:
    """The state of a cell whose identity is unchanged, and why."""
    driver = None if record.status == "finished" else holder(ledger.folder, record.id)
    if driver is not None:
        return "running", f"process {driver} runs it now"
    came = f" elsewhere and imported from {record.imported}" if record.imported else ""
    whys = {
        "finished": f"finished {record.finished}{came}; spec, data and code are the same, so it is not run again",
        "planned": "it was planned and never run",
        "running": "its driver is gone; it continues from its last checkpoint",
        "interrupted": "it continues from its last checkpoint",
    }
    why = whys.get(record.status) or format_reason(record.status, record.reason)
    return STATE_OF_STATUS.get(record.status, record.status), why


def _between(old: "CellRecord", new: "CellRecord", catalogue: "Catalogue") -> list[Difference]:
    return differences(*(modern_facts(record.facts, catalogue) for record in (old, new)))


def explain_cell(record: "CellRecord", catalogue: "Catalogue", ledger: "Ledger") -> Explanation:
    """Explain a recorded cell: whether its spec gives the same cell with today's data, plugins and trainer."""
    rows = [
        (row, [] if row.now in (None, record.id) else _between(record, ledger.cell(row.now), catalogue))
        for row in ledger.rows_of(record.id)
    ]
    try:
        spec, problems = catalogue.resolve_run(record.spec)
        contents = Contents(catalogue, Overrides())
        problems += contents.problems(spec, {problem.path for problem in problems}) if spec else []
        if problems:
            raise TaskloomError("; ".join(map(str, problems)))
        today = facts(spec, catalogue, contents)
    except TaskloomError as error:
        return Explanation("stale", f"it cannot be planned today: {error}", record.id, rows=rows)
    now = digest(today)
    recorded = modern_facts(record.facts, catalogue)
    if now != (record.identity or digest(recorded)):
        causes = "; ".join(causes_of(record, today, catalogue))
        why, changes = f"the same specification is now cell {now[:SHORT]}: {causes}", differences(recorded, today)
        return Explanation("stale", why, record.id, against=now, differences=changes, rows=rows)
    state, why = _state(record, ledger)
    if state != "running" and rows and all(row.now not in (None, record.id) for row, _ in rows):
        why = "spec, data and code are the same, but no row is this cell any more; its result is kept"
        row, changes = rows[-1]
        return Explanation("stale", why, record.id, against=row.now, differences=changes, rows=rows)
    return Explanation(state, why, record.id, rows=rows)
