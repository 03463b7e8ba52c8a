"""A recorded grid → its comparison table: one row per label, mean and sample sd over seeds, holes with their reason.

Reads records only, so a table needs neither torch nor the plugins that made its figures.
"""

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from typing import Any

from taskloom.registry.results.records import OVERRIDES, CellRecord, GridCell, GridRecord
from taskloom.runs.driver.wording import format_state

#: Columns in which less is better; every other column is a score.
COSTS = ("seconds", "memory")
#: Metrics whose kind is known without importing plugins. ``normalised`` maps only correlations to (r + 1)/2.
CORRELATIONS = frozenset({"pearson", "spearman"})
SHARES = frozenset({"accuracy", "macro_f1"})


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
class TableRow:
    """One line of the table; ``n`` of its ``seeds`` are finished.

    ``reported`` are figures that somebody published for it, taken on ``split``, and ``derived`` is the overall
    score that follows from them; rounding moves a printed one from it by ``slack`` at most.
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
    derived: float | None = None
    slack: float = 0.0

    @property
    def complete(self) -> bool:
        return self.n == len(self.seeds)

    @property
    def follows(self) -> bool | None:
        """Whether the reported overall follows from the reported parts; None where that is not known."""
        if self.derived is None or "overall" not in self.reported:
            return None
        return abs(self.reported["overall"] - self.derived) <= self.slack + 1e-9  # the parts are binary fractions

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
    rows: tuple[TableRow, ...]
    baseline: str | None
    notes: tuple[str, ...] = ()

    @cached_property
    def reported(self) -> frozenset[str]:
        """The columns for which some row has a published figure."""
        return frozenset(name for row in self.rows for name in row.reported)

    @property
    def begun(self) -> bool:
        """Whether any cell was ever started."""
        return any(row.n or any(one.status != "planned" for one in row.missing) for row in self.rows)

    def delta(self, row: TableRow, column: str) -> float | None:
        """How far the row's mean is above the baseline's."""
        ours = row.figures[column].mean
        theirs = next((other.figures[column].mean for other in self.rows if other.label == self.baseline), None)
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
    stated = {cell["label"]: cell for cell in grid.spec.get("cells") or ()}
    return Table(
        name=grid.name,
        columns=columns,
        digits=asked.get("digits", 3),
        rows=tuple(_row(label, cells, columns, stated.get(label, {}), printed) for label, cells in places.items()),
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


def _row(
    label: str, places: list[GridCell], columns: tuple[str, ...], stated: Mapping[str, Any], printed: int
) -> TableRow:
    """One row: ``stated`` is what the grid's JSON says of it, ``printed`` the digits of the published figures."""
    finished = [place.cell for place in places if place.cell.status == "finished"]
    values = {column: [_value(cell, column) for cell in finished] for column in columns}
    derived, slack = derive_overall(places[0].reported, columns, places[0].cell.spec, printed)
    return TableRow(
        label=label,
        seeds=tuple(place.seed for place in places),
        n=len(finished),
        figures={column: Figure(tuple(x for x in values[column] if x is not None)) for column in columns},
        reported=dict(places[0].reported),
        missing=tuple(missing for place in places for missing in _missing(place, columns)),
        split=stated.get("split", "dev"),
        reported_train=stated.get("reported_train", {}),
        note=stated.get("note", ""),
        derived=derived,
        slack=slack,
    )


def _value(cell: CellRecord, column: str) -> float | None:
    own = {"seconds": cell.seconds, "memory": cell.peak_memory}
    value = own[column] if column in own else cell.scores.get(column)
    return value if value is not None and math.isfinite(value) else None


def _missing(place: GridCell, columns: tuple[str, ...]) -> Iterable[Missing]:
    cell = place.cell
    if cell.status != "finished":
        yield Missing(place.seed, cell.status, format_state(cell.status, cell.reason, cell.epochs))
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


def derive_overall(
    reported: Mapping[str, float], tasks: Iterable[str], spec: Mapping[str, Any], digits: int
) -> tuple[float | None, float]:
    """The overall score of a row by the run's rule, and how far rounding can have moved a printed one from it.

    None where parts are missing or a metric is of unknown kind.

    overall = Σᵢ wᵢ sᵢ + c: with T tasks wᵢ is 1/T, and 1/(2T) for a correlation that is normalised. A figure printed
    with k digits is off by at most h = ½ · 10⁻ᵏ, each part moves the sum by up to wᵢ h, and the printed overall is off
    by h itself; so a printed overall follows from its parts if it is within h (1 + Σᵢ wᵢ) of their combination.

    >>> spec = {"overall": "mean", "tasks": {"a": {"metric": "accuracy"}, "b": {"metric": "pearson"}}}
    >>> derive_overall({"a": 0.5, "b": 0.25}, ["a", "b"], spec, digits=3)
    (0.375, 0.001)
    """
    parts = spec.get("tasks", {})
    names = [name for name in tasks if name in parts]
    if not names or any(name not in reported for name in names):
        return None, 0.0
    metrics = {name: parts[name].get("metric", "accuracy") for name in names}
    metrics = {name: metric["name"] if isinstance(metric, Mapping) else metric for name, metric in metrics.items()}
    normalised = spec.get("overall") == "normalised"
    if normalised and not set(metrics.values()) <= CORRELATIONS | SHARES:
        return None, 0.0
    value, weights = 0.0, 0.0
    for name in names:
        mapped = normalised and metrics[name] in CORRELATIONS
        weights += (0.5 if mapped else 1.0) / len(names)
        value += ((reported[name] + 1) / 2 if mapped else reported[name]) / len(names)
    return value, 0.5 * 10.0**-digits * (1 + weights)


def printed_digits(figures: Iterable[float]) -> int:
    """With how many digits figures were printed: the most that any has, since a number drops its trailing zeros.

    >>> printed_digits([0.5, 0.25, 1])
    2
    """
    exponents = (Decimal(str(figure)).normalize().as_tuple().exponent for figure in figures)
    return max((-exponent for exponent in exponents if isinstance(exponent, int)), default=0)
