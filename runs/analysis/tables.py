"""The comparison table of a recorded grid: means and sample sds over seeds, differences to the baseline, verdicts.

It reads records and stored scores only, so a table needs neither torch nor the plugins that its cells ran with.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property, partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from taskloom.core.data import Metric
from taskloom.core.errors import TaskloomError, count, unknown
from taskloom.core.overall import Overall
from taskloom.registry.results.records import OVERRIDES, TUNED, CellRecord, GridCell, GridRecord
from taskloom.registry.results.wording import format_state, named
from taskloom.runs.analysis.checks import checks_of, constants_of, stale_of
from taskloom.runs.analysis.contrasts import ALPHA, Judged, Values, judge
from taskloom.runs.analysis.metrics import fits, metric_class, name_of
from taskloom.runs.analysis.results import OVERALL, Constant, Results
from taskloom.runs.analysis.tuning import chosen_settings

if TYPE_CHECKING:
    from taskloom.runs.analysis.factors import Factor

#: Columns in which less is better; every other column is a score.
COSTS = ("seconds", "memory", "examples", "backwards")


@dataclass(frozen=True)
class Figure:
    """The figures of a row's finished seeds in one column.

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
    """Why a seed of a row lacks some or all of its figures."""

    seed: int
    status: str
    why: str


@dataclass(frozen=True)
class TableRow:
    """One line of the table; ``n`` of its ``seeds`` are finished.

    Its figures are of ``split``. ``reported`` are published figures, measured on ``reported_on``; ``derived`` is the
    overall score computed from them; rounding moves a printed overall from it by ``slack`` at most.
    """

    label: str
    seeds: tuple[int, ...]
    n: int
    figures: dict[str, Figure]
    reported: dict[str, float]
    missing: tuple[Missing, ...]
    split: str = "dev"
    reported_on: str = "dev"
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
        """Our mean less the reported figure; None unless both are of one split."""
        ours = self.figures[column].mean
        if ours is None or column not in self.reported or self.split != self.reported_on:
            return None
        return ours - self.reported[column]


@dataclass(frozen=True)
class Table:
    """A grid's table before it is rendered.

    ``differences`` are those of each row and column to the baseline, also of columns that are not shown: those of the
    overall score are judged as one family, all others as a second; within ``margin`` they are equal. ``primary`` is the
    column whose differences are shown. ``best`` maps a column to the row that is better than every other by the same
    test, if there is one. ``constants`` are the scores of constant predictions in tasks where a row is near them,
    ``floors`` those of every task, to compare published figures with. ``checks`` are computed warnings, ``notes`` those
    of the grid's author, ``tuned`` what its search has chosen, ``settings`` the weights in the overall score and what
    the command line set. Text, page, plot, notebook, JSON and claims render this object.
    """

    name: str
    columns: tuple[str, ...]
    digits: int
    rows: tuple[TableRow, ...]
    baseline: str | None
    notes: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    primary: str = OVERALL
    differences: Mapping[tuple[str, str], Judged] = field(default_factory=dict)
    best: Mapping[str, str] = field(default_factory=dict)
    constants: tuple[Constant, ...] = ()
    floors: Mapping[str, Constant] = field(default_factory=dict)
    checks: tuple[str, ...] = ()
    margin: float | None = None
    tuned: Mapping[str, Any] | None = None

    @property
    def scores(self) -> tuple[str, ...]:
        """The columns that are scores; the others are costs."""
        return tuple(column for column in self.columns if column not in COSTS)

    @cached_property
    def reported(self) -> frozenset[str]:
        """The columns for which some row has a published figure."""
        return frozenset(name for row in self.rows for name in row.reported)

    def no_better(self, row: TableRow) -> list[str]:
        """The columns in which a row's published figure is no better than a constant prediction."""
        return [task for task, floor in self.floors.items() if row.reported.get(task, math.inf) <= floor.score]

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that rows show."""
        return tuple(dict.fromkeys(row.split for row in self.rows))

    @property
    def begun(self) -> bool:
        """Whether any cell was ever started."""
        return any(row.n or any(missing.status != "planned" for missing in row.missing) for row in self.rows)


@dataclass(frozen=True)
class TableRequest:
    """Options of a table beyond its grid's; ``sort`` is a column, ``group_by`` an axis."""

    columns: tuple[str, ...] = ()
    sort: str = ""
    group_by: str = ""


DEFAULT_REQUEST = TableRequest()


def table_of(results: Results, request: TableRequest = DEFAULT_REQUEST) -> Table:
    """Build the table of a grid, with the columns, digits and baseline of its JSON unless the request has others."""
    grid = results.grid
    stated = grid.spec.get("table") or {}
    columns = _columns(results, request, stated.get("columns") or ())
    rows, weights = _rows(results, columns), {row: results.row(row) for row in results.rows}
    baseline = results.baseline
    notes: list[str] = []
    if results.metric is not None:
        fitting = "overall is the mean over the tasks that it fits"
        notes.append(f"Scores are {name_of(results.metric)}, computed from the stored predictions; {fitting}.")
    if request.group_by:
        factor, others = _factor(grid, request.group_by)
        rows, weights, baseline = _grouped(results, columns, factor, rows)
        sizes, unmatched = _group_notes(grid, factor, others)
        notes += [sizes, *unmatched]
        if unmatched:
            baseline, weights = None, {}  # other differences between the rows would be attributed to the axis
    shown = [column for column in columns if column not in COSTS]
    primary = OVERALL if OVERALL in shown else next(iter(shown), OVERALL)
    table = Table(
        name=grid.name,
        columns=columns,
        digits=stated.get("digits", 3),
        rows=tuple(sorted(rows, key=partial(_rank, request.sort)) if request.sort else rows),
        baseline=baseline,
        notes=tuple(grid.spec.get("notes", ())),
        settings=(
            *(_weighted(results, columns) if OVERALL in columns else ()),
            *(f"Run with {line}." for line in grid.spec.get(OVERRIDES, ())),
        ),
        primary=primary,
        margin=results.margin,
        checks=tuple(notes),
        tuned=grid.spec.get(TUNED),
    )
    if not results.finished:
        return replace(table, checks=(*notes, *chosen_settings(results), *stale_of(results)))
    differences = {}
    if baseline is not None and baseline in weights:
        differences = differences_to(results, baseline, weights if request.group_by else None)
    return replace(
        table,
        differences=differences,
        best=_best(results, table, weights, differences),
        constants=tuple(constants_of(results)),
        floors={} if results.metric else results.floors,  # published figures are by the grid's own metrics
        checks=(*notes, *chosen_settings(results), *checks_of(results)),
    )


def _weighted(results: Results, columns: Sequence[str]) -> list[str]:
    """Notes on rows whose tasks have unequal weights in the overall score; another metric counts only tasks it fits."""
    rows: dict[str, list[str]] = {}
    for cell in results.grid.cells:
        tasks, rule = cell.cell.spec.get("tasks", {}), results.overall[cell.label]
        tasks = tasks if results.metric is None else [task for task in tasks if task in columns]
        if len(tasks) > 1 and any(task in tasks for task in rule.weights):
            weights = ", ".join(f"{task} {rule.weights.get(task, 1.0):g}" for task in tasks)
            rows.setdefault(weights, []).append(cell.label)
    every = len({label for labels in rows.values() for label in labels}) == len(results.rows) and len(rows) == 1
    where = {weights: "" if every else f" in {named([*dict.fromkeys(labels)])}" for weights, labels in rows.items()}
    return [f"overall is a weighted mean{where[weights]}: {weights}." for weights in rows]


def differences_to(
    results: Results, baseline: str, weights: Mapping[str, Values] | None = None
) -> dict[tuple[str, str], Judged]:
    """Each row less a baseline, by row and column, judged; with ``weights``, each of those means of the grid's rows.

    Holm's correction covers the rows of the overall score as one family and all other columns as another, whichever
    columns are shown: a family must not be chosen after seeing the figures.
    """
    keys = [(row, column) for column in results.columns for row in weights or results.rows if row != baseline]
    judged: dict[tuple[str, str], Judged] = {}
    for is_first in (True, False):
        family = [key for key in keys if (key[1] == OVERALL) == is_first]
        contrasts = [
            results.scores(column).contrast(weights[row] - weights[baseline])
            if weights
            else results.difference(column, row, baseline)
            for row, column in family
        ]
        judged |= zip(family, judge(contrasts, results.margin), strict=True)
    return judged


def _best(
    results: Results, table: Table, weights: Mapping[str, Values], differences: Mapping[tuple[str, str], Judged]
) -> dict[str, str]:
    """Column → the row that is better than every other, corrected for all comparisons of the family.

    A row with missing seeds does not compete: one lucky seed should not beat the mean of five. A row that is equal to
    the baseline is not better.
    """
    best_rows = {}
    for column in table.scores:
        means = {row.label: row.figures[column].mean for row in table.rows if row.complete}
        ranked = sorted((row for row in means if means[row] is not None), key=lambda row: -(means[row] or 0.0))
        if len(ranked) < 2 or not weights:
            continue
        best, scores = ranked[0], results.scores(column)
        family = [key for key in differences if (key[1] == OVERALL) == (column == OVERALL)]
        comparisons = len(family) or (len(weights) - 1) * len(table.scores)
        compared = ranked if best == table.baseline else [best]
        equal = any(differences[key].verdict == "equal" for row in compared if (key := (row, column)) in differences)
        contrasts = [scores.contrast(weights[best] - weights[other]) for other in ranked[1:]]
        shown = all(contrast.p * comparisons < ALPHA and contrast.seeds > 1 for contrast in contrasts)
        if not equal and shown and not any(contrast.untrained == "all" for contrast in contrasts):
            best_rows[column] = best
    return best_rows


def _rank(column: str, row: TableRow) -> float:
    """The sort key of a row by a column: the best first, rows without a figure last."""
    mean = row.figures[column].mean
    return math.inf if mean is None else mean if column in COSTS else -mean


def _factor(grid: GridRecord, axis: str) -> tuple["Factor", list["Factor"]]:
    """The axis of a grid whose path is, or ends in, ``axis``; and the other axes."""
    from taskloom.runs.analysis.factors import factors_of  # imports pydantic, which a plain table does not need

    factors = factors_of(grid)
    for factor in factors:
        if any(path == axis or path.endswith(f".{axis}") for path in factor.paths):
            return factor, [other for other in factors if other is not factor]
    paths = [path for factor in factors for path in factor.paths]
    raise TaskloomError(unknown("axis", axis, paths, where=f"axes of {grid.name}"))


def _grouped(
    results: Results, columns: Sequence[str], factor: "Factor", rows: Sequence[TableRow]
) -> tuple[list[TableRow], dict[str, Values], str]:
    """One row per level of an axis: the mean over its rows, seed by seed; a seed that any of them lacks is missing."""
    weights, groups = {}, []
    for number, level in enumerate(factor.levels):
        members = [row for row in rows if factor.of_row[row.label] == number]
        weights[level] = sum((results.row(row.label) for row in members), np.zeros(len(results.rows))) / len(members)
        figures = {}
        for column in columns:
            values = [_values(results, row.label, column) for row in members]
            means = [fmean(of_seed) for of_seed in zip(*values, strict=True) if all(map(math.isfinite, of_seed))]
            figures[column] = Figure(tuple(means))
        missing = tuple(
            replace(missing, why=f"{row.label!r}: {missing.why}") for row in members for missing in row.missing
        )
        n = max((len(figure.values) for figure in figures.values()), default=0)
        groups.append(TableRow(level, results.seeds, n, figures, {}, missing))
    return groups, weights, factor.levels[0]


def _group_notes(grid: GridRecord, factor: "Factor", others: Sequence["Factor"]) -> tuple[str, list[str]]:
    """A note on the rows behind each mean, and a warning if the levels' rows differ in more than the axis."""
    members: list[list[tuple[int, ...]]] = [[] for _ in factor.levels]
    for label, level in factor.of_row.items():
        members[level].append(tuple(other.of_row[label] for other in others))
    sizes = [f"{count(len(rows), 'row')} for {level}" for level, rows in zip(factor.levels, members, strict=True)]
    unmatched = [
        f"These rows differ in more than {factor.name}, so they are not compared; `taskloom effects {grid.name}` "
        "compares matched rows."
    ]
    matched = all(sorted(rows) == sorted(members[0]) for rows in members)
    return f"Means over rows, seed by seed: {', '.join(sizes)}.", [] if matched else unmatched


def _columns(results: Results, request: TableRequest, stated: Sequence[str]) -> tuple[str, ...]:
    """The columns to show: the requested ones, or the grid's, or all that have a score."""
    grid, metric = results.grid, results.metric
    tasks = dict.fromkeys(task for cell in grid.cells for task in cell.cell.spec.get("tasks", {}))
    if metric is not None and results.classes:
        tasks = {task: None for task in tasks if task in results.classes and fits(metric, results.classes[task])}
        if not tasks:
            raise TaskloomError(_unfit(results, metric))
    known = (*results.with_further(tasks), OVERALL, *COSTS)
    for column in request.columns:
        if column not in known:
            raise TaskloomError(unknown("column", column, known, where=f"columns of {grid.name}"))
    chosen = request.columns or [column for column in stated if metric is None or column in known]
    default = (*results.with_further(_scored_tasks(grid) if metric is None else tasks), OVERALL, "seconds")
    columns = tuple(chosen or default)
    if request.sort and request.sort not in columns:
        raise TaskloomError(unknown("column", request.sort, columns, where="this table can be sorted by"))
    return tuple(dict.fromkeys(columns))


def _unfit(results: Results, metric: Metric) -> str:
    """The message that a metric fits the labels of no task."""
    has = {task: count(number, "class") if number else "values" for task, number in results.classes.items()}
    listed = ", ".join(f"{task} has {kind}" for task, kind in has.items())
    return f"{name_of(metric)} fits no task of {results.grid.name}: {listed}"


def _scored_tasks(grid: GridRecord) -> Iterable[str]:
    """The tasks that have a score or may still get one."""
    cells = [row.cell for row in grid.cells]
    for task in dict.fromkeys(task for cell in cells for task in cell.spec.get("tasks", {})):
        concerned = [cell for cell in cells if task in cell.spec["tasks"]]
        scored = any(task in cell.scores for cell in concerned)
        if scored or not any(cell.status == "finished" for cell in concerned):
            yield task  # a pretraining task without dev labels never gets a score and needs no column


def _rows(results: Results, columns: Sequence[str]) -> list[TableRow]:
    """A row per label."""
    cells_of: dict[str, list[GridCell]] = {}
    for cell in results.grid.cells:
        cells_of.setdefault(cell.label, []).append(cell)
    printed = printed_digits(figure for cell in results.grid.cells for figure in cell.reported.values())
    return [_row(results, label, cells, columns, results.stated(label), printed) for label, cells in cells_of.items()]


def _row(
    results: Results,
    label: str,
    cells: list[GridCell],
    columns: Sequence[str],
    stated: Mapping[str, Any],
    printed: int,
) -> TableRow:
    """One row: ``stated`` is its entry in the grid's JSON, ``printed`` the digits of the published figures."""
    derived, slack = derive_overall(cells[0].reported, columns, cells[0].cell.spec, printed)
    return TableRow(
        label=label,
        seeds=tuple(cell.seed for cell in cells),
        n=sum(cell.cell.status == "finished" and bool(results.final_scores(label, cell.cell)) for cell in cells),
        figures={column: Figure(tuple(filter(math.isfinite, _values(results, label, column)))) for column in columns},
        reported=dict(cells[0].reported),
        missing=tuple(dict.fromkeys(missing for cell in cells for missing in _missing(results, cell, columns))),
        split=results.split_of(label),
        reported_on=stated.get("split", "dev"),
        reported_train=stated.get("reported_train", {}),
        note=stated.get("note", ""),
        derived=derived,
        slack=slack,
    )


def _values(results: Results, label: str, column: str) -> list[float]:
    """The figures of a row's seeds; NaN where one is missing."""
    if column in COSTS:
        cells = (results.finished.get((label, seed)) for seed in results.seeds)
        return [math.nan if cell is None else cost_of(cell, column) for cell in cells]
    scores: list[float] = results.scores(column).values[results.row_index[label]].tolist()
    return scores


def cost_of(cell: CellRecord, column: str) -> float:
    """A cost of a finished cell: seconds, bytes, examples seen or backward passes; NaN if unknown."""
    costs = {"seconds": cell.seconds, "memory": cell.peak_memory, **cell.costs}
    cost = costs.get(column)
    return math.nan if cost is None else float(cost)


def _missing(results: Results, row: GridCell, columns: Sequence[str]) -> Iterable[Missing]:
    cell = row.cell
    if cell.status != "finished":
        yield Missing(row.seed, cell.status, format_state(cell.status, cell.reason, cell.epochs))
        return
    scores, split = results.final_scores(row.label, cell), results.split_of(row.label)
    for column in columns:
        if column in scores and not math.isfinite(scores[column]):
            why = results.broken.get(column, f"{column} is {scores[column]:g}")
            yield Missing(row.seed, cell.status, why)
        elif column in scores or (column in COSTS and math.isfinite(cost_of(cell, column))):
            continue
        elif column in (*COSTS, OVERALL) or (task := column.partition(":")[0]) in cell.spec.get("tasks", {}):
            why = results.why_unscored(cell, column, split) if column not in COSTS else f"{column} was not measured"
            if column in results.further or (results.metric is not None and column not in COSTS):
                why = results.broken.get(column, "its predictions are not in the registry")
            yield Missing(row.seed, cell.status, why)
        else:
            yield Missing(row.seed, cell.status, f"has no task {task!r}")


def derive_overall(
    reported: Mapping[str, float], tasks: Iterable[str], spec: Mapping[str, Any], digits: int
) -> tuple[float | None, float]:
    """Compute a row's overall score by the run's rule, and how far rounding may move a printed one from it.

    The score is None if parts are missing or a metric that is to be normalised is not installed.

    overall = Σᵢ wᵢ sᵢ + c: wᵢ is the task's share, 1/T of T tasks without weights, and half of it for a correlation
    that is normalised. A figure printed with k digits is off by at most h = ½ · 10⁻ᵏ, each part moves the sum by up
    to wᵢ h, and the printed overall is off by h itself; so a printed overall follows from its parts if it is within
    h (1 + Σᵢ wᵢ) of their combination.

    >>> spec = {"overall": "mean", "tasks": {"a": {"metric": "accuracy"}, "b": {"metric": "pearson"}}}
    >>> derive_overall({"a": 0.5, "b": 0.25}, ["a", "b"], spec, digits=3)
    (0.375, 0.001)
    """
    parts, rule = spec.get("tasks", {}), Overall.of(spec)
    names = list(rule.shares(name for name in tasks if name in parts))
    if any(name not in reported for name in names):
        return None, 0.0
    correlations = []
    for name in names if rule.normalised else ():  # it maps correlations to (r + 1)/2
        metric = metric_class(_first_metric(parts[name]))
        if metric is None:
            return None, 0.0
        correlations += [name] if metric.correlation else []
    overall = rule.score({name: reported[name] for name in names}, correlations)
    return overall, 0.5 * 10.0**-digits * (1 + sum(rule.slopes(names, correlations).values()))


def _first_metric(task: Mapping[str, Any]) -> str:
    """The name of the metric that is a task's score, in any form that a task may be written in."""
    from taskloom.core.specs import TaskSpec

    metric = task.get("metric", TaskSpec.model_fields["metric"].default[0].name)
    metric = metric[0] if isinstance(metric, list) else metric
    return str(metric["name"] if isinstance(metric, Mapping) else metric)


def printed_digits(figures: Iterable[float]) -> int:
    """The number of digits that figures were printed with: the most of any, since numbers lose trailing zeros.

    >>> printed_digits([0.5, 0.25, 1])
    2
    """
    exponents = (Decimal(str(figure)).normalize().as_tuple().exponent for figure in figures)
    return max((-exponent for exponent in exponents if isinstance(exponent, int)), default=0)
