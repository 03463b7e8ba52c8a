"""Laws of whole plugins, and of the packaged grids in them."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pluggy
from pydantic import ValidationError

from taskloom.core import hookspecs
from taskloom.core.component import Component
from taskloom.core.errors import unknown
from taskloom.core.specs import GridSpec, RunSpec
from taskloom.core.testing.law import given, law, require

HOOKS = tuple(name for name in vars(hookspecs) if name.startswith("taskloom_"))


def classes_of(module: Any) -> list[Any]:
    """The components that the plugin adds."""
    if not hasattr(module, "taskloom_components"):
        return []
    with given("taskloom_components()"):
        classes = module.taskloom_components()
        sound = isinstance(classes, Sequence) and not isinstance(classes, str)
        require(sound, f"it should return a list of classes. Found {classes!r}.")
    return list(classes)


def _manager(module: Any) -> pluggy.PluginManager:
    """The plugin in a manager of its own."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(module)
    return manager


@law("plugin")
def its_hooks_are_those_of_taskloom(module: Any) -> None:
    """There is at least one; each exists, is marked with ``@hookimpl`` and takes the hook's arguments."""
    own = [name for name in dir(module) if name.startswith("taskloom_")]
    for name in own:
        require(name in HOOKS, unknown("hook", name, HOOKS, where="hooks"))
        require(hasattr(getattr(module, name), "taskloom_impl"), f"{name} should be marked with @hookimpl")
    require(bool(own), f"the module has no hook; a function such as {HOOKS[0]}() says what it adds")
    _manager(module).check_pending()


@law("plugin")
def its_components_are_whole_classes_of_different_names(module: Any) -> None:
    known: dict[tuple[str, str], Any] = {}
    for cls in classes_of(module):
        sound = isinstance(cls, type) and issubclass(cls, Component)
        require(sound, f"taskloom_components() should return components. Found {cls!r}.")
        missing = sorted(getattr(cls, "__abstractmethods__", ()))
        require(not missing, f"{cls.__name__} does not define {', '.join(missing)}")
        other = known.setdefault((cls.kind, cls.name), cls)
        require(other is cls, f"{other.__name__} and {cls.__name__} are both called {cls.name!r}")


# Packaged grids


def _grids(module: Any) -> Iterator[tuple[str, Path]]:
    paths = module.taskloom_grids()
    sound = isinstance(paths, list | tuple) and bool(paths) and all(isinstance(path, Path) for path in paths)
    require(sound, f"taskloom_grids() should return the paths of its files. Found {paths!r}.")
    yield from ((path.name, path) for path in paths)


@law("grid", cases=_grids)
def its_files_are_grids_with_a_name_and_a_description(module: Any, path: Path) -> None:
    """Valid JSON grids, named after their files; the base may lack what axes and cells set."""
    sound = path.suffix == ".json" and re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,99}", path.stem) is not None
    require(sound, f"a file should be called like 'my-grid.json'. Found {path.name!r}.")
    names = [other.stem for _, other in _grids(module)]
    require(names.count(path.stem) == 1, f"the name {path.stem!r} appears twice")
    grid = json.loads(path.read_text(encoding="utf-8"))
    problems = _problems(GridSpec, grid)
    require(not problems, "; ".join(problems))
    require(bool(grid.get("description")), "it should have a description, a line for the listing")
    if isinstance(grid.get("base"), dict):
        groups = [grid.get("axes", {}), *grid.get("zip", []), *(cell.get("set", {}) for cell in grid.get("cells", []))]
        varied = {str(key).partition(".")[0] for group in groups for key in group}
        problems = [text for text in _problems(RunSpec, grid["base"]) if re.split(r"[.:]", text)[0] not in varied]
        require(not problems, "; ".join(f"base.{text}" for text in problems))


def _problems(model: type[GridSpec] | type[RunSpec], value: Any) -> list[str]:
    try:
        model.model_validate_json(json.dumps(value))
    except ValidationError as error:
        return [f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()]
    return []
