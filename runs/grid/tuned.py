"""The rows of a grid with a search, as far as the ledger has its trials: those with settings, and those that wait."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from taskloom.core.errors import Problem, count
from taskloom.core.specs import ComponentSpec, RangeSpec, SearchSpec
from taskloom.registry.results.records import TUNED, GridRecord
from taskloom.runs.grid.expansion import Variant, copied
from taskloom.runs.grid.grid import GridFile
from taskloom.runs.grid.paths import assign
from taskloom.runs.grid.planned import PlannedCell
from taskloom.runs.grid.search import RowSearch, TrialResult, label_of, result_of, searched_path, trial_rows, written_at

if TYPE_CHECKING:
    from taskloom.registry.results.ledger import Ledger

Resolve = Callable[[Variant], Variant]


@dataclass(frozen=True)
class TunedRows:
    """The rows that have settings, those that ``wait`` for trials, the cells of all trials, and the searches.

    ``chosen`` is what the searches have chosen, as JSON.
    """

    rows: list[Variant]
    waiting: list[Variant]
    trials: list[PlannedCell]
    searches: list[RowSearch]
    chosen: dict[str, Any]

    def recorded(self, before: GridRecord | None) -> dict[str, Any]:
        """What is recorded with the grid: rows that wait outside this run keep what was chosen ``before``."""
        rows = before.spec.get(TUNED, {}).get("rows", ()) if before is not None else ()
        left = {row.label for row in self.waiting if not row.chosen}
        kept = {(row["row"], row["seed"]): row for row in rows if row["row"] in left}
        return {**self.chosen, "rows": [kept.get((row["row"], row["seed"]), row) for row in self.chosen["rows"]]}

    @property
    def notes(self) -> Iterator[str]:
        """A note on each row without settings whose trials have all ended."""
        for search in self.searches:
            if search.best is None and not search.pending:
                trials = f"all {count(len(search.results), 'trial')} failed"
                yield f"{search.row!r} has no settings: {trials}, the first because: {search.failed[0].why}"


def tuned_rows(
    written: Sequence[Variant],
    resolved: Sequence[Variant],
    grid: GridFile,
    resolve: Resolve,
    cells_of: Callable[[Variant, GridFile], Iterable[PlannedCell]],
    ledger: "Ledger | None",
) -> TunedRows:
    """Tune rows: ``written`` are those that the search changes, ``resolved`` the same with every default filled in."""
    search = grid.spec.search
    assert search is not None
    trials, cells, searches = dict[str, Variant](), dict[str, PlannedCell](), list[RowSearch]()
    while True:
        known = trial_rows(written, grid.spec, grid.spec.seeds, searches)
        further = {trial.label: resolve(trial) for trial in known if trial.label not in trials}
        cells |= {cell.label: cell for trial in further.values() for cell in cells_of(trial, grid)}
        trials |= further
        searches = _searches([*cells.values()], search, ledger)
        if search.sampler.name == "design" or not further:  # it has all trials at once
            break
    pending = {cell: pause for row_search in searches for cell, pause in row_search.pending.items()}
    trial_cells = [cells[label_of(result.trial)] for row_search in searches for result in row_search.results]
    trial_cells = [replace(cell, pause=pending.get(cell.id), tried=cell.id not in pending) for cell in trial_cells]
    rows, waiting, chosen = [], [], []
    by_label = {row.label: row for row in resolved}
    over = {row.label: (row, {**search.over, **row.over}) for row in written}
    for row_search in searches:
        row = by_label[row_search.row]
        own = () if row_search.seed is None else (row_search.seed,)
        if row_search.pending:
            waiting.append(replace(row, seeds=own))
        elif row_search.best is not None:
            tried = trials[label_of(row_search.best.trial)].spec
            spec = {key: value for key, value in tried.items() if key != "hold_out"} | {"score": row.spec["score"]}
            rows.append(replace(row, spec=spec, seeds=own))
        before, searched = over[row_search.row]
        chosen.append(row_search.as_json(searched, partial(_fits, before, resolve)))
    facts = {"per": search.per, "hold_out": search.hold_out, "halving": search.halving, "rows": chosen}
    return TunedRows(rows, waiting, trial_cells, searches, facts)


def _searches(cells: Iterable[PlannedCell], search: SearchSpec, ledger: "Ledger | None") -> list[RowSearch]:
    """The searches of all rows and seeds, as far as the ledger has these trials."""
    known = {cell.id for cell in cells if cell.status != "new"} if ledger is not None else ()
    records = {id: ledger.cell(id) for id in known} if ledger is not None else {}
    epochs = {id: ledger.epochs(id) for id in known} if ledger is not None and search.halving else {}
    results: dict[tuple[str, int | None], list[TrialResult]] = {}
    for cell in cells:
        assert cell.trial is not None
        facts = records.get(cell.id), epochs.get(cell.id, ())
        result = result_of(cell.trial, cell.id, cell.spec, *facts, halving=search.halving)
        results.setdefault((cell.trial.row, cell.trial.seed), []).append(result)
    return [RowSearch(row, seed, tuple(trials)).settled() for (row, seed), trials in results.items()]


def _fits(row: Variant, resolve: Resolve, path: str, value: Any) -> bool:
    """Whether a row could be run with a value at a path."""
    run = copied(row.spec)
    assign(run, path, value)
    return not resolve(replace(row, spec=run)).problems


def trial_problems(
    written: Sequence[Variant], resolved: Sequence[Variant], grid: GridFile, resolve: Resolve
) -> list[Problem]:
    """The problems that trials have and their rows do not, at the path of the search that caused each of them.

    The trials are those of the design, whatever the sampler: they are known before the first one has ended.
    """
    search, refused = grid.spec.search, dict[str, dict[str, str]]()  # path in the grid's file → row → message
    assert search is not None
    spec = grid.spec.model_copy(update={"search": search.model_copy(update={"sampler": ComponentSpec(name="design")})})
    known = {row.label: {*row.problems} for row in resolved}
    for trial in map(resolve, trial_rows(written, spec, spec.seeds[:1])):
        assert trial.trial is not None
        for problem in trial.problems:
            if problem in known[trial.trial.row]:
                continue
            row, path = trial.trial.row, searched_path(problem.path, trial.trial.settings)
            at = "" if path in ("", problem.path) else f" [at {problem.path}]"
            if "Found" in problem.message and isinstance({**search.over, **trial.over}.get(path), RangeSpec):
                at += " [drawn from a range; list the values if only some are allowed]"
            home = written_at(path, row, spec) if path else problem.path
            refused.setdefault(home, {}).setdefault(row, f"{problem.message}{at}")
    problems = []
    for home, messages in refused.items():
        row, message = next(iter(messages.items()))
        own = home.startswith("search.") and len(messages) < len(written)
        advice = "; other rows take it, and a cell may have a search of its own" if own else ""
        problems.append(Problem(home, f"{message} [in {row!r}{advice}]"))
    return problems
