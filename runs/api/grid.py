"""Grids from Python: load one, change it, plan it, run it, and ask what came of it.

The command line is a layer over this class: a command reads arguments, calls a method and prints the answer.
"""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from taskloom.core.errors import RegistryError, TaskloomError, unknown
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import GridRecord
from taskloom.runs.api import questions
from taskloom.runs.api.answer import Answer, TableAnswer
from taskloom.runs.api.cell import Cell, cell_of
from taskloom.runs.api.find import NO_CELL, NotRunError, best_cell, place_of, states_in
from taskloom.runs.api.written import KINDS, WrittenGrid, checked
from taskloom.runs.driver.signals import Stop

if TYPE_CHECKING:  # which import pydantic, numpy or torch
    from taskloom.runs.analysis.cell_states import CellState
    from taskloom.runs.analysis.claims import Claim
    from taskloom.runs.analysis.compare import Comparison
    from taskloom.runs.analysis.effects import Effects
    from taskloom.runs.analysis.errors import TaskErrors
    from taskloom.runs.analysis.explain import Explanation
    from taskloom.runs.api.run import Ran
    from taskloom.runs.grid.plan import Plan
    from taskloom.runs.show.findings import NamedContrast
    from taskloom.runs.training.checkpoint import Keep

#: What `taskloom run` takes, and `run` with the engine's name.
ENGINE_OPTIONS = ("devices", "threads", "cells_per_gpu", "address")


class Laid(TypedDict, total=False):
    """What a plan or a run lays over the whole grid, as the options of ``taskloom run`` do.

    ``data`` is a folder that holds the data sets, ``weights`` replaces the encoder's, ``epochs`` is the most that a
    stage may have, ``settings`` are paths with values, ``only`` are patterns of the rows to run, ``seeds`` are further
    ones or a number of new ones, ``smoke`` makes every run tiny and records it as ``NAME-smoke``, ``allow_large``
    accepts more than 10,000 cells. ``weights``, ``epochs`` and ``settings`` make a table of its own, such as
    ``quickstart+lr=0.001``; ``name`` gives it another name.
    """

    data: str | os.PathLike[str] | None
    weights: str | None
    epochs: int | None
    settings: Mapping[str, Any]
    only: str | Sequence[str]
    seeds: Sequence[int] | int
    smoke: bool
    name: str | None
    allow_large: bool


class Grid(WrittenGrid):
    """A grid of experiments: its rows, its runs, and its results in a registry.

    A grid is given by the name of a packaged one, by the path of its JSON file, by the name under which the registry
    knows it, or as a dictionary of the same form, which needs a ``name``. It never changes: :meth:`axis`, :meth:`row`,
    :meth:`seeds`, :meth:`set` and :meth:`replace` return a new grid. ``registry`` is the folder that keeps results, by
    default ``TASKLOOM_REGISTRY`` or ``taskloom-runs``; the command line reads and writes the same ones.

    A grid is recorded under its name. One that was changed here is another table than the file that it came from, so it
    gets a name made of that file's and of its own content, such as ``quickstart-5d1c0e``: the same change is the same
    table tomorrow, and no two changes share one. ``Grid("quickstart", name="mine")`` gives it, and what is made of it,
    a name of your own. A cell is known by what it is, not by its grid, so none is trained twice.

    What is wrong with a request is a ``TaskloomError``, with the message that the command line prints.

    >>> grid = Grid("quickstart", registry="nowhere").row("slow", {"stages.0.optimizer.lr": 0.0005}).seeds(0, 1)
    >>> [(cell.label, cell.seed, cell.status) for cell in grid.plan(only="s*").found.chosen]
    [('sum', 0, 'new'), ('sum', 1, 'new'), ('slow', 0, 'new'), ('slow', 1, 'new')]
    """

    # Before and during a run

    def validate(self, **laid: Unpack[Laid]) -> "Answer[Plan]":
        """Check the grid and everything that it names; one ``RequestError`` has all errors. Reads no registry."""
        return questions.plan_answer(self._plan(None, laid))

    def plan(self, **laid: Unpack[Laid]) -> "Answer[Plan]":
        """What running the grid would do, checked; writes nothing. ``found.chosen`` are the cells.

        It shows the steps of each cell, how long it takes once cells like it have run, and how much it keeps.
        """
        with Ledger.find(self.registry) or nullcontext() as ledger:
            plan = self._plan(ledger, laid)

            from taskloom.registry.installed.catalogue import load_catalogue
            from taskloom.runs.driver.forecast import costs

            return questions.plan_answer(plan, costs(plan, load_catalogue(), ledger))

    def run(
        self,
        *,
        engine: str | Mapping[str, Any] | None = None,
        workers: int | None = None,
        progress: bool = True,
        retry: bool = True,
        attempts: int = 3,
        timeout: float | None = None,
        keep: "Keep" = "best",
        trackers: "str | Sequence[str | Mapping[str, Any]] | None" = None,
        stop: Stop | None = None,
        **laid: Unpack[Laid],
    ) -> "Ran":
        """Run every cell that is not finished, and return the table; cells that fail leave holes that say why.

        ``engine`` is where cells run: ``local`` (``workers`` processes on this machine, the default), ``inline`` (this
        process), ``ray``, or a name with options. ``progress`` goes to stderr. ``retry`` tries failed cells again;
        ``attempts`` is how often a cell is tried whose worker is lost, ``timeout`` after how many silent seconds it is.
        ``keep`` says what stays of a finished cell's weights: ``best``, ``heads`` or ``none``. ``trackers`` are told of
        every run: names such as ``tensorboard``, or names with options; by default those of ``TASKLOOM_TRACKERS``.

        Ctrl-C, or Jupyter's stop button, lets the cells write checkpoints and raises ``KeyboardInterrupt``; twice ends
        them at once. Running the grid again continues. Outside the main thread no signal arrives: there call ``stop``,
        a ``taskloom.runs.driver.signals.Stop`` that was passed in.

        Scripts need no ``if __name__ == "__main__"``: worker processes do not import them.
        """
        from taskloom.runs.api.run import run_grid

        file = self.file  # before torch is imported: a misspelt path should be reported at once
        engine, trackers, stop = checked("engine", engine), checked("trackers", trackers), checked("stop", stop)
        planning = _planning(laid, Grid.run.__kwdefaults__ or ())
        with Ledger.find(self.registry) or nullcontext() as ledger:
            self.check_name(ledger)
        return run_grid(
            file,
            self.registry,
            engine=engine,
            workers=workers,
            progress=progress,
            stop=stop,
            planning=planning,
            retry_failed=retry,
            attempts=attempts,
            timeout=timeout,
            keep=keep,
            trackers=(trackers,) if isinstance(trackers, str) else trackers,
        )

    def explain(self, row: str | None = None, **laid: Unpack[Laid]) -> "Answer[Sequence[Explanation]]":
        """Why each cell, or those of one row, is new, cached, stale or excluded: differences field by field."""
        with Ledger.find(self.registry) or nullcontext() as ledger:
            plan = self._plan(ledger, laid)

            from taskloom.registry.installed.catalogue import load_catalogue
            from taskloom.runs.analysis.explain import explain_plan

            explained = explain_plan(plan, ledger, load_catalogue())
        chosen = [one for one in explained if row in (None, one.label)]
        if not chosen and row is not None:
            raise RegistryError(unknown("row", row, {one.label for one in explained}, where="rows"))
        notes = [line for line in plan.notes if "`taskloom explain`" not in line]
        return questions.explained(chosen, plan.grid.name, notes)

    def _plan(self, ledger: Ledger | None, laid: Laid) -> "Plan":
        file = self.file  # before torch is imported: a misspelt path should be reported at once

        from taskloom.registry.installed.catalogue import load_catalogue
        from taskloom.runs.grid.plan import make_plan

        self.check_name(ledger)
        return make_plan(file, load_catalogue(), ledger, **_planning(laid))

    # Results

    def table(
        self,
        *,
        columns: str | Sequence[str] = (),
        sort: str = "",
        group_by: str = "",
        metric: str = "",
        split: str = "",
        reported: bool = False,
    ) -> TableAnswer:
        """The comparison table as far as the grid was run.

        ``columns`` are tasks, overall, seconds, memory, examples and backwards; ``sort`` puts the best of one first,
        ``group_by`` makes a row per value of an axis, ``metric`` scores the stored predictions anew, ``split`` shows
        ``dev``, ``test`` or ``train`` for all rows. With ``reported`` published figures stand beside ours, before the
        first run too. Test scores count as looked at.
        """
        columns = columns.split(",") if isinstance(columns, str) else columns
        wanted: dict[str, Any] = {
            "columns": columns,
            "sort": sort,
            "group_by": group_by,
            "metric": metric,
            "split": split,
        }
        wanted = {key: checked(key, value) or "" for key, value in wanted.items()}
        if reported:  # for which the grid's file is enough
            with Ledger.find(self.registry) or nullcontext() as ledger:
                notes: list[str] = []
                try:
                    grid = unrun(self) if ledger is None else self.record(ledger, notes.append)
                except NotRunError:
                    grid = unrun(self)
                table = questions.table(ledger, grid, self.registry, reported=True, **wanted)
                return replace(table.noting(notes), reads=self._reads(grid))
        with self._recorded() as (ledger, grid, notes):
            table = questions.table(ledger, grid, self.registry, reported=False, **wanted)
            return replace(table.noting(notes), reads=self._reads(grid))

    def claims(self, *, split: str = "") -> "Answer[list[Claim]]":
        """The claims of the grid, each with its answer: holds, contradicted, equal, not that large or open."""
        with self._recorded() as (ledger, grid, notes):
            return questions.claims(ledger, grid, checked("split", split)).noting(notes)

    def effects(self, on: str = "overall", *, split: str = "") -> "Answer[Effects]":
        """What each axis does to a score, over pairs of rows that differ in nothing else."""
        with self._recorded() as (ledger, grid, notes):
            return questions.effects(ledger, grid, on, checked("split", split)).noting(notes)

    def seeds_needed(self, on: str = "overall", *, queue: bool = False) -> "Answer[list[NamedContrast]]":
        """How many more seeds settle each open comparison; ``queue`` lets the next run add them."""
        with self._recorded() as (ledger, grid, notes):
            return questions.seeds_needed(ledger, grid, on, queue).noting(notes)

    def errors(
        self, row: str, *, limit: int = 10, data: questions.Folder = None, split: str = ""
    ) -> "Answer[list[TaskErrors]]":
        """What a row over its finished seeds, or a cell by its identity, gets wrong on the examples of a split."""
        with self._recorded() as (ledger, grid, notes):
            return questions.errors(ledger, row, [grid], limit, data, checked("split", split)).noting(notes)

    def compare(
        self, a: str, b: str, *, limit: int = 10, data: questions.Folder = None, split: str = ""
    ) -> "Answer[Comparison]":
        """What differs between two rows or cells, example by example, and whether it is more than noise."""
        with self._recorded() as (ledger, grid, notes):
            return questions.compare(ledger, a, b, [grid], limit, data, checked("split", split)).noting(notes)

    def cells(self) -> "Answer[Sequence[CellState]]":
        """The state of every cell, at any time, also while another process runs them."""
        with self._recorded() as (ledger, grid, notes):
            return questions.cells_answer(states_in(ledger, grid.name)).noting(notes)

    def cell(self, which: str, seed: int | None = None) -> Cell:
        """One cell: a row by its label with a seed, which a row of one seed need not say; or by its identity."""
        seed = checked("seed", seed)
        with self._recorded() as (ledger, grid, _):
            places = [place for place in grid.cells if place.label == which]
            chosen = [place for place in places if seed in (None, place.seed)]
            if len(chosen) == 1:
                return cell_of(chosen[0], self.registry)
            if places:
                seeds = ", ".join(str(place.seed) for place in places)
                found = "none" if seed is None else seed
                raise TaskloomError(f"row {which!r} has the seeds {seeds}; say which one. Found {found}.")
            if not ledger.has_cell(which):
                labels = {place.label for place in grid.cells}
                raise RegistryError(f"{unknown('row', which, labels, where='rows')}, {NO_CELL}")
            return cell_of(place_of(ledger, ledger.cell(which)), self.registry)

    def best(self, row: str | None = None, seed: int | None = None) -> Cell:
        """The finished cell with the best overall dev score, of all or of one row or seed."""
        with self._recorded() as (_, grid, _):
            return cell_of(best_cell(self.registry, grid, row, checked("seed", seed)), self.registry)

    def report(
        self, out: str | os.PathLike[str] = "report.html", *, split: str = "", force: bool = False
    ) -> Answer[Path]:
        """Write the results as one HTML page that needs nothing else; ``force`` replaces a file of another kind."""
        path, split = Path(checked("out", out)), checked("split", split)
        with self._recorded() as (ledger, grid, notes):
            return questions.report(ledger, grid, path, split, reads=self._reads(grid), force=force).noting(notes)

    def plot(
        self, out: str | os.PathLike[str], kind: str = "forest", *, split: str = "", force: bool = False
    ) -> Answer[Path]:
        """Draw one figure for a paper to a .pdf, .svg or .png file: forest, curves, bars, effects, conflicts …

        ``force`` replaces a file of another kind.
        """
        path, split = Path(checked("out", out)), checked("split", split)
        with self._recorded() as (ledger, grid, notes):
            figure = questions.plot(ledger, grid, path, kind, split, reads=self._reads(grid), force=force)
            return figure.noting(notes)

    def _reads(self, grid: GridRecord) -> tuple[str, ...]:
        """The grid's file, wherever it is now, and its data: no output may replace them."""
        return (*grid.files, *([self._source] if self._source else []))

    @contextmanager
    def _recorded(self) -> Iterator[tuple[Ledger, GridRecord, list[str]]]:
        """The ledger, the grid as it was last run, and a list that takes notes."""
        notes: list[str] = []
        with Ledger.open(self.registry, create=False) as ledger:
            yield ledger, self.record(ledger, notes.append), notes


def _planning(laid: Laid, others: Collection[str] = ()) -> dict[str, Any]:
    """Arguments of make_plan; ``others`` are arguments that the caller takes besides."""
    names = {*Laid.__annotations__, *others}
    for key, value in laid.items():
        if key not in names:
            hint = {"name": "ray" if key == "address" else "local", key: value}
            how = f"; an engine takes it: engine={hint}" if others and key in ENGINE_OPTIONS else ""
            raise TaskloomError(unknown("argument", key, names, where="arguments") + how)
    given: dict[str, Any] = {key: value for key, value in laid.items() if value is not None}
    given |= {key: checked(key, value) for key, value in given.items() if key in KINDS}
    allow_large, seeds = bool(given.pop("allow_large", False)), given.get("seeds", ())
    if "data" in given:
        given["data"] = Path(os.path.expanduser(given["data"]))  # noqa: PTH111 - the other raises
    only = given.get("only", ())
    given["only"] = (only,) if isinstance(only, str) else tuple(only)
    given["seeds"] = seeds if isinstance(seeds, int) else tuple(seeds)

    from taskloom.runs.grid.overrides import Overrides

    return {"overrides": Overrides(**given), "allow_large": allow_large}


def unrun(grid: WrittenGrid) -> GridRecord:
    """A grid's record before its first run: all holes."""
    from taskloom.core.errors import RequestError
    from taskloom.registry.results.records import CellRecord, GridCell
    from taskloom.runs.grid.expansion import expand
    from taskloom.runs.grid.plan import with_metrics

    file = grid.file
    expansion = expand(file, allow_large=True)
    if expansion.problems:
        raise RequestError(str(file.path), expansion.problems)
    cells = [
        GridCell(variant.label, seed, variant.reported, CellRecord("", variant.spec, "planned"))
        for variant in expansion.variants
        for seed in file.spec.seeds
    ]
    raw = with_metrics(file, (variant.spec for variant in expansion.variants)).raw
    return GridRecord(file.name, raw, "", "", tuple(cells))
