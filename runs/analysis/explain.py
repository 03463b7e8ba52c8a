"""Why a cell is new, cached, excluded or stale: what its identity is made of today, against what was run."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from taskloom.core import TaskloomError
from taskloom.registry.results.locks import holder
from taskloom.runs.analysis.differences import Difference, Nearest, differences
from taskloom.runs.grid.canonical import digest
from taskloom.runs.grid.contents import Contents
from taskloom.runs.grid.identity import facts
from taskloom.runs.grid.overrides import Overrides

if TYPE_CHECKING:
    from taskloom.registry.installed.catalogue import Catalogue
    from taskloom.registry.results.ledger import Ledger
    from taskloom.registry.results.records import CellRecord, PastRow
    from taskloom.runs.grid.plan import Plan, PlannedCell

#: States in the words of a plan → in those of an explanation.
_WORDS = {"finished": "cached", "planned": "new", "running": "interrupted"}


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
    rows: Sequence["PastRow"] = ()

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
    recorded: _Recorded | None = None
    found = []
    for cell in plan.chosen:
        if cell.id in running:
            found.append(Explanation("running", running[cell.id], cell.id, cell.label, cell.seed))
            continue
        if cell.status != "new":
            found.append(_there(cell, known[cell.id]))
            continue
        before = [known[one] for one in history.get((cell.label, cell.seed), ()) if one != cell.id and one in known]
        results = [one for one in before if one.status == "finished"]
        if results:
            found.append(_stale(cell, results[-1]))
            continue
        if recorded is None:
            recorded = _Recorded([one for one in known.values() if one.status != "planned"])
        found.append(recorded.explain(cell))
    return found + [_left_out(plan, label, place) for label, place in plan.excluded]


class _Recorded:
    """Everything that was run here, for rows that their grid knows no result of."""

    def __init__(self, ran: "list[CellRecord]") -> None:
        self._ran = ran
        self._results = {digest(facts_of(one)["spec"]): one for one in ran if one.status == "finished"}

    @cached_property
    def _nearest(self) -> Nearest:
        return Nearest([facts_of(one) for one in self._ran])

    def explain(self, cell: "PlannedCell") -> Explanation:
        """Stale where another grid, or this one under another name, has a result of the same spec and seed."""
        same = self._results.get(digest(cell.facts["spec"]))
        if same is not None:
            return _stale(cell, same)
        place = self._nearest.of(cell.facts)
        return _new(cell, None if place is None else self._ran[place])


def _running(ledger: "Ledger") -> dict[str, str]:
    """The cells that a driver has, each with whose it is."""
    pids = {cell.id: holder(ledger.folder, cell.id) for cell in ledger.cells() if cell.status != "finished"}
    return {cell: f"process {pid} runs it now" for cell, pid in pids.items() if pid is not None}


def _there(cell: "PlannedCell", record: "CellRecord") -> Explanation:
    state = _WORDS.get(cell.status, cell.status)
    whys = {
        "cached": f"finished {record.finished}; spec, data and plugins are the same, so it is not run again",
        "interrupted": "it goes on from its last checkpoint",
        "failed": f"{record.reason}; it is tried again",
        "oom": f"{record.reason or 'it ran out of memory'}; it is tried again",
    }
    return Explanation(state, whys.get(state, ""), cell.id, cell.label, cell.seed)


def _stale(cell: "PlannedCell", record: "CellRecord") -> Explanation:
    why = f"its earlier result is that of cell {record.id}; it is run again because:"
    return Explanation(
        "stale", why, cell.id, cell.label, cell.seed, record.id, differences(facts_of(record), cell.facts)
    )


def _new(cell: "PlannedCell", record: "CellRecord | None") -> Explanation:
    if record is None:
        return Explanation("new", "it was never run, and nothing else was run here", cell.id, cell.label, cell.seed)
    why = f"it was never run; the nearest that was is cell {record.id}, from which it differs in:"
    return Explanation("new", why, cell.id, cell.label, cell.seed, record.id, differences(facts_of(record), cell.facts))


def _left_out(plan: "Plan", label: str, place: int) -> Explanation:
    entry = plan.grid.spec.exclude[place]
    values = ", ".join(f"{path} is {json.dumps(value, ensure_ascii=False)}" for path, value in entry.items())
    return Explanation("excluded", f"exclude.{place} leaves it out: {values}", label=label, exclude=dict(entry))


def explain_cell(record: "CellRecord", catalogue: "Catalogue", ledger: "Ledger") -> Explanation:
    """A recorded cell: whether its spec, with today's data, plugins and trainer, would be the same cell."""
    rows = ledger.rows_of(record.id)
    try:
        today = facts_today(record, catalogue)
    except TaskloomError as error:
        said = [f"it cannot be planned today: {error}", *_packages_gone(record, catalogue)]
        return Explanation("stale", "; ".join(said), record.id, rows=rows)
    now = digest(today)
    if now != record.id:
        why = f"the same specification is now cell {now}, because:"
        return Explanation("stale", why, record.id, "", None, now, differences(facts_of(record), today), rows=rows)
    running = _running(ledger)
    if record.id in running:
        return Explanation("running", running[record.id], record.id, rows=rows)
    if rows and all(row.now not in (None, record.id) for row in rows):
        why = "spec, data and plugins are today what they were, but no row is this cell any more; its result is kept"
        row = rows[-1]
        return Explanation("stale", why, record.id, "", None, row.now or "", moved(record, row, ledger), rows=rows)
    whys = {
        "finished": "spec, data and plugins are today what they were, so it is not run again",
        "planned": "it was planned and never run",
        "running": "its driver is gone; it goes on from its last checkpoint",
        "interrupted": "it goes on from its last checkpoint",
    }
    why = whys.get(record.status, f"{record.reason}; it is tried again")
    return Explanation(_WORDS.get(record.status, record.status), why, record.id, rows=rows)


def _packages_gone(record: "CellRecord", catalogue: "Catalogue") -> list[str]:
    """What the cell ran with that is not here now, is here in another version, or is broken."""
    broken = {one.distribution for one in catalogue.failed}
    gone = []
    for name, before in record.facts.get("plugins", {}).items():
        try:
            now = version(name)
        except PackageNotFoundError:
            gone.append(f"it ran with {name} {before}, which is not installed now")
            continue
        if now != before:
            gone.append(f"it ran with {name} {before}, and {now} is installed now")
        elif name in broken:
            gone.append(f"it ran with {name} {before}, which cannot be used now (`taskloom plugins` says why)")
    return gone


def moved(record: "CellRecord", row: "PastRow", ledger: "Ledger") -> list[Difference]:
    """How the cell that a row is now differs from one that it was."""
    if row.now is None or row.now == record.id:
        return []
    return differences(facts_of(record), facts_of(ledger.cell(row.now)))


def facts_today(record: "CellRecord", catalogue: "Catalogue") -> dict[str, Any]:
    """What a recorded cell's identity would be made of today; ``TaskloomError`` if it cannot be planned any more."""
    spec, problems = catalogue.resolve_run(record.spec)
    contents = Contents(catalogue, Overrides())
    problems += contents.problems(spec, {problem.path for problem in problems}) if spec else []
    if problems:
        raise TaskloomError("; ".join(str(problem) for problem in problems))
    return facts(spec, catalogue, contents)


def facts_of(record: "CellRecord") -> dict[str, Any]:
    """What a recorded cell's identity was made of; older registries kept the specification only."""
    return record.facts or {"spec": record.spec}
