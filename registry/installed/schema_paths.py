"""Dotted paths into any run, as patterns with the schemas of their values: for grids whose base is not known."""

import re
from collections.abc import Iterator

from taskloom.core.forms import Schema, any_of

#: In a pattern, the end of a text and not the place before its last newline.
END = r"$(?!\n)"
Step = tuple[str, str]  # as a pattern, and as something to type


def general_paths(parts: Schema) -> tuple[dict[str, str], dict[str, tuple[str, Schema]]]:
    """Paths that are offered while one types, with their texts; and places → pattern of their paths, schema of values.

    Offered are those with ``*``, and those into the first stage.
    """
    named: dict[str, str] = {}
    patterns: dict[str, tuple[str, Schema]] = {}
    for steps, value in _spec_paths(parts["RunSpec"], parts, []):
        place = ".".join(typed or "*" for _, typed in steps)
        patterns[place] = f"^{'[.]'.join(pattern for pattern, _ in steps)}{END}", value
        if all(typed for _, typed in steps):
            text = value.get("description", "")
            named |= {place: text, place.replace("*", "0", 1) if place.startswith("stages.") else place: text}
    return named, patterns


def _spec_paths(schema: Schema, parts: Schema, steps: list[Step]) -> Iterator[tuple[list[Step], Schema]]:
    for key, value in schema["properties"].items():
        if steps or key != "seed":  # seeds are listed under "seeds"
            yield from _paths(value, parts, [*steps, (re.escape(key), key)])


def _paths(value: Schema, parts: Schema, steps: list[Step]) -> Iterator[tuple[list[Step], Schema]]:
    yield steps, value
    inner = value.get("additionalProperties")
    if isinstance(inner, dict) and inner:
        yield from _paths(inner, parts, [*steps, (r"[^.\n]+", "*")])
    for choice in (value, *value.get("anyOf", ())):
        items = [*choice.get("prefixItems", ()), *([choice["items"]] if "items" in choice else [])]
        if items:
            yield from _paths(any_of(items), parts, [*steps, (r"(?:[*]|[0-9]+)", "*" if choice is value else "")])
        name = choice.get("$ref", "").removeprefix("#/$defs/")
        if "properties" in parts.get(name, {}):
            yield from _spec_paths(parts[name], parts, steps)
        elif name:
            yield from _option_paths(name, parts, steps)


def _option_paths(kind: str, parts: Schema, steps: list[Step]) -> Iterator[tuple[list[Step], Schema]]:
    """Paths to the name and the options of a component: to any option that a component of this kind has."""
    choices: dict[str, list[Schema]] = {}
    for entry in (part for key, part in parts.items() if key.startswith(f"{kind}.")):
        for key, value in entry["properties"].items():
            choices.setdefault(key, []).append(value)
    choices["name"] = [parts[kind]["anyOf"][0]]
    for key, values in choices.items():
        forms = [{word: item for word, item in one.items() if word not in ("default", "description")} for one in values]
        texts = {one["description"] for one in values if "description" in one}
        said = {"description": texts.pop()} if len(texts) == 1 else {}
        yield [*steps, (re.escape(key), key)], {**any_of(forms), **said}
        if key != "name":
            yield [*steps, (re.escape(key), key), (r"[^\n]+", "")], {}
    yield [*steps, ("[*]", "")], {}
