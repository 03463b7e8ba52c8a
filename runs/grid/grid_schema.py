"""The JSON schema of one grid: it knows the base's tasks, stages and components, so each path has one meaning.

The schema accepts the grid if and only if ``taskloom validate`` finds nothing wrong with its form.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from taskloom.core.errors import Problem
from taskloom.core.fits import Place, refusals
from taskloom.core.forms import Schema
from taskloom.registry.installed.catalogue import Catalogue
from taskloom.registry.installed.resolution import TASK_NAME
from taskloom.registry.installed.schema import DRAFT, axis, ref, set_property, spec_parts
from taskloom.runs.grid.grid import Grid, base_of
from taskloom.runs.grid.grid_places import Places, Steps

COLUMNS = ("overall", "seconds", "memory")
_NEW_TASK = f"^tasks[.]{TASK_NAME.removeprefix('^')}"
_PLAIN = re.compile(r"[A-Za-z0-9_.*-]+")  # a path that may stand in a reference


def schema_of(grid: Grid, catalogue: Catalogue) -> Schema:
    """The schema of this grid (draft 2020-12)."""
    top, parts = spec_parts(catalogue)
    base, _ = base_of(grid)
    places = Places(catalogue, parts, base, list(_settings(grid)))
    tasks = places.tasks()
    if base:
        _name_tasks(top, parts, tasks)
    values = {
        path: value for path in _paths(places, grid) if (value := places.schema(tuple(path.split(".")))) is not None
    }
    parts |= {f"at:{path}": value for path, value in values.items() if _PLAIN.fullmatch(path)}
    values |= {path: _short(path, value) for path, value in values.items() if _PLAIN.fullmatch(path)}
    closed = {"type": "object", "additionalProperties": False}
    axes = {path: axis(value) for path, value in values.items()}
    parts["axes"] = {**closed, "properties": axes, "patternProperties": {_NEW_TASK: axis(ref("TaskSpec"))}}
    parts["settings"] = {**closed, "properties": values, "patternProperties": {_NEW_TASK: ref("TaskSpec")}}
    wide = {path: {"anyOf": [value, {}]} for path, value in values.items()}
    if base:
        set_property(top, "axes", ref("axes"))
        set_property(top, "zip", {"type": "array", "items": {**ref("axes"), "minProperties": 1}})
        set_property(top, "exclude", {"type": "array", "items": {"type": "object", "properties": wide}})
        set_property(parts["CellSpec"], "set", ref("settings"))
        packaged = top["properties"]["base"]["anyOf"][1]
        set_property(top, "base", {"anyOf": [_base_schema(places, parts), packaged]})
    return {"$schema": DRAFT, "title": f"The grid {grid.name}", **top, "$defs": parts}


def judged(grid: Grid, catalogue: Catalogue, problems: list[Problem], *, complete: bool = True) -> list[Problem]:
    """Problems with their right kinds: "form" for those that the grid's schema refuses.

    What the schema refuses and no problem speaks of is added, if the list is meant to be ``complete``.
    """
    schema = schema_of(grid, catalogue)
    refused = list(refusals(schema, grid.raw, schema["$defs"]))
    spelt = [(index, steps) for index, one in enumerate(refused) for steps in _spellings(one.place)]
    at: dict[str, tuple[set[int], set[int]]] = {}  # path → what is refused there, and around or inside it
    spoken: set[int] = set()
    sorted_out = []
    for problem in problems:
        if problem.path not in at:
            at[problem.path] = _refused_at(problem.path, spelt)
        exact, near = at[problem.path]
        about = exact or (near if problem.kind == "form" else set())
        spoken |= about
        sorted_out.append(replace(problem, kind="form" if about else "fact"))
    if complete:
        unsaid = [one for index, one in enumerate(refused) if index not in spoken]
        sorted_out += [Problem(".".join(map(str, one.place)), one.message, "form") for one in unsaid]
    return sorted_out


def _refused_at(path: str, spelt: list[tuple[int, Steps]]) -> tuple[set[int], set[int]]:
    """Which refusals are at a problem's place, and which around or inside it."""
    steps = path.split(".") if path else []
    near = [
        (index, place)
        for index, place in spelt
        if all("*" in (one, other) or one == other for one, other in zip(steps, place, strict=False))
    ]
    exact = {index for index, place in near if len(place) == len(steps)}
    return exact, {index for index, _ in near} if steps else set()


def _spellings(place: Place) -> Iterator[Steps]:
    """A place in the grid file, and the place in a run that it is about."""
    words = [str(step) for step in place]
    yield tuple(".".join(words).split(".")) if words else ()
    start = {"base": (1, 1), "axes": (1, 3), "zip": (2, 4), "cells": (3, 4)}.get(words[0] if words else "")
    if start and len(words) > start[0] and (words[0] != "cells" or words[2] == "set"):
        first, rest = start
        inner = words[1:] if words[0] == "base" else [*words[first].split("."), *words[rest:]]
        yield tuple(inner)


def _settings(grid: Grid) -> Iterator[tuple[str, Any]]:
    """Every path that the grid sets, with each of its values."""
    for group in (grid.spec.axes, *grid.spec.zip):
        for path, values in group.items():
            for value in values.values() if isinstance(values, Mapping) else values:
                yield path, value
    for cell in grid.spec.cells:
        yield from cell.set.items()


def _short(path: str, value: Schema) -> Schema:
    """A reference in place of a path's schema, with what is said of it."""
    return {**ref(f"at:{path}"), **({"description": value["description"]} if "description" in value else {})}


def _paths(places: Places, grid: Grid) -> list[str]:
    offered = [".".join(steps) for steps in places.offered()]
    return list(dict.fromkeys([*offered, *(path for path, _ in _settings(grid))]))


def _name_tasks(top: Schema, parts: Schema, tasks: list[str]) -> None:
    """Where tasks are named, only those that a row may have."""
    columns = {"type": "array", "items": {"enum": [*tasks, *COLUMNS]}, "uniqueItems": True}
    set_property(parts["TableSpec"], "columns", {"anyOf": [columns, {"type": "null"}]})
    parts["CellSpec"]["properties"]["reported"]["propertyNames"] = {"enum": [*tasks, *COLUMNS]}
    set_property(parts["RunSpec"], "selection", {"enum": ["overall", "last", *tasks]})
    parts["StageSpec"]["properties"]["tasks"]["anyOf"][0]["items"] = {"enum": tasks}


def _base_schema(places: Places, parts: Schema) -> Schema:
    """A run whose parts are those of the base."""
    run = parts["RunSpec"]
    properties = dict(run["properties"])
    properties["encoder"] = {**properties["encoder"], **places.component("encoder", ("encoder",), in_base=True)}
    tasks = {name: _part(places, parts["TaskSpec"], ("tasks", name)) for name in places.base["tasks"]}
    properties["tasks"] = {**properties["tasks"], "properties": tasks}
    stages = [_part(places, parts["StageSpec"], ("stages", str(index))) for index in range(len(places.base["stages"]))]
    properties["stages"] = {**properties["stages"], "prefixItems": stages}
    return {**run, "properties": properties}


def _part(places: Places, spec: Schema, place: Steps) -> Schema:
    properties = {
        key: {**value, **places.component(key, (*place, key), in_base=True)} if _is_kind(key, value) else value
        for key, value in spec["properties"].items()
    }
    return {**spec, "properties": properties}


def _is_kind(key: str, value: Schema) -> bool:
    return bool(value.get("$ref") == f"#/$defs/{key}")
