"""Why a cell is new, cached, excluded or stale: what its identity is made of today, against what was run."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from taskloom.core import TaskloomError
from taskloom.registry.results.locks import holder
from taskloom.runs.analysis.cell_states import SHORT
from taskloom.runs.driver.wording import format_reason
from taskloom.runs.grid.contents import Contents
from taskloom.runs.grid.identity import digest, facts
from taskloom.runs.grid.overrides import Overrides

if TYPE_CHECKING:
    from taskloom.registry.installed.catalogue import Catalogue
    from taskloom.registry.results.ledger import Ledger
    from taskloom.registry.results.records import CellRecord, PastRow
    from taskloom.runs.grid.plan import Plan

#: Statuses of the ledger → states of an explanation, where they differ.
STATES = {"finished": "cached", "planned": "new", "running": "interrupted"}
#: What an identity is made of, in the order in which differences are listed.
FIELDS = ("spec", "weights", "data", "plugin", "trainer")
#: What a difference shows where one side has nothing at all.
ABSENT = "nothing"
#: One field that differs: ``field`` (of FIELDS) and ``path``, ``old`` and ``new`` (null where absent), and a ``text``.
Difference = dict[str, Any]


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    """Where the facts of two cells differ: first the spec, then content, plugins and trainer.

    >>> differences({"plugins": {"taskloom-focal": "1.0"}}, {"plugins": {"taskloom-focal": "1.1"}})[0]["text"]
    'plugin taskloom-focal: 1.0 → 1.1'
    """
    before, after = _fields(old), _fields(new)
    found = []
    for field, path in sorted({**before, **after}, key=lambda place: FIELDS.index(place[0])):
        sides = [fields.get((field, path), ABSENT) for fields in (before, after)]
        if sides[0] != sides[1]:
            content = field in ("data", "weights")
            place = f"content of {path}" if content else path if field == "trainer" else f"{field} {path}"
            text = f"{place}: {' → '.join(_format(field, side) for side in sides)}"
            was, now = (None if side is ABSENT else side for side in sides)
            found.append({"field": field, "path": path, "old": was, "new": now, "text": text})
    return found


def _format(field: str, side: Any) -> str:
    if field in ("data", "weights"):
        return str(side)[:SHORT]
    return str(side) if side is ABSENT or field == "plugin" else json.dumps(side, ensure_ascii=False)


def _fields(facts: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    """What an identity is made of, as field and path → value.

    >>> _fields({"spec": {"stages": [{"epochs": 3}], "tasks": {}}, "trainer": 1})
    {('spec', 'stages.0.epochs'): 3, ('spec', 'tasks'): {}, ('trainer', 'trainer'): 1}
    """
    content = facts.get("content", {})
    weights = {path: fingerprint for path, fingerprint in content.items() if path == "encoder"}
    data = {path: fingerprint for path, fingerprint in content.items() if path != "encoder"}
    parts = (facts.get("spec"), weights, data, facts.get("plugins"), facts.get("trainer"))
    return {
        (field, path or field): leaf
        for field, part in zip(FIELDS, parts, strict=True)
        for path, leaf in _leaves(part, "")
    }


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | list) and value:
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif path or not isinstance(value, dict | None):
        yield path, value


@dataclass(frozen=True)
class Explanation:
    """A cell's ``state`` – new, cached, running, interrupted, failed, oom, stale or excluded – and ``why``.

    ``against`` is the earlier cell that it is compared with, ``differences`` are theirs, field by field.
    """

    state: str
    why: str
    cell: str | None = None
    label: str = ""
    seed: int | None = None
    against: str | None = None
    differences: Sequence[Difference] = ()
    exclude: Mapping[str, Any] | None = None
    rows: Sequence[tuple["PastRow", list[Difference]]] = ()  # that it is or was, and how their present cells differ

    def as_dict(self) -> dict[str, Any]:
        """As JSON values, without ``rows``."""
        return {key: value for key, value in vars(self).items() if key != "rows"}


def explain_plan(plan: "Plan", ledger: "Ledger | None") -> list[Explanation]:
    """Every row and seed of a grid as it would be run today, then the rows that it excludes."""
    known = {cell.id: cell for cell in ledger.cells()} if ledger is not None else {}
    history = ledger.history_of(plan.grid.name) if ledger is not None else {}
    ran = [record for record in reversed(known.values()) if record.status != "planned"]
    same_spec = {digest(one.facts.get("spec")): one for one in reversed(ran) if one.status == "finished"}
    fields = {record.id: _comparable(record.facts) for record in ran}
    found = []
    for cell in plan.chosen:
        place: dict[str, Any] = {"cell": cell.id, "label": cell.label, "seed": cell.seed}
        if ledger is not None and cell.id in known:
            state, why = _state(known[cell.id], ledger)
            if state == "running" or cell.status != "new":
                found.append(Explanation(state, why, **place))
                continue
        before = [known[id] for id in history.get((cell.label, cell.seed), ()) if id != cell.id and id in known]
        results = [record for record in before if record.status == "finished"]
        # Another grid, or this one under another name, may have a result of the same spec and seed.
        if against := results[-1] if results else same_spec.get(digest(cell.facts["spec"])):
            state, why = "stale", f"its earlier result is that of cell {against.id[:SHORT]}; it is run again because:"
        elif ran:
            wanted = _comparable(cell.facts)
            against = min(ran, key=lambda record: len({key for key, _ in wanted ^ fields[record.id]}))
            state = "new"
            why = f"it was never run; it differs from the nearest cell that was, {against.id[:SHORT]}, in:"
        else:
            found.append(Explanation("new", "it was never run, and nothing else was run here", **place))
            continue
        changes = differences(against.facts, cell.facts)
        found.append(Explanation(state, why, **place, against=against.id, differences=changes))
    for label, number in plan.excluded:
        entry = plan.grid.spec.exclude[number]
        why = f"exclude.{number} leaves it out: {json.dumps(entry, ensure_ascii=False)}"
        found.append(Explanation("excluded", why, label=label, exclude=dict(entry)))
    return found


def _comparable(facts: Mapping[str, Any]) -> frozenset[tuple[tuple[str, str], str]]:
    return frozenset((key, json.dumps(value, sort_keys=True)) for key, value in _fields(facts).items())


def _state(record: "CellRecord", ledger: "Ledger") -> tuple[str, str]:
    """The state of a cell whose identity is still what it was, and why."""
    driver = None if record.status == "finished" else holder(ledger.folder, record.id)
    if driver is not None:
        return "running", f"process {driver} runs it now"
    came = f" elsewhere and imported from {record.imported}" if record.imported else ""
    whys = {
        "finished": f"finished {record.finished}{came}; spec, data and plugins are the same, so it is not run again",
        "planned": "it was planned and never run",
        "running": "its driver is gone; it continues from its last checkpoint",
        "interrupted": "it continues from its last checkpoint",
    }
    why = whys.get(record.status) or format_reason(record.status, record.reason)
    return STATES.get(record.status, record.status), why


def explain_cell(record: "CellRecord", catalogue: "Catalogue", ledger: "Ledger") -> Explanation:
    """A recorded cell: whether its spec, with today's data, plugins and trainer, would be the same cell."""
    rows = [
        (row, [] if row.now in (None, record.id) else differences(record.facts, ledger.cell(row.now).facts))
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
    if now != record.id:
        why, found = f"the same specification is now cell {now[:SHORT]}, because:", differences(record.facts, today)
        return Explanation("stale", why, record.id, against=now, differences=found, rows=rows)
    state, why = _state(record, ledger)
    if state != "running" and rows and all(row.now not in (None, record.id) for row, _ in rows):
        why = "spec, data and plugins are the same, but no row is this cell any more; its result is kept"
        row, found = rows[-1]
        return Explanation("stale", why, record.id, against=row.now, differences=found, rows=rows)
    return Explanation(state, why, record.id, rows=rows)
