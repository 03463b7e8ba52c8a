"""The JSON schema of grids, built from the installed components, for completion and checks in editors.

It accepts every valid grid, and refuses keys that nothing has and values of the wrong type. Where a dotted path leads
depends on the rest of the grid, so what ``axes`` and ``set`` hold is left to ``taskloom validate``.
"""

import inspect
import json
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from taskloom.core.component import KIND_REF
from taskloom.core.specs import GridSpec, RunSpec
from taskloom.registry.installed.catalogue import Catalogue
from taskloom.registry.installed.entries import INTERFACES, Entry
from taskloom.registry.installed.words import Schema, kind_word

#: The kinds of component that a grid can name: engines and trackers are chosen on the command line.
GRID_KINDS = tuple(kind for kind in INTERFACES if kind not in ("engine", "tracker"))


def grid_schema(catalogue: Catalogue) -> Schema:
    """The schema of any grid file (draft 2020-12); ``$defs`` holds every installed component as ``kind.name``."""
    grid, run = (spec.model_json_schema(schema_generator=_Untitled) for spec in (GridSpec, RunSpec))
    parts: Schema = {**grid.pop("$defs"), **run.pop("$defs"), "RunSpec": run}
    for kind in GRID_KINDS:
        entries = [entry for entry in catalogue.entries if entry.kind == kind]
        parts |= {f"{kind}.{entry.name}": component_schema(entry) for entry in entries}
        names = {
            "enum": [entry.name for entry in entries],
            "enumDescriptions": [entry.summary for entry in entries],
            "description": f"{'An' if kind[0] in 'aeiou' else 'A'} {kind_word(kind)} by name.",
        }
        # A component is a name, or an object with that name.
        parts[kind] = {"anyOf": [names, *({"$ref": f"#/$defs/{kind}.{entry.name}"} for entry in entries)]}
    for spec in ("ScheduleSpec", "OverallSpec"):  # these may be written as a name alone
        parts[spec] = {"anyOf": [parts[spec]["properties"]["name"], parts[spec]]}
    packaged = {"enum": sorted(catalogue.plugins.grids), "description": "A packaged grid, whose base is taken."}
    grid["properties"]["base"] |= {"anyOf": [{"$ref": "#/$defs/RunSpec"}, packaged]}
    grid["properties"]["extends"] |= {"anyOf": [{"enum": packaged["enum"]}, {"type": "null"}]}
    grid["anyOf"] = [{"required": ["base"]}, {"required": ["extends"]}]
    claim = parts["ClaimSpec"]
    claim["properties"]["to"] = claim["properties"]["than"]  # a row is better than another, or equal to it
    claim["oneOf"] = [{"required": [relation]} for relation in [*claim.pop("required"), "to"]]
    schema = {"$schema": GenerateJsonSchema.schema_dialect, **grid, "title": "A taskloom grid", "$defs": parts}
    text = json.dumps(schema).replace(KIND_REF, "#/$defs/")
    return dict(json.loads(text))


def component_schema(entry: Entry) -> Schema:
    """The schema of one component written as an object.

    An option that it requires may be absent, because an axis may set it.
    """
    template = f"#/$defs/{entry.kind}.{entry.name}/$defs/{{model}}"
    schema = entry.model.model_json_schema(ref_template=template, schema_generator=_Untitled)
    described = {"description": entry.summary} if entry.summary else {}
    doc = inspect.cleandoc(entry.cls.__doc__ or "")
    if doc != entry.summary:  # VS Code shows it instead of the summary
        described["markdownDescription"] = f"```text\n{doc}\n```\n\n{entry.plugin}"
    schema["properties"]["name"] |= described
    return {**schema, **described, "required": ["name"]}


class _Untitled(GenerateJsonSchema):
    """pydantic's schema without a title for every field, which would only repeat its name."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False
