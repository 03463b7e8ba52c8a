"""Plan a grid: its cells, their complete specifications and identities, and which are finished."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from taskloom.core import Problem, RequestError, unknown
from taskloom.core.errors import RegistryError, count
from taskloom.registry.installed.resolution import split_metrics
from taskloom.registry.results.records import ADDED_SEEDS, DATA, METRICS, TUNED, CellRecord, GridRecord
from taskloom.registry.results.scores import find_scores
from taskloom.runs.grid.contents import Contents
from taskloom.runs.grid.data_facts import SplitFacts
from taskloom.runs.grid.differences import causes_of, code_versions
from taskloom.runs.grid.expansion import LARGE, Expansion, Variant, expand, further_metrics, score_columns
from taskloom.runs.grid.grid import GridFile
from taskloom.runs.grid.identity import digest, facts, locations, modern_facts, stage_keys
from taskloom.runs.grid.naming import table_for, trials_table
from taskloom.runs.grid.overrides import Overrides, add_seeds, change_runs, complete, new_seeds, override
from taskloom.runs.grid.paths import matches
from taskloom.runs.grid.planned import WAITING, PlannedCell
from taskloom.runs.grid.run_files import FileLocator
from taskloom.runs.grid.search import RowSearch, search_problems
from taskloom.runs.grid.tuned import TunedRows, trial_problems, tuned_rows

if TYPE_CHECKING:
    from taskloom.registry.installed.catalogue import Catalogue
    from taskloom.registry.results.ledger import Ledger


@dataclass(frozen=True)
class Plan:
    """The cells of a grid, checked and complete; ``notes`` are for the log.

    ``excluded`` are the labels of excluded rows, each with the index of the responsible entry of ``exclude``; ``data``
    what the data hold that the chosen cells read, on which ``remarks``, also among the notes, says what a reader should
    know. ``basis`` is the state of the ledger that the plan was made from.

    A grid with a search also has a plan of its ``trials``, and the state of its ``searches``, one for each row or seed.
    ``waiting`` are the cells of rows that have no settings yet, as the grid writes them.
    """

    grid: GridFile
    cells: tuple[PlannedCell, ...]
    notes: tuple[str, ...]
    excluded: tuple[tuple[str, int], ...] = ()
    data: tuple[SplitFacts, ...] = ()
    remarks: tuple[str, ...] = ()
    basis: str = ""
    trials: "Plan | None" = None
    searches: tuple[RowSearch, ...] = ()
    waiting: tuple[PlannedCell, ...] = ()

    def step(self, *, retry: bool) -> "Plan":
        """What is to be run now: the trials, until all rows have settings, or this plan itself.

        ``retry`` tries the trials of a search again if all of them failed.
        """
        if self.trials is None:
            return self
        failed = [search for search in self.searches if retry and len(search.failed) == len(search.results)]
        hopeless = {(search.row, search.seed) for search in failed}
        cells = [
            replace(cell, tried=cell.tried and (cell.trial.row, cell.trial.seed) not in hopeless)
            for cell in self.trials.cells
            if cell.trial is not None
        ]
        waits = any(cell.chosen and not cell.tried for cell in cells)
        return replace(self.trials, cells=tuple(cells)) if waits else self

    @property
    def trial_count(self) -> int:
        """How many trials this run has, also those that their sampler has yet to ask for."""
        search = self.grid.spec.search
        if self.trials is None or search is None:
            return 0
        rows = {cell.trial.row for cell in self.trials.chosen if cell.trial is not None}
        if search.sampler.name == "design":
            return len(self.trials.chosen)
        return search.trials * sum(searched.row in rows for searched in self.searches)

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
    grid, overrides, before = table_for(grid, request, ledger)
    rows = expand(grid, allow_large=allow_large)
    problems = rows.problems
    problems += search_problems(rows, overrides)
    if not any(variant.spec for variant in rows.variants):  # there is no valid base
        raise RequestError(str(grid.path), problems)
    # Rows are excluded by the grid as written, before overrides.
    excluded = _excluded(rows, catalogue)
    kept = [variant for variant in rows.variants if variant.explicit or variant.label not in excluded]
    resolver = FileLocator(catalogue, grid.folder)
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
    resolve = partial(_resolved, catalogue=catalogue, contents=contents)
    search = grid.spec.search if overrides.tuned else None
    tried = [row for row, variant in zip(rows.variants, variants, strict=True) if not variant.problems]
    if search is not None and not rows.problems:
        problems += trial_problems(tried, variants, grid, resolve)
    if problems:
        raise RequestError(str(grid.path), problems)
    states = ledger.states() if ledger is not None else {}
    known = known_identities(ledger, catalogue) if ledger is not None else {}
    shown = {cell.label for cell in before.cells} if before is not None else set()

    def cells_of_row(row: Variant, grid: GridFile) -> list[PlannedCell]:
        return [*(_last_run(row, before) if row.problems else _cells(row, grid, catalogue, contents, states, known))]

    def tune(grid: GridFile) -> TunedRows:
        if search is None:
            return TunedRows(variants, [], [], [], {})
        tuned = tuned_rows(tried, variants, grid, resolve, cells_of_row, ledger)
        return replace(tuned, rows=[*tuned.rows, *(row for row in variants if row.problems)])

    def waiting_of(tuned: TunedRows, grid: GridFile) -> list[PlannedCell]:
        cells = [cell for row in tuned.waiting for cell in cells_of_row(row, grid) if row.chosen]
        return [replace(cell, status=WAITING) for cell in cells]

    def cells_of(tuned: TunedRows, grid: GridFile) -> list[PlannedCell]:
        planned: list[PlannedCell] = []
        for row in tuned.rows:
            cells = cells_of_row(row, grid)
            # Rows outside this run stay in the table if they were in it: another run may be about to start them.
            optional = row.problems and row.label not in shown
            planned += cells if row.chosen or not optional or any(cell.status != "new" for cell in cells) else ()
        left = {row.label for row in tuned.waiting if not row.chosen}
        return [*planned, *(cell for row in variants if row.label in left for cell in _last_run(row, before))]

    def known_cells(grid: GridFile) -> list[PlannedCell]:
        tuned = tune(grid)
        return [*cells_of(tuned, grid), *waiting_of(tuned, grid)]

    grid, run_notes = _with_seeds(grid, overrides, before, known_cells)
    cell_count = len(variants) * len(grid.spec.seeds)
    if search is not None:
        cell_count += search.trials * len(tried) * (len(grid.spec.seeds) if search.per == "seed" else 1)
    if cell_count > LARGE and not allow_large:
        text = f"the grid has {cell_count:,} cells with {'its trials' if search else 'them'}, more than {LARGE:,}"
        raise RequestError("search" if search else "--seeds", [Problem("", f"{text}; pass --yes if that is meant")])
    tuned = tune(grid)
    cells, waiting = cells_of(tuned, grid), waiting_of(tuned, grid)
    if len({cell.label for cell in cells}) > 1:  # rows that wait are out of turn; a search per seed splits rows
        order = {row.label: index for index, row in enumerate(variants)}
        cells.sort(key=lambda cell: order[cell.label])
    run_notes += tuned.notes
    grid = with_metrics(grid, (row.spec for row in variants if not row.problems))
    grid = _with_data(grid, variants, contents, before)
    if further := list(GridRecord("", grid.raw, "", "", ()).further):
        run_notes += [f"computed from stored predictions, without new cells: {', '.join(further)}"]
    if request.changes_runs and request.name is None:
        run_notes += [f"kept in a table of its own, {grid.name!r}"]
    added = grid.raw.get(ADDED_SEEDS)
    run_notes += [f"with seeds that were added to the grid's own: {', '.join(map(str, added))}"] if added else []
    looked = resolver.notes(variant.spec for variant in variants if variant.chosen)
    rows_chosen = {cell.label: cell.spec for cell in (*cells, *waiting) if cell.chosen}
    data = tuple(dict.fromkeys(facts for spec in rows_chosen.values() for facts in contents.facts(spec)))
    remarks = tuple(
        dict.fromkeys(
            (
                *(remark for spec in rows_chosen.values() for remark in contents.remarks(spec)),
                *(remark for trial in tuned.trials for remark in contents.rate_remarks(trial.spec)),
            )
        )
    )
    notes = (*rows.notes, *looked, *contents.notes, *_unlabelled(data), *remarks, *run_notes)
    trials = None
    if search is not None:
        table, record = trials_table(grid, ledger)
        trials = Plan(table, tuple(tuned.trials), notes, basis=record.basis if record else "")
        grid = replace(grid, raw={**grid.raw, TUNED: tuned.recorded(before)})
    return Plan(
        grid,
        tuple(cells),
        (*notes, *_left_out(grid, cells, waiting, before, catalogue)),
        tuple(excluded.items()),
        data,
        remarks,
        before.basis if before else "",
        trials,
        tuple(tuned.searches),
        tuple(waiting),
    )


def with_metrics(grid: GridFile, runs: Iterable[Mapping[str, Any]]) -> GridFile:
    """Record in the grid the metrics of its tasks after the first."""
    further = {task: [*metrics.values()] for task, metrics in further_metrics(runs).items() if metrics}
    return replace(grid, raw={**grid.raw, METRICS: further}) if further else grid


def _with_data(grid: GridFile, rows: Sequence[Variant], contents: Contents, before: GridRecord | None) -> GridFile:
    """Record in the grid what the data of its rows hold; of tasks whose data are not here, what the last run found."""
    data = dict.fromkeys(facts for row in rows if not row.problems for facts in contents.facts(row.spec))
    missing = {task for row in rows if row.problems for task in row.spec["tasks"]} - {facts.task for facts in data}
    recorded = before.spec.get(DATA, ()) if before is not None else ()
    kept = [facts for facts in recorded if facts["task"] in missing]
    return replace(grid, raw={**grid.raw, DATA: [*(facts.record() for facts in data), *kept]})


def _last_run(row: Variant, before: GridRecord | None) -> Iterator[PlannedCell]:
    """The cells that a row had when the grid was last run."""
    for row_cell in before.cells if before is not None else ():
        if row_cell.label == row.label:
            cell = row_cell.cell
            yield PlannedCell(
                id=cell.id,
                label=row.label,
                seed=row_cell.seed,
                status="new" if cell.status == "planned" else cell.status,
                spec=cell.spec,
                versions={},
                reported=row.reported,
                chosen=False,
                facts=cell.facts,
                identity=cell.identity or "",  # an older version's cell has none before the row can be planned
            )


def _resolved(variant: Variant, catalogue: "Catalogue", contents: Contents) -> Variant:
    """The row with its complete specification and all its problems."""
    spec, wrong = catalogue.resolve_run(variant.spec)
    problems = [*variant.problems, *wrong]
    problems += contents.problems(spec, {problem.path for problem in problems})
    if not problems:
        problems += contents.pointless(spec)
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
    return stored is None or any(name in stored.tasks and stored.tasks[name].classes == 2 for name in concerned)


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
    for seed in row.seeds or grid.spec.seeds:
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
            trial=row.trial,
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
        unfinished = {
            cell.seed for cell in cells_of(known) if cell.chosen and cell.status in ("new", "interrupted", WAITING)
        }
        if waiting := sorted(unfinished & set(kept)):
            listed = ", ".join(map(str, waiting))
            return known, [f"--seeds adds none: this run goes on with those added before ({listed})"]
    elif overrides.seeds:
        return add_seeds(grid, [*kept, *overrides.seeds]), []
    return add_seeds(grid, [*kept, *new_seeds(known.spec.seeds, number)]), []


def _unlabelled(data: Iterable[SplitFacts]) -> Iterator[str]:
    """A note on each task whose data have rows without its label."""
    lacking: dict[str, list[str]] = {}
    for task, split, unlabelled in dict.fromkeys((entry.task, entry.split, entry.unlabelled) for entry in data):
        if unlabelled:
            lacking.setdefault(task, []).append(f"{unlabelled:,} of {split}")
    for task, numbers in lacking.items():
        yield f"task {task!r}: rows without its label are left out, {' and '.join(numbers)}"


def _left_out(
    grid: GridFile,
    cells: list[PlannedCell],
    waiting: list[PlannedCell],
    before: GridRecord | None,
    catalogue: "Catalogue",
) -> Iterator[str]:
    """A note on finished results of the last run that the table no longer has, and why; rows that wait keep theirs."""
    planned, kept = {cell.id for cell in cells}, {(cell.label, cell.seed) for cell in waiting}
    last_cells = [cell for cell in before.cells if (cell.label, cell.seed) not in kept] if before is not None else []
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
