"""Grid → plan: which cells there are, what each is exactly, and what is done already."""

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from taskloom.core import DataError, DataSet, Encoder, Examples, Problem, RequestError, Split, TaskloomError, unknown
from taskloom.runs.build import make, without_places
from taskloom.runs.grid import Grid, Variant, expand
from taskloom.runs.overrides import Overrides, override
from taskloom.runs.paths import PathError, matches

if TYPE_CHECKING:
    from taskloom.registry.catalogue import Catalogue
    from taskloom.registry.ledger import Ledger

#: Part of every identity: raised when the trainer itself would give other results for the same spec.
TRAINER = 1


@dataclass(frozen=True)
class PlannedCell:
    """One cell: a variant with a seed. ``id`` is its identity, ``spec`` the fully resolved run.

    A cell that is not ``chosen`` is no part of this run, only of the table.
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


@dataclass(frozen=True)
class Plan:
    """What a grid asks for, checked and complete; ``notes`` are for the log."""

    grid: Grid
    cells: tuple[PlannedCell, ...]
    notes: tuple[str, ...]

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
    expansion = expand(grid, allow_large=allow_large)
    problems = expansion.problems
    if not any(variant.spec for variant in expansion.variants):  # no base to speak of
        raise RequestError(str(grid.path), problems)
    # What is left out is a matter of the grid as it is written, not of what is laid over it.
    kept = _not_excluded([_Checked(variant, catalogue) for variant in expansion.variants], grid, problems)
    wanted = override(grid, [each.variant for each in kept], overrides, catalogue)
    grid, contents = wanted.grid, _Contents(catalogue, overrides)
    checked = [_Checked(variant, catalogue) for variant in wanted.variants]
    problems += _column_problems(checked, grid)
    for each in checked:
        each.problems += contents.problems(each.spec, {problem.path for problem in each.problems})
    checked = [each for each in checked if each.variant.chosen or not each.problems]
    _raise_problems(grid, problems, checked)
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
                    chosen=each.variant.chosen,
                )
            )
    return Plan(grid, tuple(cells), (*wanted.notes, *contents.notes, *_replaced(grid, cells, ledger)))


def _replaced(grid: Grid, cells: list[PlannedCell], ledger: "Ledger | None") -> Iterator[str]:
    """A word of warning if another grid of the same name was run here."""
    if ledger is not None and grid.name in ledger.grid_names():
        before = {place.cell.id for place in ledger.grid(grid.name).cells}
        if before and before.isdisjoint(cell.id for cell in cells):
            yield (
                f"another grid called {grid.name!r} was run here before and makes way for this one in listings; its "
                'results stay. To keep both, give one of them a "name" of its own.'
            )


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

    Selection and the overall score play no part: a stage hands on its last epoch.
    """
    keys = []
    for count in range(1, len(spec["stages"])):
        stages = spec["stages"][:count]
        names = {name for stage in stages for name in stage["tasks"]}
        tasks = {name: task for name, task in spec["tasks"].items() if name in names}
        prefix = {**spec, "stages": stages, "tasks": tasks, "selection": "last", "overall": "mean"}
        keys.append(identity(prefix, catalogue, contents))
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
        self.spec, problems = catalogue.resolve_run(variant.spec)
        self.problems = [*variant.problems, *problems]


class _Contents:
    """What lies behind the names in a spec – data files and weights – each read and hashed once."""

    def __init__(self, catalogue: "Catalogue", overrides: Overrides) -> None:
        self._catalogue = catalogue
        self._overrides = overrides
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
                found.append(Problem(path, f"{content}{self._advice(kind, component)}"))
        return found

    def _advice(self, kind: str, component: dict[str, Any]) -> str:
        """Which option of the command line may help, unless it was given already."""
        if kind == "data" and "dir" in component and self._overrides.data is None:
            return "; --data FOLDER says where data sets are"
        if kind == "encoder" and component.get("weights") and self._overrides.weights is None:
            return "; --weights NAME_OR_FOLDER takes others, such as minilm"
        return ""

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
            except Exception as error:  # a third party's class may raise anything
                entry = self._catalogue.get(kind, component["name"])
                what = f"{kind} {entry.name!r} ({entry.origin}) cannot be used"
                self._known[key] = TaskloomError(f"{what}: {type(error).__name__}: {error}")
        return self._known[key]

    def _read(self, kind: str, component: dict[str, Any]) -> str:
        with redirect_stdout(sys.stderr):  # what a plugin prints is no part of a command's output
            return self._encoder(component) if kind == "encoder" else self._data(component)

    def _encoder(self, component: dict[str, Any]) -> str:
        encoder = make(self._catalogue, Encoder, component)
        encoder.check()
        return encoder.content()

    def _data(self, component: dict[str, Any]) -> str:
        data = make(self._catalogue, DataSet, component)
        content = data.content()
        splits: tuple[Split, Split] = ("train", "dev")
        for split in splits:
            examples = data.load(split)
            check_examples(data, split, examples)
            self.notes += summary_of_skipped(examples.skipped)
        return content


def check_examples(data: DataSet, split: str, examples: Examples) -> None:
    """Refuse a split that training could not use, whoever wrote the data set."""
    where = f"data set {data.name!r}, split {split!r}"
    if not len(examples):
        raise DataError(f"{where}: there are no examples")
    sizes = {len(column) for column in examples.columns} | {len(examples)}
    if len(examples.columns) != data.columns or len(sizes) != 1:
        raise DataError(
            f"{where}: should have {data.columns} column(s) of {len(examples)} texts. "
            f"Found {len(examples.columns)} of {', '.join(str(len(column)) for column in examples.columns)}."
        )
    if data.labels is None:
        return
    if examples.labels is None or len(examples.labels) != len(examples):
        raise DataError(f"{where}: every example should have a label")
    low, high = float(examples.labels.min()), float(examples.labels.max())
    if not (data.labels.low <= low and high <= data.labels.high):
        allowed = f"{data.labels.low:g} to {data.labels.high:g}"
        raise DataError(f"{where}: labels should be {allowed}. Found {low:g} to {high:g}.")


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


def _not_excluded(checked: list[_Checked], grid: Grid, problems: list[Problem]) -> list[_Checked]:
    """The rows that ``exclude`` leaves. An entry may name values as the grid has them, or defaults."""
    kept = checked
    for place, entry in enumerate(grid.spec.exclude):
        out = [each for each in checked if not each.variant.explicit and _matches(entry, each)]
        kept = [each for each in kept if each not in out]
        if not out:
            text = "leaves nothing out: no row of the product has all of these values"
            problems.append(Problem(f"exclude.{place}", f"{text}. Found {json.dumps(entry)}."))
    if not kept:
        problems.append(Problem("exclude", "the grid is empty: every cell is excluded"))
    return kept


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
            yield Problem(path, unknown("column", column, columns, where="columns"))
    twice = [column for column, count in Counter(grid.spec.table.columns or ()).items() if count > 1]
    if twice:
        yield Problem("table.columns", f"each column should stand once. Found {', '.join(twice)} more than once.")


def _raise_problems(grid: Grid, general: list[Problem], checked: list[_Checked]) -> None:
    """Raise all problems of the grid and of all rows at once, each said once with the rows it concerns."""
    rows: dict[Problem, list[str]] = {}
    for each in checked:
        for problem in dict.fromkeys(each.problems):
            rows.setdefault(problem, []).append(each.variant.label)
    if not rows and not general:
        return
    problems = list(general)
    for problem, labels in rows.items():
        where = ""
        if len(labels) < len(checked) and not problem.path.startswith("cells."):
            more = f" and {len(labels) - 3} more" if len(labels) > 3 else ""
            where = f" [in {', '.join(labels[:3])}{more}]"
        problems.append(Problem(problem.path, problem.message + where))
    raise RequestError(str(grid.path), problems)
