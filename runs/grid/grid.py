"""Read a grid file, and the base run of its grid."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from taskloom.core.errors import Problem, RequestError, unknown
from taskloom.core.specs import GridSpec, RunSpec, plain
from taskloom.registry.installed.manager import packaged_grids
from taskloom.registry.installed.problems import read_spec
from taskloom.registry.installed.words import join, number_problem, show
from taskloom.registry.results.records import PACKAGED
from taskloom.runs.grid.file import extended, locate


@dataclass(frozen=True)
class GridFile:
    """A grid as read: its name, its file, and its content.

    ``source`` is the file by which the registry knows it, empty if the grid states its name. Relative paths start in
    ``folder``; a packaged grid has none, and they start in the current folder.

    Where parts of it are invalid, ``problems`` lists them and ``spec`` has the rest, so that a plan can report
    everything at once.
    """

    name: str
    path: Path
    spec: GridSpec
    raw: dict[str, Any]
    problems: tuple[Problem, ...] = ()
    source: str = PACKAGED
    folder: Path | None = None


def load_grid(source: str, location: tuple[Path, str] | None = None) -> GridFile:
    """Read a grid by the name of a packaged one or by the path of a JSON file, whose ``location`` may be known."""
    path, known_by = location or locate(source)
    if not os.path.isfile(path):  # noqa: PTH113 - a name too long for a file is not a file, and not an error
        raise RequestError(source, [Problem("", _no_file(path, source, packaged_grids()))])
    return read_grid(_read_json(path), path, known_by)


def read_grid(raw: dict[str, Any], path: Path, known_by: str = "") -> GridFile:
    """Read a grid from its JSON; ``path`` is its file, or its name in messages if it has no file."""
    raw = extended(raw, path)
    named = raw if raw.get("name") is not None else {**raw, "name": path.stem}
    spec, problems = read_spec(GridSpec, named)
    if spec is None:
        raise RequestError(str(path), problems)
    source, folder = "" if raw.get("name") else known_by, None if known_by == PACKAGED else path.absolute().parent
    return GridFile(spec.name or path.stem, path, spec, raw, tuple(problems), source, folder)


def _no_file(path: Path, source: str, packaged: Iterable[str]) -> str:
    if os.path.isdir(path):  # noqa: PTH112 - a name may be too long
        return f"{str(path)!r} is a folder, not a file"
    try:
        beside = [other.name for other in path.parent.glob("*.json")]
    except (OSError, ValueError):  # a folder that may not be read, or a name that no file can have
        beside = []
    near = get_close_matches(path.name, beside, n=1)
    if near:
        return f"{str(path)!r} is not a file; did you mean {str(path.parent / near[0])!r}?"
    return f"{str(path)!r} is not a file, and there is {unknown('packaged grid', source, packaged, where='packaged')}"


def _read_json(path: Path) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        twice = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
        if twice:
            raise ValueError(f"the key {twice[0]!r} appears twice in one object; keep one of them")
        return dict(pairs)

    try:
        text = path.read_text(encoding="utf-8-sig")
        raw = from_json(text, allow_inf_nan=False)
        json.loads(text, object_pairs_hook=unique)
    except OSError as error:
        raise RequestError(str(path), [Problem("", f"cannot be read: {error.strerror}")]) from None
    except ValueError as error:
        raise RequestError(str(path), [Problem("", f"is not JSON: {error}")]) from None
    if not isinstance(raw, dict):
        raise RequestError(str(path), [Problem("", f"a grid should be a JSON object. Found {show(raw)}.")])
    if problems := list(_number_problems(raw)):
        raise RequestError(str(path), problems)
    return raw


def _number_problems(node: Any, path: str = "") -> Iterator[Problem]:
    """The numbers of a JSON value that are infinite, or integers of more than 64 bits."""
    if isinstance(node, dict | list):
        for key, child in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _number_problems(child, join(path, key))
    elif message := number_problem(node):
        yield Problem(path, message)


def base_of(grid: GridFile) -> tuple[dict[str, Any], list[Problem]]:
    """The base run with every default of the specs filled in, as far as it is valid, and its problems."""
    raw, seen, path = grid.spec.base, [grid.name], grid.path
    if not raw:
        words = 'a run or the name of a packaged grid, unless the grid "extends" one'
        return {}, [Problem("base", f"is missing; it should be {words}")]
    while isinstance(raw, str):
        packaged = packaged_grids()
        if raw not in packaged:
            return {}, [Problem("base", unknown("packaged grid", raw, packaged, where="packaged"))]
        if raw in seen and path == packaged[raw].path:
            return {}, [Problem("base", f"the grids {' → '.join([*seen, raw])} refer to each other in a circle")]
        seen.append(raw)
        path = packaged[raw].path
        raw = extended(_read_json(path), path).get("base", {})
    run, problems = read_spec(RunSpec, raw, "base", _kinds_with)
    return {} if run is None else plain(run), problems


def _kinds_with(option: str) -> list[str]:
    from taskloom.registry.installed.catalogue import load_catalogue  # imports torch, which only this message needs

    return load_catalogue().kinds_with(option)
