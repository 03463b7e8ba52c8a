"""A grid file → the runs it stands for."""

import itertools
import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from taskloom.core.errors import Problem, RequestError, unknown
from taskloom.core.specs import GridSpec, RunSpec, plain
from taskloom.core.words import show
from taskloom.registry.installed.manager import packaged_grids
from taskloom.runs.grid.lenient import read
from taskloom.runs.grid.paths import PathError, assign

#: A grid of more cells than this is more likely a slip than a wish.
LARGE = 10_000


@dataclass(frozen=True)
class Grid:
    """A grid as it was found: its name, where it lies, and what it says.

    ``problems`` are those of its form. Where there are any, ``spec`` is what the rest of it says, so that a plan can
    report everything at once.
    """

    name: str
    path: Path
    spec: GridSpec
    raw: dict[str, Any]
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class Variant:
    """One row of the table before seeds: its label and the run it stands for.

    ``settings`` is what the grid lays over its base for this row. A row that is not ``chosen`` keeps its place in
    the table and is not run. One that the grid lists as a cell is ``explicit`` and never excluded. ``problems`` are
    settings that lead nowhere.
    """

    label: str
    spec: dict[str, Any]
    reported: dict[str, float] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    chosen: bool = True
    explicit: bool = False
    problems: tuple[Problem, ...] = ()


def load_grid(source: str) -> Grid:
    """Read a grid by the name of a packaged one or by the path of a JSON file."""
    packaged = packaged_grids()
    if source in packaged and packaged[source].conflict:
        raise RequestError(source, [Problem("", packaged[source].conflict)])
    path = packaged[source].path if source in packaged else Path(os.path.expanduser(source))  # noqa: PTH111 - raises
    if not os.path.isfile(path):  # noqa: PTH113 - a name too long for a file is no file, not an error
        what = "is a folder, not a file" if os.path.isdir(path) else "is no file"  # noqa: PTH112
        hint = unknown("packaged grid", source, packaged, where="packaged")
        raise RequestError(source, [Problem("", f"{str(path)!r} {what}, and there is {hint}")])
    raw = _read_json(path)
    spec, problems = read(GridSpec, raw)
    if spec is None:
        raise RequestError(str(path), problems)
    return Grid(spec.name or _name_of(path), path, spec, raw, tuple(problems))


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
    def refuse(message: str, kind: Literal["form", "fact"] = "fact") -> RequestError:
        return RequestError(str(path), [Problem("", message, kind)])

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen = dict(pairs)
        if len(seen) < len(pairs):
            twice = sorted({key for key, _ in pairs if sum(key == other for other, _ in pairs) > 1})
            raise refuse(f"the key {twice[0]!r} stands twice in one object; keep one of them")
        return seen

    def no_constant(text: str) -> float:
        raise refuse(f"{text} is no JSON number")

    def number(text: str) -> float:
        value = float(text)
        if math.isinf(value):
            raise refuse(f"{show(text, 30)} is too large a number")
        return value if set(text) & set(".eE") else int(text)

    try:
        text = path.read_text(encoding="utf-8-sig")
        raw = json.loads(
            text, object_pairs_hook=unique, parse_constant=no_constant, parse_float=number, parse_int=number
        )
        json.dumps(raw, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise refuse(f"no JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except UnicodeEncodeError:
        raise refuse("a text in it holds half a character (a lone surrogate such as \\ud800); take it out") from None
    except (OSError, UnicodeDecodeError, RecursionError) as error:
        raise refuse(f"cannot be read: {error}") from None
    if not isinstance(raw, dict):
        raise refuse(f"a grid should be a JSON object. Found {type(raw).__name__}.", "form")
    return raw


@dataclass(frozen=True)
class Expansion:
    """The rows of a grid in table order, and what is wrong with the grid as a whole."""

    variants: list[Variant]
    problems: list[Problem]


def expand(grid: Grid, *, allow_large: bool = False) -> Expansion:
    """The product of the grid's axes, then its explicit cells. What ``exclude`` leaves out is the plan's to say."""
    spec = grid.spec
    base, wrong = base_of(grid)
    problems = [*grid.problems, *wrong]
    choices = _choices(spec, problems)
    wanted = (math.prod(len(axis) for axis in choices) + len(spec.cells)) * len(spec.seeds)
    if wanted > LARGE and not allow_large:
        text = f"the grid has {wanted:,} cells, more than {LARGE:,}; pass --yes if that is meant"
        problems.append(Problem("axes", text))
        choices = [axis[:1] for axis in choices]  # enough to find what else is wrong
    variants: list[Variant] = []
    if choices or not spec.cells:
        for combination in itertools.product(*choices):
            settings = {path: value for choice in combination for path, value in choice.settings.items()}
            label = ", ".join(choice.label for choice in combination) or "base"
            places = {path: choice.where[path] for choice in combination for path in choice.where}
            variants.append(_variant(label, base, settings, places))
    for place, cell in enumerate(spec.cells):
        places = {path: f"cells.{place}.set.{path}" for path in cell.set}
        listed = _variant(cell.label, base, cell.set, places)
        variants.append(replace(listed, reported=dict(cell.reported), explicit=True))
    problems += _overlaps(spec)
    problems += _check_labels(variants, spec)
    return Expansion(variants, list(dict.fromkeys(problems)))


def base_of(grid: Grid) -> tuple[dict[str, Any], list[Problem]]:
    """The base run with every default of the specs filled in, or what can be used of it, and what is wrong with it."""
    raw, seen, path = grid.spec.base, [grid.name], grid.path
    while isinstance(raw, str):
        packaged = packaged_grids()
        if raw not in packaged:
            return {}, [Problem("base", unknown("packaged grid", raw, packaged, where="packaged"), "form")]
        if packaged[raw].conflict:
            return {}, [Problem("base", packaged[raw].conflict)]
        if raw in seen and path == packaged[raw].path:
            return {}, [Problem("base", f"the grids {' → '.join([*seen, raw])} go in a circle")]
        seen.append(raw)
        path = packaged[raw].path
        raw = _read_json(path).get("base", {})
    run, found = read(RunSpec, raw, "base")
    return {} if run is None else dict(plain(run)), found


def _variant(label: str, base: dict[str, Any], settings: Mapping[str, Any], places: Mapping[str, str]) -> Variant:
    """The base with values laid over it, outer paths before inner ones; ``places`` say where the grid sets a path."""
    run, problems = deepcopy(base), list[Problem]()
    for path in sorted(settings, key=lambda path: path.count(".")) if base else ():
        try:
            if path.split(".")[0] == "seed":
                raise PathError('the seed is no axis; list seeds under "seeds"')
            assign(run, path, deepcopy(settings[path]))
        except PathError as error:
            problems.append(Problem(places[path], str(error), "form"))
    return Variant(label, run, settings=dict(settings), problems=tuple(problems))


@dataclass(frozen=True)
class _Choice:
    """One value of an axis, or one step of a zip: what it is called, what it sets, and where in the grid it stands."""

    label: str
    settings: dict[str, Any]
    where: dict[str, str]


def _choices(spec: GridSpec, problems: list[Problem]) -> list[list[_Choice]]:
    choices = [
        [_Choice(label, {path: value}, {path: f"axes.{path}"}) for label, value in _labelled(path, axis)]
        for path, axis in spec.axes.items()
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
                    {path: f"zip.{place}.{path}" for path in group},
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


def _overlaps(spec: GridSpec) -> Iterator[Problem]:
    """Two axes that set the same place: the second would undo the first, and labels would lie."""
    axes = [(f"axes.{path}", path) for path in spec.axes]
    axes += [(f"zip.{place}.{path}", path) for place, group in enumerate(spec.zip) for path in group]
    for (_, one), (where, other) in itertools.combinations(axes, 2):
        steps = list(zip(one.split("."), other.split("."), strict=False))
        if one.count(".") == other.count(".") and all(a == b or "*" in (a, b) for a, b in steps):
            yield Problem(where, f"sets the same place as {one}; an axis would undo the other. Leave out one of them.")


def _check_labels(variants: Sequence[Variant], spec: GridSpec) -> list[Problem]:
    problems: list[Problem] = []
    labels = [variant.label for variant in variants]
    counts = Counter(labels)
    listed = {cell.label for cell in spec.cells}
    for label in (label for label, count in counts.items() if count > 1):
        cure = "give a cell another label" if label in listed else "give the axis an object from label to value"
        problems.append(Problem("cells" if label in listed else "axes", f"two rows would be called {label!r}; {cure}"))
    for label in (label for label in counts if not label.strip()):
        problems.append(Problem("cells", f"a label should have something to read in it. Found {label!r}."))
    if spec.baseline is not None and spec.baseline not in labels:
        problems.append(Problem("baseline", unknown("row", spec.baseline, labels, where="rows")))
    if len(set(spec.seeds)) < len(spec.seeds):
        problems.append(Problem("seeds", f"each seed should stand once. Found {list(spec.seeds)}.", "form"))
    return problems
