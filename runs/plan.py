"""Grid → plan: which cells there are, what each is exactly, and what is done already."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from taskloom.core import DataSet, Encoder, Problem, RequestError, Split, TaskloomError
from taskloom.runs.build import make, without_places
from taskloom.runs.grid import Grid, Variant, expand

if TYPE_CHECKING:
    from taskloom.registry.catalogue import Catalogue
    from taskloom.registry.ledger import Ledger

#: Part of every identity: raised when the trainer itself would give other results for the same spec.
TRAINER = 1


@dataclass(frozen=True)
class PlannedCell:
    """One cell: a variant with a seed. ``id`` is its identity, ``spec`` the fully resolved run."""

    id: str
    label: str
    seed: int
    status: str
    spec: dict[str, Any]
    versions: dict[str, str]
    stage_keys: tuple[str, ...] = ()
    reported: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """What a grid asks for, checked and complete; ``notes`` are for the log."""

    grid: Grid
    cells: tuple[PlannedCell, ...]
    notes: tuple[str, ...]


def make_plan(grid: Grid, catalogue: "Catalogue", ledger: "Ledger | None", *, allow_large: bool = False) -> Plan:
    """Expand and check a grid; every problem is found here, before the first step of training.

    ``ledger`` tells which cells are finished; without one all are new.
    """
    variants = expand(grid, allow_large=allow_large)
    checked = [_Checked(variant, catalogue) for variant in variants]
    contents = _Contents(catalogue)
    for each in checked:
        each.problems += contents.problems(each.spec, {problem.path for problem in each.problems})
    _raise_problems(grid, checked)
    states = ledger.states() if ledger is not None else {}
    cells = []
    for each in checked:
        versions = catalogue.versions(each.spec)
        for seed in grid.spec.seeds:
            spec = {**each.spec, "seed": seed}
            cell = identity(spec, catalogue, contents)
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
                )
            )
    return Plan(grid, tuple(cells), tuple(contents.notes))


def identity(spec: dict[str, Any], catalogue: "Catalogue", contents: "_Contents") -> str:
    """The hash of everything that decides a run's result: resolved spec, content of data and weights, plugins."""
    bare = {
        **spec,
        "encoder": without_places(catalogue, "encoder", spec["encoder"]),
        "tasks": {
            name: {**task, "data": without_places(catalogue, "data", task["data"])}
            for name, task in spec["tasks"].items()
        },
    }
    facts = {
        "spec": bare,
        "content": contents.of(spec),
        "plugins": catalogue.versions(spec),
        "trainer": TRAINER,
    }
    return digest(facts)


def stage_keys(spec: dict[str, Any], catalogue: "Catalogue", contents: "_Contents") -> tuple[str, ...]:
    """The identity of what each stage but the last hands on: equal for runs that agree in all up to there.

    Selection plays no part: a stage hands on its last epoch.
    """
    keys = []
    for count in range(1, len(spec["stages"])):
        stages = spec["stages"][:count]
        names = {name for stage in stages for name in stage["tasks"]}
        tasks = {name: task for name, task in spec["tasks"].items() if name in names}
        keys.append(identity({**spec, "stages": stages, "tasks": tasks, "selection": "last"}, catalogue, contents))
    return tuple(keys)


def canonical(value: Any) -> str:
    """One text for one value, whatever the order of its keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def digest(value: Any) -> str:
    """A short name for a JSON value: 20 hex digits of its SHA-256."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:20]


class _Checked:
    """A variant with its resolved spec and what is wrong with it."""

    def __init__(self, variant: Variant, catalogue: "Catalogue") -> None:
        self.variant = variant
        self.spec, self.problems = catalogue.resolve_run(variant.spec)


class _Contents:
    """What lies behind the names in a spec – data files and weights – each read and hashed once."""

    def __init__(self, catalogue: "Catalogue") -> None:
        self._catalogue = catalogue
        self._known: dict[str, str | TaskloomError] = {}
        self.notes: list[str] = []

    def problems(self, spec: dict[str, Any], known: set[str]) -> list[Problem]:
        """What is missing or unreadable, beside the components whose options are wrong already."""
        found = []
        for path, kind, component in _sources(spec):
            if any(other == path or other.startswith(f"{path}.") for other in known):
                continue
            content = self._content(kind, component)
            if isinstance(content, TaskloomError):
                found.append(Problem(path, str(content)))
        return found

    def of(self, spec: dict[str, Any]) -> dict[str, str]:
        """Path → fingerprint of everything the run reads."""
        return {path: str(self._content(kind, component)) for path, kind, component in _sources(spec)}

    def _content(self, kind: str, component: dict[str, Any]) -> "str | TaskloomError":
        key = canonical([kind, component])
        if key not in self._known:
            try:
                self._known[key] = self._read(kind, component)
            except TaskloomError as error:
                self._known[key] = error
        return self._known[key]

    def _read(self, kind: str, component: dict[str, Any]) -> str:
        if kind == "encoder":
            encoder = make(self._catalogue, Encoder, component)
            encoder.check()
            return encoder.content()
        data = make(self._catalogue, DataSet, component)
        content = data.content()
        splits: tuple[Split, Split] = ("train", "dev")
        for split in splits:
            examples = data.load(split)
            self.notes += summary_of_skipped(examples.skipped)
        return content


def summary_of_skipped(skipped: Iterable[str], *, most: int = 3) -> list[str]:
    """The log lines for rows that could not be read: the first few in full, the rest counted."""
    rows = list(skipped)
    lines = [f"skipped: {row}" for row in rows[:most]]
    return lines + ([f"skipped: {len(rows) - most} more rows of the same file"] if len(rows) > most else [])


def _sources(spec: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    if not spec:
        return []
    sources = [("encoder", "encoder", spec["encoder"])]
    return sources + [(f"tasks.{name}.data", "data", task["data"]) for name, task in spec["tasks"].items()]


def _raise_problems(grid: Grid, checked: list[_Checked]) -> None:
    """Raise all problems of all variants at once, each said once with the rows it concerns."""
    rows: dict[Problem, list[str]] = {}
    for each in checked:
        for problem in dict.fromkeys(each.problems):
            rows.setdefault(problem, []).append(each.variant.label)
    if not rows:
        return
    problems = []
    for problem, labels in rows.items():
        where = ""
        if len(labels) < len(checked):
            more = f" and {len(labels) - 3} more" if len(labels) > 3 else ""
            where = f" [in {', '.join(labels[:3])}{more}]"
        problems.append(Problem(problem.path, problem.message + where))
    raise RequestError(str(grid.path), problems)
