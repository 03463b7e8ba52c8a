"""A recorded grid → its comparison table: one row per label, mean and sample sd over seeds, holes with their reason.

Reads records only, so a table needs neither torch nor the plugins that made its figures.
"""

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from taskloom.core.units import count, out_of_memory
from taskloom.registry.results.records import OVERRIDES, CellRecord, GridCell, GridRecord
from taskloom.runs.analysis.reported import Derived, derive_overall, printed_digits

#: Columns in which less is better; every other column is a score.
COSTS = ("seconds", "memory")
DIGITS = 3
#: Statuses of cells that will not give figures unless they are tried again.
HOLES = ("failed", "oom")


@dataclass(frozen=True)
class Figure:
    """What the finished seeds of a row gave in one column.

    >>> Figure((0.5, 0.75)).mean, Figure((0.5,)).sd, Figure(()).mean
    (0.625, None, None)
    """

    values: tuple[float, ...]

    @cached_property
    def mean(self) -> float | None:
        """The mean, or None where there is no value."""
        return statistics.mean(self.values) if self.values else None

    @cached_property
    def sd(self) -> float | None:
        """The sample standard deviation (over n − 1); one value has none."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True)
class Missing:
    """Why a seed of a row has no figures, or not all of them."""

    seed: int
    status: str
    why: str


@dataclass(frozen=True)
class Row:
    """One line of the table; ``n`` of its ``seeds`` are finished.

    ``reported`` are figures that somebody published for it, taken on ``split``, and ``derived`` is the overall
    score that follows from them.
    """

    label: str
    seeds: tuple[int, ...]
    n: int
    figures: dict[str, Figure]
    reported: dict[str, float]
    missing: tuple[Missing, ...]
    split: str = "dev"
    reported_train: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    derived: Derived | None = None

    @property
    def complete(self) -> bool:
        return self.n == len(self.seeds)

    @property
    def follows(self) -> bool | None:
        """Whether the reported overall follows from the reported parts; None where that cannot be said."""
        if self.derived is None or "overall" not in self.reported:
            return None
        return self.derived.explains(self.reported["overall"])

    def difference(self, column: str) -> float | None:
        """Our mean less the reported figure. Ours is a dev score: a figure of another split is not compared with it."""
        ours = self.figures[column].mean
        if ours is None or column not in self.reported or self.split != "dev":
            return None
        return ours - self.reported[column]


@dataclass(frozen=True)
class Table:
    """A grid's table before it is rendered; ``notes`` are what its readers should know."""

    name: str
    columns: tuple[str, ...]
    digits: int
    rows: tuple[Row, ...]
    baseline: str | None
    notes: tuple[str, ...] = ()

    @cached_property
    def reported(self) -> frozenset[str]:
        """The columns for which some row has a published figure."""
        return frozenset(name for row in self.rows for name in row.reported)

    @property
    def begun(self) -> bool:
        """Whether any cell was ever started."""
        return any(missing.status != "planned" for row in self.rows for missing in row.missing) or any(
            row.n for row in self.rows
        )

    @cached_property
    def _against(self) -> Row | None:
        return next((row for row in self.rows if row.label == self.baseline), None)

    def delta(self, row: Row, column: str) -> float | None:
        """How far the row's mean is above the baseline's."""
        ours = row.figures[column].mean
        theirs = self._against.figures[column].mean if self._against else None
        return None if ours is None or theirs is None else ours - theirs

    def best(self, column: str) -> float | None:
        """The best mean of a column, if at least two rows compete.

        A row with seeds missing does not: one lucky seed should not win over the mean of five.
        """
        figures = [row.figures[column] for row in self.rows if row.complete]
        means = [figure.mean for figure in figures if figure.mean is not None]
        if len(means) < 2:
            return None
        return min(means) if column in COSTS else max(means)


def table_of(grid: GridRecord) -> Table:
    """The table of a grid, by the columns, digits and baseline that its JSON states."""
    asked = grid.spec.get("table") or {}
    columns = tuple(asked.get("columns") or _default_columns(grid))
    places: dict[str, list[GridCell]] = {}
    for place in grid.cells:
        places.setdefault(place.label, []).append(place)
    printed = printed_digits(figure for place in grid.cells for figure in place.reported.values())
    said = {cell["label"]: cell for cell in grid.spec.get("cells") or ()}
    return Table(
        name=grid.name,
        columns=columns,
        digits=asked.get("digits", DIGITS),
        rows=tuple(_row(label, cells, columns, said.get(label, {}), printed) for label, cells in places.items()),
        baseline=grid.spec.get("baseline"),
        notes=(*grid.spec.get("notes", ()), *(f"Run with {line}." for line in grid.spec.get(OVERRIDES, ()))),
    )


def _default_columns(grid: GridRecord) -> Iterable[str]:
    """Every task that has a score or may still get one, and the overall score."""
    cells = [place.cell for place in grid.cells]
    for task in dict.fromkeys(task for cell in cells for task in cell.spec.get("tasks", {})):
        concerned = [cell for cell in cells if task in cell.spec["tasks"]]
        scored = any(task in cell.scores for cell in concerned)
        if scored or not any(cell.status == "finished" for cell in concerned):
            yield task  # a pretraining task without dev labels never gets a score and needs no column
    yield "overall"


def _row(label: str, places: list[GridCell], columns: tuple[str, ...], said: Mapping[str, Any], printed: int) -> Row:
    """One row: ``said`` is what the grid's JSON says of it, ``printed`` the digits of the published figures."""
    finished = [place.cell for place in places if place.cell.status == "finished"]
    values = {column: [_value(cell, column) for cell in finished] for column in columns}
    return Row(
        label=label,
        seeds=tuple(place.seed for place in places),
        n=len(finished),
        figures={column: Figure(tuple(x for x in values[column] if x is not None)) for column in columns},
        reported=dict(places[0].reported),
        missing=tuple(missing for place in places for missing in _missing(place, columns)),
        split=said.get("split", "dev"),
        reported_train=said.get("reported_train", {}),
        note=said.get("note", ""),
        derived=derive_overall(places[0].reported, columns, places[0].cell.spec, printed),
    )


def _value(cell: CellRecord, column: str) -> float | None:
    own = {"seconds": cell.seconds, "memory": cell.peak_memory}
    value = own[column] if column in own else cell.scores.get(column)
    return value if value is not None and math.isfinite(value) else None


def _missing(place: GridCell, columns: tuple[str, ...]) -> Iterable[Missing]:
    cell = place.cell
    if cell.status != "finished":
        yield Missing(place.seed, cell.status, why_missing(cell))
        return
    for column in columns:
        if _value(cell, column) is not None:
            continue
        if column in cell.scores:
            why = f"{column} is {cell.scores[column]:g}"
        elif column in (*COSTS, "overall") or column in cell.spec.get("tasks", {}):
            why = f"{column} was not measured"
        else:
            why = f"has no task {column!r}"
        yield Missing(place.seed, cell.status, why)


def why_missing(cell: CellRecord) -> str:
    """Why a cell that is not finished has no figures."""
    reason = " ".join((cell.reason or "").split())
    after = f"after {count(cell.epochs, 'epoch')}"
    match cell.status:
        case "failed":
            return f"failed: {reason}"
        case "oom":
            return out_of_memory(reason)
        case "running":
            return f"not finished: running, or interrupted {after}"
        case "interrupted":
            return f"interrupted {after}{f' ({reason})' if reason else ''}; goes on from there when it is run again"
    return "not run yet"
