"""The JSON Schema of a grid file, made from what is installed: an editor completes and checks while one types."""

import re
from collections.abc import Iterator
from typing import Any

from taskloom.core.options import SLOT, Option
from taskloom.core.specs import GridSpec, RunSpec
from taskloom.core.words import kind_word
from taskloom.registry.catalogue import Catalogue
from taskloom.registry.entries import HOOKS, Entry

Schema = dict[str, Any]
DRAFT = "https://json-schema.org/draft/2020-12/schema"


def grid_schema(catalogue: Catalogue) -> Schema:
    """The schema of a grid file (draft 2020-12).

    It accepts every grid whose base names installed components and options that they have. An option that a component
    demands may be absent, because an axis may bring it; the catalogue has the last word on each cell.
    """
    grid = _tidy(GridSpec.model_json_schema(by_alias=True))
    run = _tidy(RunSpec.model_json_schema(by_alias=True))
    parts: Schema = {**grid.pop("$defs"), **run.pop("$defs"), "RunSpec": run}
    del parts["ComponentSpec"]
    for kind in HOOKS:
        if kind != "engine":  # an engine is chosen on the command line
            parts |= _kind_parts(kind, [entry for entry in catalogue.entries if entry.kind == kind])
    schedules = parts["ScheduleSpec"]["properties"]["name"]
    _set(parts["StageSpec"], "schedule", {"anyOf": [schedules, _ref("ScheduleSpec")]})
    paths = dict(_paths(run, parts, ""))
    names = {"type": "string", "examples": sorted(catalogue.plugins.grids)}
    _set(grid, "base", {"anyOf": [names, _ref("RunSpec")]})
    _set(grid, "axes", _by_path(paths, _axis))
    _set(grid, "zip", {"type": "array", "items": _by_path(paths, _axis)})
    _set(grid, "exclude", {"type": "array", "items": _by_path(paths, lambda value: {})})
    _set(parts["CellSpec"], "set", _by_path(paths, lambda value: value))
    return {"$schema": DRAFT, **grid, "$defs": parts}


def component_schema(entry: Entry) -> tuple[Schema, Schema]:
    """The schema of one component written as an object, and the definitions it refers to."""
    properties: Schema = {"name": {"const": entry.name, "description": entry.summary}}
    shared: Schema = {}
    for option in entry.options.values():
        properties[option.name], more = _option_schema(option, _key(entry))
        shared |= more
    described: Schema = {"description": entry.summary} if entry.summary else {}
    rest = {"properties": properties, "required": ["name"], "additionalProperties": False}
    return {"type": "object", **described, **rest}, shared


def _kind_parts(kind: str, entries: list[Entry]) -> Schema:
    """The definition of a kind – any of its names, or an object – and those of its components."""
    parts: Schema = {}
    for entry in entries:
        parts[_key(entry)], more = component_schema(entry)
        parts |= more
    names = {"enum": [entry.name for entry in entries], "description": f"A {kind_word(kind)} by name."}
    choices = [names, *(_ref(_key(entry)) for entry in entries)] if entries else [{"not": {}}]
    return {kind: {"anyOf": choices}, **parts}


def _option_schema(option: Option, home: str) -> tuple[Schema, Schema]:
    raw = option.adapter.json_schema(ref_template=f"#/$defs/{home}.{{model}}")
    shared = {f"{home}.{name}": _tidy(part) for name, part in raw.pop("$defs", {}).items()}
    schema: Schema = _tidy(raw)
    if option.text:
        schema["description"] = option.text
    if not option.required:
        schema["default"] = option.default
    return schema, shared


def _tidy(value: Any, name: str = "") -> Any:
    """pydantic's schema without titles, and with every component's place filled by its kind."""
    if isinstance(value, list):
        return [_tidy(item) for item in value]
    if not isinstance(value, dict):
        return value
    if SLOT in value:
        return {**{key: item for key, item in value.items() if key != SLOT}, **_ref(value[SLOT])}
    if value.get("$ref") == "#/$defs/ComponentSpec":
        return {**value, **_ref(name)}  # in the specs a component's key is its kind
    return {key: _tidy(item, key) for key, item in value.items() if key != "title" or not isinstance(item, str)}


def _paths(schema: Schema, parts: Schema, prefix: str) -> Iterator[tuple[str, Schema]]:
    """Every dotted path into a run that the specs know, as a pattern, and the schema of its value."""
    for key, value in schema.get("properties", {}).items():
        yield from _path(value, parts, prefix + re.escape(key))


def _path(value: Schema, parts: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    yield f"^{path}$", value
    inner = value.get("additionalProperties") or value.get("items")
    if isinstance(inner, dict) and inner:
        yield from _path(inner, parts, path + r"\.[^.]+")
    for choice in (value, *value.get("anyOf", ())):
        name = choice.get("$ref", "").removeprefix("#/$defs/")
        if name.endswith("Spec"):
            yield from _paths(parts[name], parts, path + r"\.")


def _by_path(paths: dict[str, Schema], shape: Any) -> Schema:
    return {"type": "object", "patternProperties": {path: shape(value) for path, value in paths.items()}}


def _axis(value: Schema) -> Schema:
    """The values of an axis: a list, or an object from label to value."""
    values = {key: item for key, item in value.items() if key not in ("default", "description")}
    return {
        "anyOf": [
            {"type": "array", "minItems": 1, "items": values},
            {"type": "object", "minProperties": 1, "additionalProperties": values},
        ]
    }


def _set(schema: Schema, key: str, value: Schema) -> None:
    """Replace a property's schema and keep what is said about it."""
    old = schema["properties"][key]
    kept = {word: old[word] for word in ("description", "default") if word in old}
    schema["properties"][key] = {**value, **kept}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _key(entry: Entry) -> str:
    return f"{entry.kind}.{entry.name}"
