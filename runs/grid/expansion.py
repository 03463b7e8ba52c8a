"""Expand a grid into its runs, one per row of its table."""

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from taskloom.core.errors import Problem, shortened, unknown
from taskloom.core.specs import LONGEST_LABEL, AxisSpec, GridSpec, RunSpec, plain
from taskloom.registry.results.records import metric_column
from taskloom.runs.grid.grid import GridFile, base_of
from taskloom.runs.grid.paths import PathError, assign

#: A grid of more cells than this is more likely a mistake than intended.
LARGE = 10_000
Json = TypeVar("Json")
#: One value of an axis, or one step of a zip: its label, and path → value.
Choice = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Trial:
    """Settings that a search tries a row with: path → value, counted from 1.

    ``seed`` is that of the row whose search it belongs to, None if one search serves all seeds of the row.
    """

    row: str
    seed: int | None
    number: int
    settings: dict[str, Any]


@dataclass(frozen=True)
class Variant:
    """One row of the table before seeds: its label and its run.

    A row that is not ``chosen`` stays in the table and is not run. One that the grid lists as a cell is ``explicit``
    and never excluded. ``problems`` are settings whose
    path does not exist. ``over`` is what the search also varies in this row, ``trial`` says that it is a trial of a
    search, and ``seeds`` are its own if they are not those of the grid.
    """

    label: str
    spec: dict[str, Any]
    reported: dict[str, float] = field(default_factory=dict)
    chosen: bool = True
    explicit: bool = False
    problems: tuple[Problem, ...] = ()
    over: Mapping[str, Any] = field(default_factory=dict)
    trial: Trial | None = None
    seeds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Expansion:
    """The rows of a grid in table order, the problems of the grid as a whole, and notes for the user."""

    grid: GridFile
    variants: list[Variant]
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def expand(grid: GridFile, *, allow_large: bool = False) -> Expansion:
    """The product of the grid's axes, then its explicit cells. The plan applies ``exclude``."""
    spec = grid.spec
    base, wrong = base_of(grid)
    problems = [*grid.problems, *wrong]
    groups = [("axes", {path: axis}) for path, axis in spec.axes.items()]
    groups += [(f"zip.{index}", group) for index, group in enumerate(spec.zip)]
    grid_paths = {path: f"{home}.{path}" for home, group in groups for path in group}
    problems += _overlaps([(f"{home}.{path}", path) for home, group in groups for path in group])
    for home, group in groups:
        sizes = {path: len(axis) for path, axis in group.items()}
        if len(set(sizes.values())) != 1:
            lengths = ", ".join(f"{path} {size}" for path, size in sizes.items()) or "nothing"
            problems.append(Problem(home, f"axes that move together should be equally long. Found {lengths}."))
    axes = [axis for _, group in groups if (axis := _choices(group))]
    cell_count = (math.prod(len(axis) for axis in axes) + len(spec.cells)) * len(spec.seeds)
    if cell_count > LARGE and not allow_large:
        text = f"the grid has {cell_count:,} cells, more than {LARGE:,}; pass --yes if that is meant"
        problems.append(Problem("axes", text))
        axes = [axis[:1] for axis in axes]  # enough to find other problems
    variants: list[Variant] = []
    if axes or not spec.cells:
        for choices in itertools.product(*axes):
            settings = {path: setting for _, choice in choices for path, setting in choice.items()}
            label = ", ".join(label for label, _ in choices) or "base"
            variants.append(_variant(label, base, settings, grid_paths))
    product = {variant.label: index for index, variant in enumerate(variants)}
    for index, cell in enumerate(spec.cells):
        grid_paths = {path: f"cells.{index}.set.{path}" for path in cell.set}
        listed = _variant(cell.label, base, cell.set, grid_paths)
        over = cell.search.over if cell.search is not None else {}
        listed = replace(listed, reported=dict(cell.reported), explicit=True, over=over)
        if cell.label in product and _is_same_run(variants[product[cell.label]], listed):
            variants[product.pop(cell.label)] = listed  # the axes have this row, too
        else:
            variants.append(listed)
    problems += _label_problems(variants, spec)
    return Expansion(grid, variants, list(dict.fromkeys(problems)))


def _variant(label: str, base: dict[str, Any], settings: Mapping[str, Any], grid_paths: Mapping[str, str]) -> Variant:
    """Apply settings to the base, outer paths before inner ones; ``grid_paths`` say where the grid sets each path."""
    run, problems = copied(base), list[Problem]()
    for path in sorted(settings, key=lambda path: path.count(".")) if base else ():
        try:
            assign(run, path, copied(settings[path]))
        except PathError as error:
            problems.append(Problem(grid_paths[path], str(error)))
    return Variant(label, run, problems=tuple(problems))


def _is_same_run(variant: Variant, other: Variant) -> bool:
    """Whether two rows are the same run, in whichever form their components are written."""
    try:
        return plain(RunSpec.model_validate(variant.spec)) == plain(RunSpec.model_validate(other.spec))
    except ValidationError:  # the plan reports it
        return False


def copied(value: Json) -> Json:
    """A copy of a JSON value, faster than ``deepcopy``."""
    copy: Json = from_json(to_json(value))
    return copy


def _choices(group: Mapping[str, AxisSpec]) -> list[Choice]:
    """Axes that move together as one axis, as long as the shortest of them."""
    labelled = [
        [*axis.items()] if isinstance(axis, Mapping) else [(_label(path, setting), setting) for setting in axis]
        for path, axis in group.items()
    ]
    rows = [zip(*row, strict=True) for row in zip(*labelled, strict=False)]
    return [(", ".join(dict.fromkeys(labels)), dict(zip(group, values, strict=True))) for labels, values in rows]


def _label(path: str, value: Any) -> str:
    """``pcgrad``, ``pcgrad(reduction=sum)``, ``lr=0.001``: the part of a label that distinguishes rows."""
    if isinstance(value, str) or (isinstance(value, dict) and isinstance(value.get("name"), str)):
        return shortened(in_words(value), LONGEST_LABEL)
    return shortened(with_name(path, value), LONGEST_LABEL)


def with_name(path: str, value: Any) -> str:
    """A setting as a label shows it, after the last name in its path.

    >>> with_name("stages.0.optimizer.lr", 0.001)
    'lr=0.001'
    """
    last = [part for part in path.split(".") if part != "*" and not part.isdigit()][-1:]
    return f"{''.join(last)}={in_words(value)}"


def in_words(value: Any) -> str:
    """A setting as a label shows it.

    >>> in_words("sum"), in_words({"name": "pcgrad", "reduction": "sum"}), in_words(0.001)
    ('sum', 'pcgrad(reduction=sum)', '0.001')
    """
    if isinstance(value, dict) and isinstance(value.get("name"), str):
        options = ", ".join(f"{key}={_short(option)}" for key, option in value.items() if key != "name")
        return f"{value['name']}({options})" if options else value["name"]
    return _short(value)


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _overlaps(axes: Sequence[tuple[str, str]]) -> Iterator[Problem]:
    """Two axes that set the same path: the second would undo the first, and labels would be wrong."""
    for (_, path), (where, other_path) in itertools.combinations(axes, 2):
        steps = list(zip(path.split("."), other_path.split("."), strict=False))
        if path.count(".") == other_path.count(".") and all(a == b or "*" in (a, b) for a, b in steps):
            yield Problem(where, f"sets the same place as {path}, and would undo it; leave out one of them")


def _label_problems(variants: Sequence[Variant], spec: GridSpec) -> list[Problem]:
    problems: list[Problem] = []
    labels = [variant.label for variant in variants]
    counts = Counter(labels)
    listed = {cell.label for cell in spec.cells}
    for label in (label for label, count in counts.items() if count > 1):
        cure = "give a cell another label" if label in listed else "give the axis an object from label to value"
        problems.append(Problem("cells" if label in listed else "axes", f"two rows would be called {label!r}; {cure}"))
    if spec.baseline is not None and spec.baseline not in labels:
        problems.append(Problem("baseline", unknown("row", spec.baseline, labels, where="rows")))
    return [*problems, *_claim_problems(variants, spec)]


def score_columns(variants: Iterable[Variant]) -> list[str]:
    """The columns of tasks, each followed by those of its further metrics; specifications need not be valid yet."""
    columns: dict[str, None] = {}
    for task, further in further_metrics(variant.spec for variant in variants).items():
        columns |= dict.fromkeys((task, *(metric_column(task, name) for name in further)))
    return list(columns)


def further_metrics(runs: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Task → its metrics after the first, by name; options are those of the first run that has the metric."""
    metrics_of: dict[str, dict[str, Any]] = {}
    for tasks in (run.get("tasks") for run in runs):
        for name, task in tasks.items() if isinstance(tasks, dict) else ():
            metrics = task.get("metric") if isinstance(task, dict) else None
            listed = metrics_of.setdefault(name, {})
            for metric in metrics[1:] if isinstance(metrics, list) else ():
                listed.setdefault(str(metric.get("name") if isinstance(metric, dict) else metric), metric)
    return metrics_of


def _claim_problems(variants: Sequence[Variant], spec: GridSpec) -> Iterator[Problem]:
    labels = [variant.label for variant in variants]
    columns = ["overall", *score_columns(variants)]
    for number, claim in enumerate(spec.claims):
        path = f"claims.{number}"
        for key in ("better", "equal", "than"):
            for row in getattr(claim, key) or ():
                if row not in labels:
                    yield Problem(f"{path}.{key}", unknown("row", row, labels, where="rows"))
        for row, other in zip(claim.rows, claim.than, strict=True):
            if row == other:
                yield Problem(f"{path}.than", f"a claim should be about two rows. Found {row!r} twice.")
        if claim.on not in columns:
            yield Problem(f"{path}.on", unknown("column", claim.on, columns, where="columns"))
