"""Why a cell is new, cached, excluded or stale: what its identity is made of today, against what was run."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from taskloom.core import TaskloomError
from taskloom.registry.results.locks import holder
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
#: What an identity is made of, in the order in which differences are listed, and what a difference there is called.
PARTS = {"spec": "spec", "content": "content", "plugins": "plugin", "trainer": "trainer"}
#: What stands in a difference where one side has nothing at all.
ABSENT = "nothing"
_SHORT = 12  # characters of a fingerprint that are shown


@dataclass(frozen=True)
class Difference:
    """One field: ``field`` is spec, data, weights, plugin or trainer, ``path`` the place; a side may be absent.

    >>> print(Difference("plugin", "taskloom-focal", "1.0", "1.1"))
    plugin taskloom-focal: 1.0 → 1.1
    """

    field: str
    path: str
    old: Any
    new: Any
    source: str = ""

    def __str__(self) -> str:
        if self.field in ("data", "weights"):
            sides = " → ".join(f"{str(side)[:_SHORT]}{'…'[: len(str(side)) > _SHORT]}" for side in (self.old, self.new))
            return f"{self.field} of {self.path}: the content of {self.source} has changed ({sides})"
        sides = " → ".join(self._written(side) for side in (self.old, self.new))
        return f"{self.path}: {sides}" if self.field == "trainer" else f"{self.field} {self.path}: {sides}"

    def _written(self, side: Any) -> str:
        return str(side) if side is ABSENT or self.field == "plugin" else json.dumps(side, ensure_ascii=False)

    def as_dict(self) -> dict[str, Any]:
        """As JSON values; what is absent is null, and so is a null."""
        sides = {key: None if value is ABSENT else value for key, value in (("old", self.old), ("new", self.new))}
        return {"field": self.field, "path": self.path, **sides, "text": str(self)}


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    """Where the facts of two cells differ, in the order of ``PARTS``."""
    before, after = _fields(old), _fields(new)
    return [
        _difference(part, path, before.get((part, path), ABSENT), after.get((part, path), ABSENT), new["spec"])
        for part, path in sorted({**before, **after}, key=lambda field: list(PARTS).index(field[0]))
        if before.get((part, path), ABSENT) != after.get((part, path), ABSENT)
    ]


def _fields(facts: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    """What an identity is made of, as part and path → value.

    >>> _fields({"spec": {"stages": [{"epochs": 3}], "tasks": {}}, "trainer": 1})
    {('spec', 'stages.0.epochs'): 3, ('spec', 'tasks'): {}, ('trainer', 'trainer'): 1}
    """
    return {(part, path or part): leaf for part in PARTS for path, leaf in _leaves(facts.get(part), "")}


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | list) and value:
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif path or not isinstance(value, dict | None):
        yield path, value


def _difference(part: str, path: str, old: Any, new: Any, spec: Mapping[str, Any]) -> Difference:
    if part != "content":
        return Difference(PARTS[part], path, old, new)
    home: Any = spec
    for step in path.split("."):
        home = home.get(step, {}) if isinstance(home, Mapping) else {}
    name = home.get("name", "") if isinstance(home, Mapping) else ""
    if path == "encoder":
        return Difference("weights", path, old, new, f"the weights of encoder {name!r}")
    task = path.removeprefix("tasks.").removesuffix(".data")
    return Difference("data", f"task {task!r}", old, new, f"data set {name!r}")


@dataclass(frozen=True)
class Explanation:
    """A cell's ``state`` – new, cached, running, interrupted, failed, oom, stale or excluded – and ``why``.

    ``against`` is the earlier cell that it is compared with, ``differences`` are theirs, field by field.
    """

    state: str
    why: str
    cell: str = ""
    label: str = ""
    seed: int | None = None
    against: str = ""
    differences: Sequence[Difference] = ()
    exclude: Mapping[str, Any] | None = None
    rows: Sequence[tuple["PastRow", list[Difference]]] = ()  # that it is or was, and how their present cells differ

    def as_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "cell": self.cell or None,
            "label": self.label,
            "seed": self.seed,
            "state": self.state,
            "why": self.why,
            "against": self.against or None,
            "differences": [one.as_dict() for one in self.differences],
            "exclude": self.exclude,
        }


def explain_plan(plan: "Plan", ledger: "Ledger | None") -> list[Explanation]:
    """Every row and seed of a grid as it would be run today, then the rows that it excludes."""
    known = {cell.id: cell for cell in ledger.cells()} if ledger is not None else {}
    history = ledger.history_of(plan.grid.name) if ledger is not None else {}
    running = _running(ledger) if ledger is not None else {}
    ran = [record for record in reversed(known.values()) if record.status != "planned"]
    same_spec = {digest(one.facts.get("spec")): one for one in reversed(ran) if one.status == "finished"}

    @cache
    def fields(record: str) -> frozenset[tuple[tuple[str, str], str]]:
        return _comparable(known[record].facts)

    found = []
    for cell in plan.chosen:
        place: dict[str, Any] = {"cell": cell.id, "label": cell.label, "seed": cell.seed}
        if cell.id in running or cell.status != "new":
            found.append(Explanation(*_state(known[cell.id], running), **place))
            continue
        before = [known[id] for id in history.get((cell.label, cell.seed), ()) if id != cell.id and id in known]
        results = [record for record in before if record.status == "finished"]
        # Another grid, or this one under another name, may have a result of the same spec and seed.
        against = results[-1] if results else same_spec.get(digest(cell.facts["spec"]))
        if against is not None:
            state, why = "stale", f"its earlier result is that of cell {against.id}; it is run again because:"
        else:
            wanted = _comparable(cell.facts)
            against = min(ran, key=lambda record: len({key for key, _ in wanted ^ fields(record.id)}), default=None)
            if against is None:
                found.append(Explanation("new", "it was never run, and nothing else was run here", **place))
                continue
            state, why = (
                "new",
                f"it was never run; it differs from the nearest cell that was, {against.id}, in:",
            )
        found.append(
            Explanation(state, why, **place, against=against.id, differences=differences(against.facts, cell.facts))
        )
    for label, number in plan.excluded:
        entry = plan.grid.spec.exclude[number]
        values = ", ".join(f"{path} is {json.dumps(value, ensure_ascii=False)}" for path, value in entry.items())
        why = f"exclude.{number} leaves it out: {values}"
        found.append(Explanation("excluded", why, label=label, exclude=dict(entry)))
    return found


def _comparable(facts: Mapping[str, Any]) -> frozenset[tuple[tuple[str, str], str]]:
    return frozenset((key, json.dumps(value, sort_keys=True)) for key, value in _fields(facts).items())


def _running(ledger: "Ledger") -> dict[str, str]:
    """The cells that a driver has, each with whose it is."""
    pids = {cell.id: holder(ledger.folder, cell.id) for cell in ledger.cells() if cell.status != "finished"}
    return {cell: f"process {pid} runs it now" for cell, pid in pids.items() if pid is not None}


def _state(record: "CellRecord", running: Mapping[str, str]) -> tuple[str, str]:
    """The state of a cell whose identity is still what it was, and why."""
    if record.id in running:
        return "running", running[record.id]
    whys = {
        "finished": f"finished {record.finished}; spec, data and plugins are the same, so it is not run again",
        "planned": "it was planned and never run",
        "running": "its driver is gone; it continues from its last checkpoint",
        "interrupted": "it continues from its last checkpoint",
    }
    why = whys.get(record.status) or format_reason(record.status, record.reason)
    return STATES.get(record.status, record.status), why


def explain_cell(record: "CellRecord", catalogue: "Catalogue", ledger: "Ledger") -> Explanation:
    """A recorded cell: whether its spec, with today's data, plugins and trainer, would be the same cell."""
    rows = [(row, _moved(record, row, ledger)) for row in ledger.rows_of(record.id)]
    try:
        today = _facts_today(record, catalogue)
    except TaskloomError as error:
        why = "; ".join([f"it cannot be planned today: {error}", *_packages_gone(record, catalogue)])
        return Explanation("stale", why, record.id, rows=rows)
    now = digest(today)
    if now != record.id:
        why, found = f"the same specification is now cell {now}, because:", differences(record.facts, today)
        return Explanation("stale", why, record.id, against=now, differences=found, rows=rows)
    state, why = _state(record, _running(ledger))
    if state != "running" and rows and all(row.now not in (None, record.id) for row, _ in rows):
        why = "spec, data and plugins are the same, but no row is this cell any more; its result is kept"
        row, found = rows[-1]
        return Explanation("stale", why, record.id, against=row.now or "", differences=found, rows=rows)
    return Explanation(state, why, record.id, rows=rows)


def _packages_gone(record: "CellRecord", catalogue: "Catalogue") -> Iterator[str]:
    """What the cell ran with that is not here now, is here in another version, or is broken."""
    broken = {one.plugin.distribution for one in catalogue.failed}
    for name, before in record.facts.get("plugins", {}).items():
        try:
            now = version(name)
        except PackageNotFoundError:
            yield f"it ran with {name} {before}, which is not installed now"
            continue
        if now != before:
            yield f"it ran with {name} {before}, and {now} is installed now"
        elif name in broken:
            yield f"it ran with {name} {before}, which cannot be used now (`taskloom plugins` says why)"


def _moved(record: "CellRecord", row: "PastRow", ledger: "Ledger") -> list[Difference]:
    """How the cell that a row is now differs from one that it was."""
    if row.now is None or row.now == record.id:
        return []
    return differences(record.facts, ledger.cell(row.now).facts)


def _facts_today(record: "CellRecord", catalogue: "Catalogue") -> dict[str, Any]:
    """What a recorded cell's identity would be made of today; ``TaskloomError`` if it cannot be planned any more."""
    spec, problems = catalogue.resolve_run(record.spec)
    contents = Contents(catalogue, Overrides())
    problems += contents.problems(spec, {problem.path for problem in problems}) if spec else []
    if problems:
        raise TaskloomError("; ".join(str(problem) for problem in problems))
    return facts(spec, catalogue, contents)
