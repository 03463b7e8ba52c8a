"""Grid → plan: which cells there are, what each is exactly, and what is done already."""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from taskloom.core import Problem, RequestError, unknown
from taskloom.core.errors import count
from taskloom.registry.installed.resolution import split_metrics
from taskloom.registry.results.records import ADDED_SEEDS, CHANGES, METRICS, SOURCE, CellRecord, Change, GridRecord
from taskloom.registry.results.scores import StoredScores, find_scores
from taskloom.runs.grid.changes import complete, lay
from taskloom.runs.grid.contents import Contents, Size
from taskloom.runs.grid.differences import causes_of, code_versions
from taskloom.runs.grid.expansion import LARGE, Expansion, Variant, expand, further_metrics, score_columns
from taskloom.runs.grid.grid import GridFile
from taskloom.runs.grid.identity import digest, facts, locations, modern_facts, stage_keys
from taskloom.runs.grid.overrides import Overrides, add_seeds, named, new_seeds, override
from taskloom.runs.grid.paths import matches
from taskloom.runs.grid.places import Places

if TYPE_CHECKING:
    from taskloom.registry.installed.catalogue import Catalogue
    from taskloom.registry.results.ledger import Ledger


@dataclass(frozen=True)
class PlannedCell:
    """One cell: a variant with a seed. ``id`` is its identity, ``spec`` the fully resolved run.

    ``facts`` are what its ``identity`` is made of, which is also its id unless an older version has made the cell. A
    cell that is not ``chosen`` is no part of this run, only of the table. ``locations`` are the parts of its spec that
    say where files are.
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
    identity: str = ""
    locations: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """What a grid asks for, checked and complete; ``notes`` are for the log.

    ``excluded`` are the labels of rows that are left out, each with the place of the entry of ``exclude`` that does it;
    ``sizes`` those of the data that the chosen cells read.
    """

    grid: GridFile
    cells: tuple[PlannedCell, ...]
    notes: tuple[str, ...]
    excluded: tuple[tuple[str, int], ...] = ()
    sizes: tuple[Size, ...] = ()

    @property
    def chosen(self) -> tuple[PlannedCell, ...]:
        """The cells that this run is about."""
        return tuple(cell for cell in self.cells if cell.chosen)


def make_plan(
    grid: GridFile,
    catalogue: "Catalogue",
    ledger: "Ledger | None",
    *,
    allow_large: bool = False,
    overrides: Overrides | None = None,
) -> Plan:
    """Expand and check a grid; every problem is found here, before the first step of training.

    ``ledger`` knows which cells are finished; without one all are new. ``overrides`` are laid over rows before these
    are resolved. What the grid says of a row is checked whether the row is chosen or not; its data and weights only if
    it is. Rows that are not chosen and that could not be run today are in the plan as they were last run.
    """
    overrides, written = overrides or Overrides(), grid.raw
    grid, before = _recorded(named(grid, overrides), overrides, ledger)
    rows = expand(grid, allow_large=allow_large)
    problems = rows.problems
    if not any(variant.spec for variant in rows.variants):  # no base to speak of
        raise RequestError(str(grid.path), problems)
    # What is left out is a matter of the grid as it is written, not of what is laid over it.
    excluded = _excluded(rows, catalogue)
    kept = [variant for variant in rows.variants if variant.explicit or variant.label not in excluded]
    places = Places(catalogue, grid.folder)
    places.settle(variant.spec for variant in kept)
    rows = override(replace(rows, variants=kept), overrides, places, before)
    places.settle((variant.spec for variant in rows.variants), typed=True)
    grid, contents = rows.grid, Contents(catalogue, overrides, places)
    problems += _column_problems(rows)
    variants = [_resolved(variant, catalogue, contents) for variant in rows.variants]
    checked = [variant for variant in variants if variant.chosen or not variant.problems]
    if before is None or before.written != written:  # else it was valid: what is missing now was installed then
        checked += _wrong_as_written(variants, kept, overrides.change, catalogue)
    problems += _row_problems(checked)
    if problems:
        raise RequestError(str(grid.path), problems)
    states = ledger.states() if ledger is not None else {}
    known = known_identities(ledger, catalogue) if ledger is not None else {}
    shown = {place.label for place in before.cells} if before is not None else set()

    def cells_of(grid: GridFile) -> list[PlannedCell]:
        found: list[PlannedCell] = []
        for row in variants:
            cells = [
                *(_last_run(row, before) if row.problems else _cells(row, grid, catalogue, contents, states, known))
            ]
            # What this run is not about has a place if it had one, or was begun; a changed row only if it was begun.
            optional = row.problems or row.beside or (rows.is_changed and row.label not in shown)
            found += cells if row.chosen or not optional or any(cell.status != "new" for cell in cells) else ()
        return found

    grid, note = _with_seeds(grid, overrides, before, cells_of)
    if len(variants) * len(grid.spec.seeds) > LARGE and not allow_large:
        text = f"the grid has {len(variants) * len(grid.spec.seeds):,} cells with them, more than {LARGE:,}"
        raise RequestError("--seeds", [Problem("", f"{text}; pass --yes if that is meant")])
    cells = cells_of(grid)
    grid = _with_changes(grid, rows.changes, {cell.label for cell in cells})
    grid = with_metrics(grid, (row.spec for row in variants if not row.problems))
    if further := list(GridRecord("", grid.raw, "", "", ()).further):
        note += [f"computed from stored predictions, without new cells: {', '.join(further)}"]
    added = grid.raw.get(ADDED_SEEDS)
    note += [f"with seeds that were added to the grid's own: {', '.join(map(str, added))}"] if added else []
    looked = places.notes(variant.spec for variant in variants if variant.chosen)
    rows_chosen = {cell.label: cell.spec for cell in cells if cell.chosen}
    sizes = tuple(dict.fromkeys(size for spec in rows_chosen.values() for size in contents.sizes(spec)))
    notes = (
        *rows.notes,
        *looked,
        *contents.notes,
        *_unlabelled(sizes),
        *note,
        *_left_out(grid, cells, before, catalogue),
    )
    return Plan(grid, tuple(cells), notes, tuple(excluded.items()), sizes)


def _recorded(grid: GridFile, overrides: Overrides, ledger: "Ledger | None") -> tuple[GridFile, GridRecord | None]:
    """The grid under its name in the registry, and how it was last run there."""
    name = grid.name if ledger is None else ledger.name_for(grid.name, grid.source, grid.raw)
    if overrides.name is not None and name != grid.name:
        raise RequestError("--name", [Problem("", f"another grid is called {grid.name!r} here; choose another name")])
    grid = replace(grid, name=name, raw={**grid.raw, **({SOURCE: grid.source} if grid.source else {})})
    return grid, ledger.grid(name) if ledger is not None and name in ledger.grid_names() else None


def _with_changes(grid: GridFile, changes: Iterable[Change], labels: Collection[str]) -> GridFile:
    """The grid, whose record states how those of the changed rows were made that have a place."""
    made = []
    for change in changes:
        if rows := [row for row in change.rows if change.called(row) in labels]:
            made.append({**vars(change), "settings": dict(change.settings), "rows": rows})
    return replace(grid, raw={**grid.raw, CHANGES: made}) if made else grid


def with_metrics(grid: GridFile, runs: Iterable[Mapping[str, Any]]) -> GridFile:
    """The grid, whose record states the metrics of its tasks after the first."""
    found = {task: [*each.values()] for task, each in further_metrics(runs).items() if each}
    return replace(grid, raw={**grid.raw, METRICS: found}) if found else grid


def _last_run(row: Variant, before: GridRecord | None) -> Iterator[PlannedCell]:
    """The cells that a row had when the grid was last run."""
    for place in before.cells if before is not None else ():
        if place.label == row.label:
            cell = place.cell
            status = "new" if cell.status == "planned" else cell.status
            reported = row.reported
            identity = cell.identity or ""  # of an older version's cell it is not known before the row can be planned
            yield PlannedCell(
                cell.id, row.label, place.seed, status, cell.spec, {}, (), reported, False, cell.facts, identity
            )


def _resolved(variant: Variant, catalogue: "Catalogue", contents: Contents) -> Variant:
    """The row with its complete specification, and everything that is wrong with it."""
    spec, found = catalogue.resolve_run(variant.spec)
    problems = [*variant.problems, *found]
    problems += contents.problems(spec, {problem.path for problem in problems})
    return replace(variant, spec=spec, problems=tuple(dict.fromkeys(problems)))


def _wrong_as_written(
    variants: Iterable[Variant], kept: Iterable[Variant], change: Change, catalogue: "Catalogue"
) -> Iterator[Variant]:
    """The rows that are not chosen and whose own specification is wrong, with those problems alone.

    ``kept`` are the rows as the grid has them. What the overrides bring about, or would repair, is no fault of the
    grid's, and neither are data or weights that are not here.
    """
    rows = {row.label: row for row in kept}
    for variant in variants:
        if variant.chosen or variant.beside or not variant.problems:
            continue
        row = rows[variant.label]
        completed = complete(row.spec)
        specs = [row.spec, *lay(change, [completed] if completed else [], strict=False)]
        wrong = [{*row.problems, *catalogue.resolve_run(spec)[1]} for spec in specs]
        if own := set(variant.problems).intersection(*wrong):
            yield replace(variant, problems=tuple(problem for problem in variant.problems if problem in own))


def known_identities(ledger: "Ledger", catalogue: "Catalogue") -> dict[str, str]:
    """What a cell is known by today → the cell of the registry, also where an older version has made it."""
    older: dict[str, str] = {}
    for cell in ledger.unidentified():
        recorded = modern_facts(cell.facts, catalogue) if cell.facts else {}
        if recorded and not _decided_otherwise(cell, ledger, catalogue):
            older[digest(recorded)] = cell.id
    return {**older, **ledger.identities()}


def _decided_otherwise(cell: CellRecord, ledger: "Ledger", catalogue: "Catalogue") -> bool:
    """Whether a cell of 0.2 or before has learned two classes by squared error, which it cut at 0 and not at 0.5."""
    from taskloom.core import Head

    tasks = cell.spec.get("tasks", {}) if "plugins" in cell.facts else {}
    heads = {name: catalogue.try_out(Head, task["head"])[0] for name, task in tasks.items() if _by_value(task)}
    concerned = [name for name, head in heads.items() if head is None or head.cut is None]
    stored = find_scores(ledger.folder, cell.id) if concerned else None
    return bool(concerned) and (stored is None or any(_has_two_classes(stored, name) for name in concerned))


def _by_value(task: Mapping[str, Any]) -> bool:
    return '"mse"' in json.dumps(task["loss"])


def _has_two_classes(stored: StoredScores, task: str) -> bool:
    return task in stored.tasks and stored.tasks[task].classes == 2


def _cells(
    row: Variant,
    grid: GridFile,
    catalogue: "Catalogue",
    contents: Contents,
    states: Mapping[str, str],
    known: Mapping[str, str],
) -> Iterator[PlannedCell]:
    """The cells of a row, one for each seed; further metrics are no part of them."""
    run, _ = split_metrics(row.spec)
    made_of = facts(run, catalogue, contents)
    versions, where = {**catalogue.versions(run), **code_versions(run, catalogue)}, locations(run, catalogue)
    for seed in grid.spec.seeds:
        spec = {**run, "seed": seed}
        facts_of_cell = {**made_of, "spec": {**made_of["spec"], "seed": seed}}
        identity = digest(facts_of_cell)
        id = known.get(identity, identity)
        yield PlannedCell(
            id=id,
            label=row.label,
            seed=seed,
            status=states.get(id, "new"),
            spec=spec,
            versions=versions,
            stage_keys=stage_keys(spec, catalogue, contents),
            reported=row.reported,
            chosen=row.chosen,
            facts=facts_of_cell,
            identity=identity,
            locations=where,
        )


def _with_seeds(
    grid: GridFile, overrides: Overrides, before: GridRecord | None, cells_of: Callable[[GridFile], list[PlannedCell]]
) -> tuple[GridFile, list[str]]:
    """The grid with the seeds that were added to it before and those that this run adds, and a note on them.

    These are the ones that are asked for, or as many new ones as are asked for or queued. While some that were added
    before are unfinished, no new ones are: the same command again should go on with them.
    """
    kept = before.added_seeds if before else []
    known, number = add_seeds(grid, kept), before.queued if before else 0
    if isinstance(overrides.seeds, int):
        number = overrides.seeds
        unfinished = {cell.seed for cell in cells_of(known) if cell.chosen and cell.status in ("new", "interrupted")}
        if waiting := sorted(unfinished & set(kept)):
            listed = ", ".join(map(str, waiting))
            return known, [f"--seeds adds none: this run goes on with those added before ({listed})"]
    elif overrides.seeds:
        return add_seeds(grid, [*kept, *overrides.seeds]), []
    return add_seeds(grid, [*kept, *new_seeds(known.spec.seeds, number)]), []


def _unlabelled(sizes: Iterable[Size]) -> Iterator[str]:
    """A line on each task that has no label in some rows of its data."""
    lacking: dict[str, list[str]] = {}
    for size in sizes:
        if size.unlabelled:
            lacking.setdefault(size.task, []).append(f"{size.unlabelled:,} of {size.split}")
    for task, numbers in lacking.items():
        yield f"task {task!r}: rows without its label are left out, {' and '.join(numbers)}"


def _left_out(
    grid: GridFile, cells: list[PlannedCell], before: GridRecord | None, catalogue: "Catalogue"
) -> Iterator[str]:
    """A line on the results of the last run that the table no longer has, where there are any, and why."""
    planned = {cell.id for cell in cells}
    places = before.cells if before is not None else ()
    lost = [place for place in places if place.cell.status == "finished" and place.cell.id not in planned]
    if not lost:
        return
    labels = list(dict.fromkeys(place.label for place in lost))
    listed = ", ".join(map(repr, labels[:3])) + (f" and {count(len(labels) - 3, 'more row')}" if labels[3:] else "")
    now = {(cell.label, cell.seed): cell for cell in cells}
    pairs = [(place.cell, now[place.label, place.seed]) for place in lost if (place.label, place.seed) in now]
    causes = dict.fromkeys(cause for old, new in pairs for cause in causes_of(old, new.facts, catalogue))
    cause = "; ".join(causes) or "the grid has no such rows or seeds now"
    yield (
        f"the table of {grid.name!r} no longer shows {count(len(lost), 'result')} of its last run, of {listed}: "
        f"{cause}. "
        "They are kept: `taskloom cells` lists them, `taskloom explain` says what changed."
    )


def _excluded(rows: Expansion, catalogue: "Catalogue") -> dict[str, int]:
    """Label → place of the first entry of ``exclude`` that leaves a row of the product out.

    An entry may name values as the grid has them, or defaults. What is wrong with an entry is added to the problems.
    """
    entries = rows.grid.spec.exclude
    if not entries:
        return {}
    product = [(one.label, [one.spec, catalogue.resolve_run(one.spec)[0]]) for one in rows.variants if not one.explicit]
    excluded: dict[str, int] = {}

    def fits(entry: Mapping[str, Any], run: dict[str, Any]) -> bool:
        return all(matches(run, path, value) for path, value in entry.items())

    for place, entry in enumerate(entries):
        out = [label for label, specs in product if any(fits(entry, spec) for spec in specs)]
        excluded = {**dict.fromkeys(out, place), **excluded}
        if not out:
            text = "leaves nothing out: no row of the product has all of these values"
            rows.problems.append(Problem(f"exclude.{place}", f"{text}. Found {json.dumps(entry)}."))
    if all(variant.label in excluded and not variant.explicit for variant in rows.variants):
        rows.problems.append(Problem("exclude", "the grid is empty: every cell is excluded"))
    return excluded


def _column_problems(rows: Expansion) -> Iterator[Problem]:
    """Columns and published figures that no row can have."""
    grid = rows.grid.spec
    columns = [*score_columns(rows.variants), "overall", "seconds", "memory"]
    wanted = [("table.columns", column) for column in grid.table.columns or ()]
    wanted += [(f"cells.{place}.reported", key) for place, cell in enumerate(grid.cells) for key in cell.reported]
    for path, column in wanted:
        if column not in columns:
            yield Problem(path, unknown("column", column, columns, where="columns"))


def _row_problems(rows: list[Variant]) -> Iterator[Problem]:
    """The problems of all rows, each once with the rows it concerns."""
    labels: dict[Problem, list[str]] = {}
    for row in rows:
        for problem in row.problems:
            labels.setdefault(problem, []).append(row.label)
    for problem, concerned in labels.items():
        if len(concerned) < len(rows) and not problem.path.startswith("cells."):
            more = f" and {len(concerned) - 3} more" if len(concerned) > 3 else ""
            where = ", ".join(map(repr, concerned[:3])) + more
            problem = replace(problem, message=f"{problem.message} [in {where}]")
        yield problem
