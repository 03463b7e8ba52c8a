"""Plan a grid: its cells, their complete specifications and identities, and which are finished."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from taskloom.core import Problem, RequestError, unknown
from taskloom.core.errors import RegistryError, count
from taskloom.registry.installed.resolution import split_metrics
from taskloom.registry.results.records import ADDED_SEEDS, METRICS, CellRecord, GridRecord
from taskloom.registry.results.scores import StoredScores, find_scores
from taskloom.runs.grid.contents import Contents, Size
from taskloom.runs.grid.differences import causes_of, code_versions
from taskloom.runs.grid.expansion import LARGE, Expansion, Variant, expand, further_metrics, score_columns
from taskloom.runs.grid.grid import GridFile
from taskloom.runs.grid.identity import digest, facts, locations, modern_facts, stage_keys
from taskloom.runs.grid.naming import named
from taskloom.runs.grid.overrides import Overrides, add_seeds, change_runs, complete, new_seeds, override
from taskloom.runs.grid.paths import matches
from taskloom.runs.grid.places import PathResolver

if TYPE_CHECKING:
    from taskloom.registry.installed.catalogue import Catalogue
    from taskloom.registry.results.ledger import Ledger


@dataclass(frozen=True)
class PlannedCell:
    """One cell: a variant with a seed. ``id`` is its identity, ``spec`` the fully resolved run.

    ``facts`` are what its ``identity`` is computed from, which is also its id unless an older version recorded it. A
    cell that is not ``chosen`` is in the table but not part of this run. ``locations`` are the options of its spec
    that say where files are.
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
    """The cells of a grid, checked and complete; ``notes`` are for the log.

    ``excluded`` are the labels of excluded rows, each with the index of the responsible entry of ``exclude``; ``sizes``
    those of the data that the chosen cells read. ``basis`` is the state of the ledger that the plan was made from.
    """

    grid: GridFile
    cells: tuple[PlannedCell, ...]
    notes: tuple[str, ...]
    excluded: tuple[tuple[str, int], ...] = ()
    sizes: tuple[Size, ...] = ()
    basis: str = ""

    @property
    def chosen(self) -> tuple[PlannedCell, ...]:
        """The cells of this run."""
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

    ``ledger`` knows which cells are finished; without one all are new. ``overrides`` are applied to rows before these
    are resolved. The settings of a row are checked whether it is chosen or not; its data and weights only if it is.
    Rows that are not chosen and could not be run today are in the plan as they were last run.
    """
    request, written = (overrides or Overrides()).located(catalogue), grid.raw
    grid, overrides, before = named(grid, request, ledger)
    rows = expand(grid, allow_large=allow_large)
    problems = rows.problems
    if not any(variant.spec for variant in rows.variants):  # there is no valid base
        raise RequestError(str(grid.path), problems)
    # Rows are excluded by the grid as written, before overrides.
    excluded = _excluded(rows, catalogue)
    kept = [variant for variant in rows.variants if variant.explicit or variant.label not in excluded]
    resolver = PathResolver(catalogue, grid.folder)
    resolver.settle(variant.spec for variant in kept)
    rows = override(replace(rows, variants=kept), overrides, resolver)
    resolver.settle((variant.spec for variant in rows.variants), typed=True)
    grid, contents = rows.grid, Contents(catalogue, overrides, resolver)
    problems += _column_problems(rows)
    variants = [_resolved(variant, catalogue, contents) for variant in rows.variants]
    checked = [variant for variant in variants if variant.chosen or not variant.problems]
    if before is None or before.written != written:  # else it was valid: missing plugins were installed then
        checked += _wrong_as_written(variants, kept, overrides, catalogue)
    problems += _row_problems(checked)
    if problems:
        raise RequestError(str(grid.path), problems)
    states = ledger.states() if ledger is not None else {}
    known = known_identities(ledger, catalogue) if ledger is not None else {}
    shown = {cell.label for cell in before.cells} if before is not None else set()

    def cells_of(grid: GridFile) -> list[PlannedCell]:
        planned: list[PlannedCell] = []
        for row in variants:
            cells = [
                *(_last_run(row, before) if row.problems else _cells(row, grid, catalogue, contents, states, known))
            ]
            # Rows outside this run stay in the table if they were in it: another run may be about to start them.
            optional = row.problems and row.label not in shown
            planned += cells if row.chosen or not optional or any(cell.status != "new" for cell in cells) else ()
        return planned

    grid, run_notes = _with_seeds(grid, overrides, before, cells_of)
    if len(variants) * len(grid.spec.seeds) > LARGE and not allow_large:
        text = f"the grid has {len(variants) * len(grid.spec.seeds):,} cells with them, more than {LARGE:,}"
        raise RequestError("--seeds", [Problem("", f"{text}; pass --yes if that is meant")])
    cells = cells_of(grid)
    grid = with_metrics(grid, (row.spec for row in variants if not row.problems))
    if further := list(GridRecord("", grid.raw, "", "", ()).further):
        run_notes += [f"computed from stored predictions, without new cells: {', '.join(further)}"]
    if request.changes_runs and request.name is None:
        run_notes += [f"kept in a table of its own, {grid.name!r}"]
    added = grid.raw.get(ADDED_SEEDS)
    run_notes += [f"with seeds that were added to the grid's own: {', '.join(map(str, added))}"] if added else []
    looked = resolver.notes(variant.spec for variant in variants if variant.chosen)
    rows_chosen = {cell.label: cell.spec for cell in cells if cell.chosen}
    sizes = tuple(dict.fromkeys(size for spec in rows_chosen.values() for size in contents.sizes(spec)))
    notes = (
        *rows.notes,
        *looked,
        *contents.notes,
        *_unlabelled(sizes),
        *run_notes,
        *_left_out(grid, cells, before, catalogue),
    )
    return Plan(grid, tuple(cells), notes, tuple(excluded.items()), sizes, before.basis if before else "")


def with_metrics(grid: GridFile, runs: Iterable[Mapping[str, Any]]) -> GridFile:
    """Record in the grid the metrics of its tasks after the first."""
    further = {task: [*metrics.values()] for task, metrics in further_metrics(runs).items() if metrics}
    return replace(grid, raw={**grid.raw, METRICS: further}) if further else grid


def _last_run(row: Variant, before: GridRecord | None) -> Iterator[PlannedCell]:
    """The cells that a row had when the grid was last run."""
    for row_cell in before.cells if before is not None else ():
        if row_cell.label == row.label:
            cell = row_cell.cell
            status = "new" if cell.status == "planned" else cell.status
            reported = row.reported
            identity = cell.identity or ""  # an older version's cell has none before the row can be planned
            yield PlannedCell(
                cell.id, row.label, row_cell.seed, status, cell.spec, {}, (), reported, False, cell.facts, identity
            )


def _resolved(variant: Variant, catalogue: "Catalogue", contents: Contents) -> Variant:
    """The row with its complete specification and all its problems."""
    spec, wrong = catalogue.resolve_run(variant.spec)
    problems = [*variant.problems, *wrong]
    problems += contents.problems(spec, {problem.path for problem in problems})
    return replace(variant, spec=spec, problems=tuple(dict.fromkeys(problems)))


def _wrong_as_written(
    variants: Iterable[Variant], kept: Iterable[Variant], overrides: Overrides, catalogue: "Catalogue"
) -> Iterator[Variant]:
    """The rows that are not chosen and whose own specification is invalid, with only those problems.

    ``kept`` are the rows as the grid has them. Problems that overrides cause, or would repair, are not the grid's, nor
    are missing data or weights.
    """
    rows = {row.label: row for row in kept}
    for variant in variants:
        if variant.chosen or not variant.problems:
            continue
        row = rows[variant.label]
        changed = [spec for spec in [complete(row.spec)] if spec is not None]
        change_runs(changed, overrides, strict=False)
        wrong = [{*row.problems, *catalogue.resolve_run(spec)[1]} for spec in (row.spec, *changed)]
        if own := set(variant.problems).intersection(*wrong):
            yield replace(variant, problems=tuple(problem for problem in variant.problems if problem in own))


def known_identities(ledger: "Ledger", catalogue: "Catalogue") -> dict[str, str]:
    """Identity today → the id of the cell in the registry, also of cells recorded by older versions."""
    older: dict[str, str] = {}
    for cell in ledger.unidentified():
        recorded = modern_facts(cell.facts, catalogue) if cell.facts else {}
        if recorded and not _decided_otherwise(cell, ledger, catalogue):
            older[digest(recorded)] = cell.id
    return {**older, **ledger.identities()}


def _decided_otherwise(cell: CellRecord, ledger: "Ledger", catalogue: "Catalogue") -> bool:
    """Whether a cell of 0.2 or before learned two classes by squared error, with the threshold at 0 instead of 0.5."""
    from taskloom.core import Head, Loss

    tasks = cell.spec.get("tasks", {}) if "plugins" in cell.facts else {}
    concerned = []
    for name, task in tasks.items():
        head, loss = catalogue.try_out(Head, task["head"])[0], catalogue.try_out(Loss, task["loss"])[0]
        if (head is None or head.cut is None) and (loss is None or loss.score_means == "value"):
            concerned.append(name)
    if not concerned:
        return False
    try:
        stored = find_scores(ledger.folder, cell)
    except RegistryError:  # the table reports it
        stored = None
    return stored is None or any(_has_two_classes(stored, name) for name in concerned)


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
    """The cells of a row, one for each seed, without further metrics."""
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
    """Add to the grid the seeds that were added before and those that this run adds, with a note on them.

    These are the requested seeds, or as many new ones as are requested or queued. While earlier additions are
    unfinished no new ones are added: repeating the command should continue those.
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
    """A note on each task whose data have rows without its label."""
    lacking: dict[str, list[str]] = {}
    for size in sizes:
        if size.unlabelled:
            lacking.setdefault(size.task, []).append(f"{size.unlabelled:,} of {size.split}")
    for task, numbers in lacking.items():
        yield f"task {task!r}: rows without its label are left out, {' and '.join(numbers)}"


def _left_out(
    grid: GridFile, cells: list[PlannedCell], before: GridRecord | None, catalogue: "Catalogue"
) -> Iterator[str]:
    """A note on finished results of the last run that the table no longer has, and why."""
    planned = {cell.id for cell in cells}
    last_cells = before.cells if before is not None else ()
    lost = [
        row_cell for row_cell in last_cells if row_cell.cell.status == "finished" and row_cell.cell.id not in planned
    ]
    if not lost:
        return
    labels = list(dict.fromkeys(row_cell.label for row_cell in lost))
    listed = ", ".join(map(repr, labels[:3])) + (f" and {count(len(labels) - 3, 'more row')}" if labels[3:] else "")
    now = {(cell.label, cell.seed): cell for cell in cells}
    pairs = [
        (row_cell.cell, now[row_cell.label, row_cell.seed])
        for row_cell in lost
        if (row_cell.label, row_cell.seed) in now
    ]
    causes = dict.fromkeys(cause for old, new in pairs for cause in causes_of(old, new.facts, catalogue))
    cause = "; ".join(causes) or "the grid has no such rows or seeds now"
    yield (
        f"the table of {grid.name!r} no longer shows {count(len(lost), 'result')} of its last run, of {listed}: "
        f"{cause}. "
        "They are kept: `taskloom cells` lists them, `taskloom explain` says what changed."
    )


def _excluded(rows: Expansion, catalogue: "Catalogue") -> dict[str, int]:
    """Label → index of the first entry of ``exclude`` that matches a row of the product.

    An entry may name values as the grid has them, or defaults. Problems of entries are added to those of the rows.
    """
    entries = rows.grid.spec.exclude
    if not entries:
        return {}
    product = [
        (variant.label, [variant.spec, catalogue.resolve_run(variant.spec)[0]])
        for variant in rows.variants
        if not variant.explicit
    ]
    excluded: dict[str, int] = {}

    def fits(entry: Mapping[str, Any], run: dict[str, Any]) -> bool:
        return all(matches(run, path, value) for path, value in entry.items())

    for index, entry in enumerate(entries):
        out = [label for label, specs in product if any(fits(entry, spec) for spec in specs)]
        excluded = {**dict.fromkeys(out, index), **excluded}
        if not out:
            text = "leaves nothing out: no row of the product has all of these values"
            rows.problems.append(Problem(f"exclude.{index}", f"{text}. Found {json.dumps(entry)}."))
    if all(variant.label in excluded and not variant.explicit for variant in rows.variants):
        rows.problems.append(Problem("exclude", "the grid is empty: every cell is excluded"))
    return excluded


def _column_problems(rows: Expansion) -> Iterator[Problem]:
    """Columns and published figures that no row can have."""
    grid = rows.grid.spec
    columns = [*score_columns(rows.variants), "overall", "seconds", "memory"]
    wanted = [("table.columns", column) for column in grid.table.columns or ()]
    wanted += [(f"cells.{index}.reported", key) for index, cell in enumerate(grid.cells) for key in cell.reported]
    for path, column in wanted:
        if column not in columns:
            yield Problem(path, unknown("column", column, columns, where="columns"))


def _row_problems(rows: list[Variant]) -> Iterator[Problem]:
    """The problems of all rows, each once, with the rows that have it."""
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
