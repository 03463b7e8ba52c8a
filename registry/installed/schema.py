"""The JSON schema of grids, made from what is installed: an editor completes and checks while one types.

:func:`grid_schema` is that of any grid. It accepts every valid grid, and refuses most of what is written wrongly. The
schema of one grid, which knows where each path leads, is made from the same parts in ``taskloom.runs.grid``.
"""

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from taskloom.core.forms import SLOT, Schema, common_pattern
from taskloom.core.options import Option
from taskloom.core.specs import GridSpec, RunSpec
from taskloom.core.words import kind_word
from taskloom.registry.installed.catalogue import Catalogue
from taskloom.registry.installed.entries import INTERFACES, Entry
from taskloom.registry.installed.resolution import RESERVED, TASK_NAME
from taskloom.registry.installed.schema_paths import general_paths

DRAFT = "https://json-schema.org/draft/2020-12/schema"
#: An engine is chosen on the command line.
KINDS = tuple(kind for kind in INTERFACES if kind != "engine")


def grid_schema(catalogue: Catalogue) -> Schema:
    """The schema of any grid file (draft 2020-12).

    An option that a component demands may be absent, because an axis may bring it. ``$defs`` holds every installed
    component as ``kind.name``.
    """
    grid, parts = spec_parts(catalogue)
    named, patterns = general_paths(parts)
    parts |= {f"at:{place}": value for place, (_, value) in patterns.items()}
    values = {pattern: ref(f"at:{place}") for place, (pattern, _) in patterns.items()}
    offered = {path: {"description": text} if text else {} for path, text in named.items()}
    parts["axes"] = {**by_path(values, axis), "properties": offered}
    parts["settings"] = {**by_path(values, dict), "properties": offered}
    set_property(grid, "axes", ref("axes"))
    set_property(grid, "zip", {"type": "array", "items": ref("axes")})
    set_property(grid, "exclude", {"type": "array", "items": {"type": "object"}})
    set_property(parts["CellSpec"], "set", ref("settings"))
    return {"$schema": DRAFT, "title": "A taskloom grid", **grid, "$defs": parts}


def spec_parts(catalogue: Catalogue) -> tuple[Schema, Schema]:
    """The schema of a grid without its paths, and the parts it is made of: specs, kinds and components."""
    grid, run = (json.loads(text) for text in _specs())
    parts: Schema = {**grid.pop("$defs"), **run.pop("$defs"), "RunSpec": run}
    parts.pop("ComponentSpec", None)
    for kind in KINDS:
        parts |= _kind_parts(kind, [entry for entry in catalogue.entries if entry.kind == kind])
    schedules = parts["ScheduleSpec"]["properties"]["name"]
    set_property(parts["StageSpec"], "schedule", {"anyOf": [schedules, ref("ScheduleSpec")]})
    named = {"type": "array", "items": {"type": "string"}, "minItems": 1, "uniqueItems": True}
    set_property(parts["StageSpec"], "tasks", {"anyOf": [named, {"type": "null"}]})
    run["properties"]["tasks"]["propertyNames"] = {"pattern": TASK_NAME, "not": {"enum": list(RESERVED)}}
    grid["properties"]["seeds"]["uniqueItems"] = True
    columns = parts["TableSpec"]["properties"]["columns"]["anyOf"][0]
    columns["uniqueItems"] = True
    packaged = {"enum": sorted(catalogue.plugins.grids), "description": "A packaged grid, whose base is taken."}
    set_property(grid, "base", {"anyOf": [ref("RunSpec"), packaged]})
    return grid, parts


@cache
def _specs() -> tuple[str, str]:
    """pydantic's schemas of the specs, as text that can be read as often as one likes."""
    made = [_tidy(spec.model_json_schema(by_alias=True)) for spec in (GridSpec, RunSpec)]
    return json.dumps(made[0]), json.dumps(made[1])


def component_schema(entry: Entry) -> Schema:
    """The schema of one component written as an object."""
    described: Schema = {"description": entry.summary} if entry.summary else {}
    if entry.doc != entry.summary:  # what VS Code shows in place of the summary
        described["markdownDescription"] = f"```text\n{entry.doc}\n```\n\n{entry.origin}"
    properties: Schema = {"name": {"const": entry.name, **described}}
    properties |= {option.name: option_schema(option) for option in entry.options.values()}
    return {
        "type": "object",
        **described,
        "properties": properties,
        "required": ["name"],
        "additionalProperties": False,
    }


def option_schema(option: Option) -> Schema:
    """The schema of an option: its form, what its docstring says of it, and its default."""
    said: Schema = {"description": option.text or option.allowed}
    if not option.required:
        said["default"] = option.default
    return {**filled(option.form), **said}


def filled(form: Any) -> Any:
    """A form with every place of a component replaced by a reference to its kind."""
    if isinstance(form, list):
        return [filled(item) for item in form]
    if not isinstance(form, dict):
        return form
    return ref(form[SLOT]) if SLOT in form else {key: filled(item) for key, item in form.items()}


def names_schema(entries: list[Entry], kind: str) -> Schema:
    """The names of components, each with its summary."""
    described = {"description": f"{'An' if kind[0] in 'aeiou' else 'A'} {kind_word(kind)} by name."}
    names = [entry.name for entry in entries]
    return {"enum": names, "enumDescriptions": [entry.summary for entry in entries], **described}


def _kind_parts(kind: str, entries: list[Entry]) -> Schema:
    """The definitions of a kind – any of its names, or an object; the same without gaps – and its components."""
    parts: Schema = {f"{kind}.{entry.name}": component_schema(entry) for entry in entries}
    demands = {entry.name: [one.name for one in entry.options.values() if one.required] for entry in entries}
    whole = [entry for entry in entries if not demands[entry.name]]
    objects = [ref(f"{kind}.{entry.name}") for entry in entries]
    complete = [
        {**ref(f"{kind}.{entry.name}"), "required": ["name", *demands[entry.name]]} if demands[entry.name] else one
        for one, entry in zip(objects, entries, strict=True)
    ]
    by_name = [names_schema(whole, kind)] if whole or not entries else []
    return {
        kind: {"anyOf": [names_schema(entries, kind), *objects]},
        f"complete-{kind}": {"anyOf": [*by_name, *complete]},
        **parts,
    }


def by_path(patterns: Mapping[str, Schema], shape: Callable[[Schema], Schema]) -> Schema:
    """An object from paths to what ``shape`` makes of the schema of the values there; nothing else may be in it."""
    shaped = {pattern: shape(value) for pattern, value in patterns.items()}
    return {"type": "object", "patternProperties": shaped, "additionalProperties": False}


def axis(value: Schema) -> Schema:
    """The values of an axis: a list, or an object from label to value."""
    words = ("description", "markdownDescription")
    values = {key: item for key, item in value.items() if key not in ("default", *words)}
    return {
        **{word: value[word] for word in words if word in value},
        "anyOf": [
            {"type": "array", "minItems": 1, "items": values},
            {"type": "object", "minProperties": 1, "additionalProperties": values},
        ],
    }


def set_property(schema: Schema, key: str, value: Schema) -> None:
    """Replace a property's schema and keep what is said about it."""
    old = schema["properties"][key]
    kept = {word: old[word] for word in ("description", "default") if word in old}
    schema["properties"][key] = {**value, **kept}


def ref(name: str) -> Schema:
    """A reference to a part."""
    return {"$ref": f"#/$defs/{name}"}


def written(schema: Schema) -> str:
    """A schema as text."""
    return json.dumps(schema, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _tidy(value: Any, name: str = "") -> Any:
    """pydantic's schema without titles, with every component's place filled by its kind, and with common patterns."""
    if isinstance(value, list):
        return [_tidy(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("$ref") == "#/$defs/ComponentSpec":
        return {**value, **ref(name)}  # in the specs a component's key is its kind
    tidied = {key: _tidy(item, key) for key, item in value.items() if key != "title" or not isinstance(item, str)}
    if isinstance(value.get("pattern"), str):
        tidied["pattern"] = common_pattern(value["pattern"])
    return tidied
