"""A grid → the runs it stands for, one per row of its table."""

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from taskloom.core.errors import Problem, unknown
from taskloom.core.specs import AxisSpec, GridSpec, RunSpec, plain
from taskloom.registry.results.records import Change, metric_column
from taskloom.runs.grid.grid import GridFile, base_of
from taskloom.runs.grid.paths import PathError, assign

#: A grid of more cells than this is more likely a slip than intended.
LARGE = 10_000
Json = TypeVar("Json")
#: One value of an axis, or one step of a zip: its label, and path → value.
Choice = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Variant:
    """One row of the table before seeds: its label and the run it stands for.

    A row that is not ``chosen`` keeps its place in the table and is not run. One that the grid lists as a cell is
    ``explicit`` and never excluded. ``beside`` is the row of the grid that a changed one stands beside. ``problems``
    are settings that lead nowhere.
    """

    label: str
    spec: dict[str, Any]
    reported: dict[str, float] = field(default_factory=dict)
    chosen: bool = True
    explicit: bool = False
    beside: str = ""
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class Expansion:
    """The rows of a grid in table order, what is wrong with the grid as a whole, and what the user may not expect.

    ``changes`` are what its changed rows were made with; ``is_changed`` says that this run is about some of those.
    """

    grid: GridFile
    variants: list[Variant]
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    changes: tuple[Change, ...] = ()
    is_changed: bool = False


def expand(grid: GridFile, *, allow_large: bool = False) -> Expansion:
    """The product of the grid's axes, then its explicit cells. What ``exclude`` leaves out is the plan's to say."""
    spec = grid.spec
    base, wrong = base_of(grid)
    problems = [*grid.problems, *wrong]
    groups = [("axes", {path: axis}) for path, axis in spec.axes.items()]
    groups += [(f"zip.{place}", group) for place, group in enumerate(spec.zip)]
    places = {path: f"{home}.{path}" for home, group in groups for path in group}
    problems += _overlaps([(f"{home}.{path}", path) for home, group in groups for path in group])
    for home, group in groups:
        sizes = {path: len(axis) for path, axis in group.items()}
        if len(set(sizes.values())) != 1:
            found = ", ".join(f"{path} {size}" for path, size in sizes.items()) or "nothing"
            problems.append(Problem(home, f"axes that move together should be equally long. Found {found}."))
    axes = [axis for _, group in groups if (axis := _choices(group))]
    wanted = (math.prod(len(axis) for axis in axes) + len(spec.cells)) * len(spec.seeds)
    if wanted > LARGE and not allow_large:
        text = f"the grid has {wanted:,} cells, more than {LARGE:,}; pass --yes if that is meant"
        problems.append(Problem("axes", text))
        axes = [axis[:1] for axis in axes]  # enough to find what else is wrong
    variants: list[Variant] = []
    if axes or not spec.cells:
        for choices in itertools.product(*axes):
            settings = {path: value for _, setting in choices for path, value in setting.items()}
            label = ", ".join(label for label, _ in choices) or "base"
            variants.append(_variant(label, base, settings, places))
    product = {variant.label: place for place, variant in enumerate(variants)}
    for place, cell in enumerate(spec.cells):
        places = {path: f"cells.{place}.set.{path}" for path in cell.set}
        listed = _variant(cell.label, base, cell.set, places)
        listed = replace(listed, reported=dict(cell.reported), explicit=True)
        if cell.label in product and _is_same_run(variants[product[cell.label]], listed):
            variants[product.pop(cell.label)] = listed  # one row, which the axes have too
        else:
            variants.append(listed)
    problems += _label_problems(variants, spec)
    return Expansion(grid, variants, list(dict.fromkeys(problems)))


def _variant(label: str, base: dict[str, Any], settings: Mapping[str, Any], places: Mapping[str, str]) -> Variant:
    """The base with values laid over it, outer paths before inner ones; ``places`` say where the grid sets a path."""
    run, problems = copied(base), list[Problem]()
    for path in sorted(settings, key=lambda path: path.count(".")) if base else ():
        try:
            assign(run, path, copied(settings[path]))
        except PathError as error:
            problems.append(Problem(places[path], str(error)))
    return Variant(label, run, problems=tuple(problems))


def _is_same_run(one: Variant, other: Variant) -> bool:
    """Whether two rows are one run, however their components are written."""
    try:
        return plain(RunSpec.model_validate(one.spec)) == plain(RunSpec.model_validate(other.spec))
    except ValidationError:  # the plan says what is wrong
        return False


def copied(value: Json) -> Json:
    """A copy of a JSON value, faster than ``deepcopy``."""
    copy: Json = from_json(to_json(value))
    return copy


def _choices(group: Mapping[str, AxisSpec]) -> list[Choice]:
    """Axes that move together as one axis; unequal ones as far as they go together."""
    labelled = [
        [*axis.items()] if isinstance(axis, Mapping) else [(_label(path, value), value) for value in axis]
        for path, axis in group.items()
    ]
    rows = [zip(*row, strict=True) for row in zip(*labelled, strict=False)]
    return [(", ".join(dict.fromkeys(labels)), dict(zip(group, values, strict=True))) for labels, values in rows]


def _label(path: str, value: Any) -> str:
    """``pcgrad``, ``pcgrad(reduction=sum)``, ``lr=0.001``: what a reader of the table needs to tell rows apart."""
    if isinstance(value, str) or (isinstance(value, dict) and isinstance(value.get("name"), str)):
        return in_words(value)
    last = [part for part in path.split(".") if part != "*" and not part.isdigit()][-1:]
    return f"{''.join(last)}={in_words(value)}"


def in_words(value: Any) -> str:
    """A value as a label shows it.

    >>> in_words("sum"), in_words({"name": "pcgrad", "reduction": "sum"}), in_words(0.001)
    ('sum', 'pcgrad(reduction=sum)', '0.001')
    """
    if isinstance(value, dict) and isinstance(value.get("name"), str):
        options = ", ".join(f"{key}={_short(item)}" for key, item in value.items() if key != "name")
        return f"{value['name']}({options})" if options else value["name"]
    return _short(value)


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _overlaps(axes: Sequence[tuple[str, str]]) -> Iterator[Problem]:
    """Two axes that set the same place: the second would undo the first, and labels would be wrong."""
    for (_, one), (where, other) in itertools.combinations(axes, 2):
        steps = list(zip(one.split("."), other.split("."), strict=False))
        if one.count(".") == other.count(".") and all(a == b or "*" in (a, b) for a, b in steps):
            yield Problem(where, f"sets the same place as {one}, and would undo it; leave out one of them")


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
    """The columns of tasks, each followed by those of its further metrics; specifications may be wrong yet."""
    found: dict[str, None] = {}
    for task, further in further_metrics(variant.spec for variant in variants).items():
        found |= dict.fromkeys((task, *(metric_column(task, name) for name in further)))
    return list(found)


def further_metrics(runs: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Task → the metrics after the first that runs state for it, by name; the first run that has one says how."""
    found: dict[str, dict[str, Any]] = {}
    for tasks in (run.get("tasks") for run in runs):
        for name, task in tasks.items() if isinstance(tasks, dict) else ():
            metrics = task.get("metric") if isinstance(task, dict) else None
            listed = found.setdefault(name, {})
            for metric in metrics[1:] if isinstance(metrics, list) else ():
                listed.setdefault(str(metric.get("name") if isinstance(metric, dict) else metric), metric)
    return found


def _claim_problems(variants: Sequence[Variant], spec: GridSpec) -> Iterator[Problem]:
    labels = [variant.label for variant in variants]
    columns = ["overall", *score_columns(variants)]
    for place, claim in enumerate(spec.claims):
        for key in ("better", "equal", "than"):
            row = getattr(claim, key)
            if row is not None and row not in labels:
                yield Problem(f"claims.{place}.{key}", unknown("row", row, labels, where="rows"))
        if claim.than == (claim.better or claim.equal):
            yield Problem(f"claims.{place}.than", f"a claim should be about two rows. Found {claim.than!r} twice.")
        if claim.on not in columns:
            yield Problem(f"claims.{place}.on", unknown("column", claim.on, columns, where="columns"))
