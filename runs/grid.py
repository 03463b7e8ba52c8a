"""A grid file → the runs it stands for."""

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from taskloom.core.errors import Problem, RequestError, unknown
from taskloom.core.specs import GridSpec, RunSpec, plain
from taskloom.registry.manager import packaged_grids
from taskloom.registry.problems import problems_of
from taskloom.runs.paths import PathError, assign, matches

#: A grid of more cells than this is more likely a slip than a wish.
LARGE = 10_000


@dataclass(frozen=True)
class Grid:
    """A grid as it was found: its name, where it lies, and what it says."""

    name: str
    path: Path
    spec: GridSpec
    raw: dict[str, Any]


@dataclass(frozen=True)
class Variant:
    """One row of the table before seeds: its label and the run it stands for."""

    label: str
    spec: dict[str, Any]
    reported: dict[str, float] = field(default_factory=dict)


def load_grid(source: str) -> Grid:
    """Read a grid by the name of a packaged one or by the path of a JSON file."""
    packaged = packaged_grids()
    if source in packaged and packaged[source].conflict:
        raise RequestError(source, [Problem("", packaged[source].conflict)])
    path = packaged[source].path if source in packaged else Path(source).expanduser()
    if path.is_dir() or not path.exists():
        what = "is a folder, not a file" if path.is_dir() else "is no file"
        hint = unknown("packaged grid", source, packaged, where="packaged")
        raise RequestError(source, [Problem("", f"{str(path)!r} {what}, and there is {hint}")])
    raw = _read_json(path)
    try:
        spec = GridSpec.model_validate(raw)
    except ValidationError as error:
        raise RequestError(str(path), problems_of(error, GridSpec)) from None
    return Grid(spec.name or _name_of(path), path, spec, raw)


def _name_of(path: Path) -> str:
    name = path.stem
    try:
        GridSpec(name=name, base="")
    except ValidationError:
        message = (
            f"a grid's name is its file's, and {name!r} cannot be one: it should start with a letter or digit and "
            'go on with letters, digits, ".", "_" or "-". Rename the file or set "name".'
        )
        raise RequestError(str(path), [Problem("name", message)]) from None
    return name


def _read_json(path: Path) -> dict[str, Any]:
    def refuse(message: str) -> RequestError:
        return RequestError(str(path), [Problem("", message)])

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen = dict(pairs)
        if len(seen) < len(pairs):
            twice = sorted({key for key, _ in pairs if sum(key == other for other, _ in pairs) > 1})
            raise refuse(f"the key {twice[0]!r} stands twice in one object; keep one of them")
        return seen

    def no_constant(text: str) -> float:
        raise refuse(f"{text} is no JSON number")

    try:
        raw = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=unique, parse_constant=no_constant)
    except json.JSONDecodeError as error:
        raise refuse(f"no JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except (OSError, UnicodeDecodeError, RecursionError) as error:
        raise refuse(f"cannot be read: {error}") from None
    if not isinstance(raw, dict):
        raise refuse(f"a grid should be a JSON object. Found {type(raw).__name__}.")
    return raw


def expand(grid: Grid, *, allow_large: bool = False) -> list[Variant]:
    """The grid's variants in table order: the product of its axes, then its explicit cells.

    Every problem of the grid's form is raised together in one ``RequestError``.
    """
    spec, problems = grid.spec, list[Problem]()
    base = _base(grid)
    choices = _choices(spec, problems)
    wanted = (math.prod(len(axis) for axis in choices) + len(spec.cells)) * len(spec.seeds)
    if wanted > LARGE and not allow_large:
        text = f"the grid has {wanted:,} cells, more than {LARGE:,}; pass --yes if that is meant"
        raise RequestError(str(grid.path), [Problem("axes", text)])
    _check_paths(base, spec, problems)
    if problems:
        raise RequestError(str(grid.path), problems)

    variants: list[Variant] = []
    if choices or not spec.cells:
        for combination in itertools.product(*choices):
            settings = {path: value for choice in combination for path, value in choice.settings.items()}
            run = _apply(base, settings)
            if not any(_excluded(run, entry) for entry in spec.exclude):
                label = ", ".join(choice.label for choice in combination) or "base"
                variants.append(Variant(label, run))
    variants += [Variant(cell.label, _apply(base, cell.set), dict(cell.reported)) for cell in spec.cells]
    problems += _check_labels(variants, spec)
    if problems:
        raise RequestError(str(grid.path), problems)
    return variants


def _base(grid: Grid) -> dict[str, Any]:
    """The base run with every default of the specs filled in."""
    raw, seen, path = grid.spec.base, [grid.name], grid.path
    while isinstance(raw, str):
        packaged = packaged_grids()
        if raw not in packaged:
            raise RequestError(str(path), [Problem("base", unknown("packaged grid", raw, packaged, where="packaged"))])
        if packaged[raw].conflict:
            raise RequestError(str(path), [Problem("base", packaged[raw].conflict)])
        if raw in seen and path == packaged[raw].path:
            raise RequestError(str(path), [Problem("base", f"the grids {' → '.join([*seen, raw])} go in a circle")])
        seen.append(raw)
        path = packaged[raw].path
        raw = _read_json(path).get("base", {})
    try:
        return dict(plain(RunSpec.model_validate(raw)))
    except ValidationError as error:
        raise RequestError(str(grid.path), problems_of(error, RunSpec, "base")) from None


@dataclass(frozen=True)
class _Choice:
    """One value of an axis, or one step of a zip: what it is called and what it sets."""

    label: str
    settings: dict[str, Any]


def _choices(spec: GridSpec, problems: list[Problem]) -> list[list[_Choice]]:
    choices = [
        [_Choice(label, {path: value}) for label, value in _labelled(path, axis)] for path, axis in spec.axes.items()
    ]
    for place, group in enumerate(spec.zip):
        sizes = {path: len(axis) for path, axis in group.items()}
        if len(set(sizes.values())) != 1:
            found = ", ".join(f"{path} {size}" for path, size in sizes.items()) or "nothing"
            problems.append(Problem(f"zip.{place}", f"axes that move together should be equally long. Found {found}."))
            continue
        columns = [_labelled(path, axis) for path, axis in group.items()]
        choices.append(
            [
                _Choice(
                    ", ".join(dict.fromkeys(label for label, _ in row)),
                    {path: value for path, (_, value) in zip(group, row, strict=True)},
                )
                for row in zip(*columns, strict=True)
            ]
        )
    return choices


def _labelled(path: str, axis: Sequence[Any] | Mapping[str, Any]) -> list[tuple[str, Any]]:
    if isinstance(axis, Mapping):
        return list(axis.items())
    return [(_label(path, value), value) for value in axis]


def _label(path: str, value: Any) -> str:
    """``pcgrad``, ``pcgrad(reduction=sum)``, ``lr=0.001``: what a reader of the table needs to tell rows apart."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and isinstance(value.get("name"), str):
        options = ", ".join(f"{key}={_short(item)}" for key, item in value.items() if key != "name")
        return f"{value['name']}({options})" if options else value["name"]
    last = [part for part in path.split(".") if part != "*" and not part.isdigit()][-1:]
    return f"{''.join(last)}={_short(value)}"


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _paths(spec: GridSpec) -> Iterator[tuple[str, str, list[Any]]]:
    """Where a path stands in the grid, the path, and the values it is given there."""
    for path, axis in spec.axes.items():
        yield f"axes.{path}", path, [value for _, value in _labelled(path, axis)]
    for place, group in enumerate(spec.zip):
        for path, axis in group.items():
            yield f"zip.{place}.{path}", path, [value for _, value in _labelled(path, axis)]
    for place, cell in enumerate(spec.cells):
        for path, value in cell.set.items():
            yield f"cells.{place}.set.{path}", path, [value]


def _check_paths(base: dict[str, Any], spec: GridSpec, problems: list[Problem]) -> None:
    """Every path must lead somewhere once all values that the grid may set before it are in place."""
    for where, path, values in _paths(spec):
        if path.split(".")[0] == "seed":
            problems.append(Problem(where, 'the seed is no axis; list seeds under "seeds"'))
            continue
        trial = deepcopy(base)
        for _, other, options in _paths(spec):
            # Longer paths may lead into what a shorter one brings: a task that only the grid adds.
            if path.startswith(f"{other}.") and options:
                _try_assign(trial, other, options[0])
        for value in values:
            try:
                assign(deepcopy(trial), path, value)
            except PathError as error:
                problems.append(Problem(where, str(error)))
                break
    for place, entry in enumerate(spec.exclude):
        for path in entry:
            try:
                matches(base, path, None)
            except PathError as error:
                problems.append(Problem(f"exclude.{place}.{path}", str(error)))


def _try_assign(run: dict[str, Any], path: str, value: Any) -> None:
    try:
        assign(run, path, value)
    except PathError:
        return  # reported where that path itself is checked


def _apply(base: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The base with values laid over it, outer paths before inner ones."""
    run = deepcopy(base)
    for path in sorted(settings, key=lambda path: path.count(".")):
        assign(run, path, deepcopy(settings[path]))
    return run


def _excluded(run: dict[str, Any], entry: Mapping[str, Any]) -> bool:
    try:
        return all(matches(run, path, value) for path, value in entry.items())
    except PathError:
        return False  # this variant lacks the place altogether, say a second stage


def _check_labels(variants: Sequence[Variant], spec: GridSpec) -> list[Problem]:
    problems: list[Problem] = []
    labels = [variant.label for variant in variants]
    if not labels:
        problems.append(Problem("exclude", "the grid is empty: every cell is excluded"))
    for label in dict.fromkeys(label for label in labels if labels.count(label) > 1):
        text = f"two rows would be called {label!r}; give the axis an object from label to value"
        problems.append(Problem("axes", text))
    if spec.baseline is not None and spec.baseline not in labels:
        problems.append(Problem("baseline", unknown("row", spec.baseline, labels, where="rows")))
    if len(set(spec.seeds)) < len(spec.seeds):
        problems.append(Problem("seeds", f"each seed should stand once. Found {list(spec.seeds)}."))
    return problems
