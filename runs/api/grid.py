"""Grids from Python: load one, change it, plan it, run it, and ask what came of it.

The command line is a layer over this class: a command reads arguments, calls a method and prints the answer.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from taskloom.core.errors import RegistryError, TaskloomError, unknown
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import GridRecord
from taskloom.runs.api import questions
from taskloom.runs.api.answer import Answer, TableAnswer
from taskloom.runs.api.arguments import RUN_ARGUMENTS, checked, checked_overrides, checked_split
from taskloom.runs.api.cell import Cell
from taskloom.runs.api.find import (
    NO_CELL,
    NotRunError,
    best_cell,
    check_split,
    states_in,
    table_with_looks,
    with_label,
)
from taskloom.runs.api.written import WrittenGrid
from taskloom.runs.driver.signals import Stop
from taskloom.runs.show.parts import Aligned

if TYPE_CHECKING:  # which import pydantic, numpy or torch
    from taskloom.registry.results.tensors import Keep
    from taskloom.runs.analysis.budget import Budget
    from taskloom.runs.analysis.cell_states import CellState
    from taskloom.runs.analysis.claims import Claim
    from taskloom.runs.analysis.compare import Comparison
    from taskloom.runs.analysis.effects import Effects
    from taskloom.runs.analysis.errors import TaskErrors
    from taskloom.runs.analysis.explain import Explanation
    from taskloom.runs.api.run import RunResult
    from taskloom.runs.grid.data_facts import SplitFacts
    from taskloom.runs.grid.plan import Plan
    from taskloom.runs.show.findings import NamedContrast


#: What becomes of rows that the grid would run otherwise now.
STALE = ("show", "hide")


class PlanOptions(TypedDict, total=False):
    """Overrides of the whole grid in a plan or a run, as the options of ``taskloom run`` are.

    ``data`` is a folder that holds the data sets, ``weights`` replaces the encoder's, ``epochs`` is the most that a
    stage may have, ``settings`` are paths with values, ``only`` are patterns of the rows to run, ``seeds`` are further
    ones or a number of new ones, ``smoke`` makes every run tiny and records it as ``NAME-smoke``, ``allow_large``
    accepts more than 10,000 cells, ``tuned=False`` runs rows as they are written, without the grid's search.
    ``weights``, ``epochs``, ``settings`` and ``tuned=False`` make a table of its own, such as
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
    tuned: bool
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

    def validate(self, **options: Unpack[PlanOptions]) -> "Answer[Plan]":
        """Check the grid and everything that it names; one ``RequestError`` has all errors. Reads no registry."""
        return questions.validated(self._plan(None, options), self.source)

    def data(self, **options: Unpack[PlanOptions]) -> "Answer[tuple[SplitFacts, ...]]":
        """What the data of the grid hold, by task and split: labels, lengths, shared texts. Reads no registry."""
        return questions.data_answer(self._plan(None, options))

    def plan(self, **options: Unpack[PlanOptions]) -> "Answer[Plan]":
        """What running the grid would do, checked; writes nothing. ``found.chosen`` are the cells.

        It shows the steps of each cell, how long it takes once cells like it have run, and how much it keeps.
        """
        with Ledger.find(self.registry) or nullcontext() as ledger:
            plan = self._plan(ledger, options)

            from taskloom.registry.installed.catalogue import load_catalogue
            from taskloom.runs.driver.forecast import costs

            return questions.plan_answer(plan, costs(plan, load_catalogue(), ledger))

    def run(
        self,
        *,
        engine: str | Mapping[str, Any] | None = None,
        workers: int | None = None,
        progress: bool | str = True,
        retry: bool = True,
        attempts: int = 3,
        timeout: float | None = None,
        keep: "Keep" = "best",
        trackers: "str | Sequence[str | Mapping[str, Any]] | None" = None,
        stop: Stop | None = None,
        **options: Unpack[PlanOptions],
    ) -> "RunResult":
        """Run every cell that is not finished, and return the table; cells that fail leave holes that say why.

        ``engine`` is where cells run: ``local`` (``workers`` processes on this machine, the default), ``inline`` (this
        process), ``ray``, or a name with options. ``progress`` goes to stderr; ``"lines"`` is a line for every report
        of a cell. ``retry`` tries failed cells again; ``attempts`` is how often a cell is tried whose worker is lost,
        ``timeout`` after how many silent seconds it is. ``keep`` says what stays of a finished cell's weights:
        ``best``, ``heads`` or ``none``. ``trackers`` are told of every run: names such as ``tensorboard``, or names
        with options; by default those of ``TASKLOOM_TRACKERS``.

        Ctrl-C, or Jupyter's stop button, lets the cells write checkpoints and raises ``KeyboardInterrupt``; twice ends
        them at once. Running the grid again continues. Outside the main thread no signal arrives: there call ``stop``,
        a ``taskloom.runs.driver.signals.Stop`` that was passed in.

        Scripts need no ``if __name__ == "__main__"``: worker processes do not import them.
        """
        from taskloom.runs.api.run import run_grid

        file = self.file  # before torch is imported: a misspelt path should be reported at once
        engine, trackers, stop = checked("engine", engine), checked("trackers", trackers), checked("stop", stop)
        overrides, allow_large = checked_overrides(options, others=RUN_ARGUMENTS)
        self.check_name()
        return run_grid(
            file,
            self.registry,
            overrides,
            allow_large=allow_large,
            engine=engine,
            workers=workers,
            progress=progress,
            stop=stop,
            retry_failed=retry,
            attempts=attempts,
            timeout=timeout,
            keep=keep,
            trackers=(trackers,) if isinstance(trackers, str) else trackers,
        )

    def explain(self, row: str | None = None, **options: Unpack[PlanOptions]) -> "Answer[Sequence[Explanation]]":
        """Why each cell, or those of one row, is new, cached, stale or excluded: differences field by field."""
        with Ledger.find(self.registry) or nullcontext() as ledger:
            plan = self._plan(ledger, options)

            from taskloom.registry.installed.catalogue import load_catalogue
            from taskloom.runs.analysis.explain import explain_plan
            from taskloom.runs.show.explain import show_explained

            explained = explain_plan(plan, ledger, load_catalogue())
        chosen = [explanation for explanation in explained if row in (None, explanation.label)]
        if not chosen and row is not None:
            labels = {explanation.label for explanation in explained}
            raise RegistryError(unknown("row", row, labels, where="rows"))
        keys = ("label", "seed", "state", "why", "cell", "against")
        return Answer(
            chosen,
            [Aligned(show_explained(chosen))],
            {"grid": plan.grid.name, "cells": [explanation.as_dict() for explanation in chosen]},
            [{key: getattr(explanation, key) for key in keys} for explanation in chosen],
            tuple(line for line in plan.notes if "`taskloom explain`" not in line),
        )

    def _plan(self, ledger: Ledger | None, options: PlanOptions) -> "Plan":
        file = self.file  # before torch is imported: a misspelt path should be reported at once

        from taskloom.registry.installed.catalogue import load_catalogue
        from taskloom.runs.grid.plan import make_plan

        self.check_name()
        overrides, allow_large = checked_overrides(options)
        return make_plan(file, load_catalogue(), ledger, allow_large=allow_large, overrides=overrides)

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
        stale: str = "show",
    ) -> TableAnswer:
        """The comparison table as far as the grid was run.

        ``columns`` are tasks, overall, seconds, memory, examples and backwards; ``sort`` puts the best of one first,
        ``group_by`` makes a row per value of an axis, ``metric`` scores the stored predictions anew, ``split`` shows
        ``dev``, ``test`` or ``train`` for all rows. With ``reported`` published figures stand beside ours, before the
        first run too. Test scores count as looked at. A check names rows that the grid would run otherwise now, since
        data, a plugin or the grid's file changed; ``stale="hide"`` leaves them out.
        """
        columns = columns.split(",") if isinstance(columns, str) else columns
        columns = checked("columns", columns) if columns else ()
        sort, group_by, metric = (
            checked(name, value) or "" for name, value in (("sort", sort), ("group_by", group_by), ("metric", metric))
        )
        split, notes = checked_split(split), list[str]()
        from taskloom.runs.analysis.metrics import metric_named
        from taskloom.runs.analysis.results import Results
        from taskloom.runs.analysis.tables import TableRequest, table_of

        # Published figures need no ledger: for them the grid's file is enough.
        with (Ledger.find(self.registry) or nullcontext()) if reported else self._ledger() as ledger:
            try:
                grid = unrun(self) if ledger is None else self.record(ledger, notes.append)
            except NotRunError:
                if not reported:
                    raise
                grid = unrun(self)
            grid = self._with_stale(grid, stale) if ledger else grid
            epochs = ledger.epochs if ledger else lambda cell: ()
            results = Results(grid, self.registry, metric_named(metric) if metric else None, split, epochs)
            check_split(results)
            table = table_of(results, TableRequest(tuple(columns), sort, group_by))
            table = table_with_looks(ledger, results, table) if ledger else table
        reads = self._reads(grid)
        return TableAnswer(table, notes=tuple(notes), checks=table.checks, reported=reported, reads=reads)

    def claims(self, *, split: str = "", stale: str = "show") -> "Answer[list[Claim]]":
        """The claims of the grid, each with its answer: holds, contradicted, equal, not that large or open."""
        return self._answer(questions.claims, stale, split=split)

    def effects(self, on: str = "overall", *, split: str = "") -> "Answer[Effects]":
        """What each axis does to a score, over pairs of rows that differ in nothing else."""
        return self._answer(questions.effects, column=on, split=split)

    def budget(self, on: str = "") -> "Answer[Budget]":
        """What each row of a tuned grid is expected to score at best with 1, 2, … trials, on a task or overall.

        By default that is the score that its search chose by.
        """
        return self._answer(questions.budget, column=checked("column", on) or "")

    def seeds_needed(self, on: str = "overall", *, queue: bool = False) -> "Answer[list[NamedContrast]]":
        """How many more seeds settle each open comparison; ``queue`` lets the next run add them."""
        return self._answer(questions.seeds_needed, column=on, queue=queue)

    def errors(
        self, row: str, *, limit: int = 10, data: questions.Folder = None, split: str = ""
    ) -> "Answer[list[TaskErrors]]":
        """What a row over its finished seeds, or a cell by its identity, gets wrong on the examples of a split."""
        with self._recorded() as (ledger, grid, notes):
            return questions.errors(ledger, [grid], row, limit=limit, data=data, split=split).noting(notes)

    def compare(
        self, a: str, b: str, *, limit: int = 10, data: questions.Folder = None, split: str = ""
    ) -> "Answer[Comparison]":
        """What differs between two rows or cells, example by example, and whether it is more than noise."""
        with self._recorded("show") as (ledger, grid, notes):
            return questions.compare(ledger, [grid], a, b, limit=limit, data=data, split=split).noting(notes)

    def cells(self) -> "Answer[Sequence[CellState]]":
        """The state of every cell, at any time, also while another process runs them."""
        with self._recorded() as (ledger, grid, notes):
            return questions.cells_answer(states_in(ledger, grid.name)).noting(notes)

    def cell(self, row: str, seed: int | None = None) -> Cell:
        """One cell: a row by its label with a seed, which a row of one seed need not say; or by its identity."""
        seed = checked("seed", seed)
        with self._recorded() as (ledger, grid, _):
            of_row = [grid_cell for grid_cell in grid.cells if grid_cell.label == row]
            chosen = [grid_cell for grid_cell in of_row if seed in (None, grid_cell.seed)]
            if len(chosen) == 1:
                return Cell.of(chosen[0], self.registry)
            if of_row:
                seeds = ", ".join(str(grid_cell.seed) for grid_cell in of_row)
                stated = "none" if seed is None else seed
                raise TaskloomError(f"row {row!r} has the seeds {seeds}; say which one. Found {stated}.")
            if not ledger.has_cell(row):
                labels = {grid_cell.label for grid_cell in grid.cells}
                raise RegistryError(f"{unknown('row', row, labels, where='rows')}, {NO_CELL}")
            return Cell.of(with_label(ledger, ledger.cell(row)), self.registry)

    def best(self, row: str | None = None, seed: int | None = None) -> Cell:
        """The finished cell with the best overall dev score, of all or of one row or seed."""
        with self._recorded() as (_, grid, _):
            return Cell.of(best_cell(self.registry, grid, row, checked("seed", seed))[0], self.registry)

    def report(
        self,
        out: str | os.PathLike[str] = "report.html",
        *,
        split: str = "",
        stale: str = "show",
        force: bool = False,
    ) -> Answer[Path]:
        """Write the results as one HTML page that needs nothing else; ``force`` replaces a file of another kind."""
        with self._recorded(stale) as (ledger, grid, notes):
            reads = self._reads(grid)
            return questions.report(ledger, grid, out=out, split=split, reads=reads, force=force).noting(notes)

    def plot(
        self, out: str | os.PathLike[str], kind: str = "forest", *, split: str = "", force: bool = False
    ) -> Answer[Path]:
        """Draw one figure for a paper to a .pdf, .svg or .png file: forest, curves, bars, effects, budget …

        ``force`` replaces a file of another kind.
        """
        with self._recorded() as (ledger, grid, notes):
            reads = self._reads(grid)
            return questions.plot(ledger, grid, out=out, kind=kind, split=split, reads=reads, force=force).noting(notes)

    def _reads(self, grid: GridRecord) -> tuple[str, ...]:
        """The grid's file, wherever it is now, and its data: no output may replace them."""
        return (*grid.files, *([self._source] if self._source else []))

    def _answer(self, question: "Callable[..., Answer[Any]]", stale: str = "show", **arguments: Any) -> Answer[Any]:
        """The answer to a question about the grid as it was last run."""
        with self._recorded(stale) as (ledger, grid, notes):
            return question(ledger, grid, **arguments).noting(notes)

    def _ledger(self) -> Ledger:
        return Ledger.open(self.registry, create=False)

    @contextmanager
    def _recorded(self, stale: str = "") -> Iterator[tuple[Ledger, GridRecord, list[str]]]:
        """The ledger, the grid as it was last run, and a list that takes notes.

        ``stale`` says what becomes of rows that would be other runs now; without it they are not searched for.
        """
        notes: list[str] = []
        with self._ledger() as ledger:
            record = self.record(ledger, notes.append)
            yield ledger, self._with_stale(record, stale) if stale else record, notes

    def _with_stale(self, record: GridRecord, stale: str) -> GridRecord:
        from taskloom.runs.analysis.stale import with_stale

        if stale not in STALE:
            raise TaskloomError(unknown("choice", stale, STALE, where="choices"))
        path = self._located[0] if self._source is not None and self._name is None and self._is_file else None
        return with_stale(record, path, hide=stale == "hide")


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
