"""Laws of packaged grids."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from taskloom.core.specs import GridSpec, RunSpec
from taskloom.core.testing.law import Plugin, given, require


def _paths(plugin: Plugin) -> list[Path]:
    found = plugin.module.taskloom_grids()
    form = isinstance(found, list | tuple) and bool(found) and all(isinstance(path, Path) for path in found)
    require(form, f"taskloom_grids() should return the paths of its files. Found {found!r}.")
    return list(found)


def _grids(plugin: Plugin) -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in _paths(plugin):
        with given(path.name):
            grid = json.loads(path.read_text(encoding="utf-8"))
            require(isinstance(grid, dict), f"a grid should be an object. Found {type(grid).__name__}.")
            yield path, grid


def its_files_are_json(plugin: Plugin) -> None:
    require(len(list(_grids(plugin))) > 0, "there is no grid")


def its_files_have_names_that_users_can_type(plugin: Plugin) -> None:
    """A grid's name is its file's, and no two are the same."""
    names = [path.stem for path in _paths(plugin)]
    for path in _paths(plugin):
        sound = path.suffix == ".json" and re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,99}", path.stem) is not None
        require(sound, f"a file should be called like 'my-grid.json'. Found {path.name!r}.")
        require(names.count(path.stem) == 1, f"the name {path.stem!r} occurs twice")


def its_grids_have_the_form_of_grids(plugin: Plugin) -> None:
    for path, grid in _grids(plugin):
        with given(path.name):
            problems = _problems(GridSpec, grid)
            require(not problems, "; ".join(problems))
            base = grid["base"]
            if isinstance(base, dict):
                varied = {str(key).partition(".")[0] for key in _varied(grid)}
                problems = [
                    one for one in _problems(RunSpec, base) if one.partition(".")[0].partition(":")[0] not in varied
                ]
                require(not problems, "; ".join(f"base.{one}" for one in problems))


def its_grids_say_what_they_are(plugin: Plugin) -> None:
    for path, grid in _grids(plugin):
        require(
            bool(grid.get("description")), f"with {path.name}: it should have a description, a line for the listing"
        )


def _varied(grid: dict[str, Any]) -> Iterator[str]:
    """The paths that something else than the base fills."""
    yield from grid.get("axes", {})
    for group in grid.get("zip", []):
        yield from group
    for cell in grid.get("cells", []):
        yield from cell.get("set", {})


def _problems(model: type[GridSpec] | type[RunSpec], value: dict[str, Any]) -> list[str]:
    try:
        model.model_validate_json(json.dumps(value))
    except ValidationError as error:
        return [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
    return []


LAWS = (
    its_files_are_json,
    its_files_have_names_that_users_can_type,
    its_grids_have_the_form_of_grids,
    its_grids_say_what_they_are,
)
