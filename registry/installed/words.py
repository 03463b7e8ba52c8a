"""JSON schemas and values in words: what is allowed, and what was found."""

import json
import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import TypeAdapter

from taskloom.core.component import KIND_REF

Schema = dict[str, Any]
_TYPES = {"boolean": "true or false", "integer": "an integer", "number": "a number", "string": "a string"}
_TYPES |= {"null": "null", "array": "a list", "object": "an object"}
_ANYTHING = "any JSON value"
_LIMITS = {
    "minimum": "of at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "of at most {}",
    "exclusiveMaximum": "below {}",
    "multipleOf": "that is a multiple of {}",
    **dict.fromkeys(("minLength", "minItems", "minProperties"), "of length {} or more"),
    **dict.fromkeys(("maxLength", "maxItems", "maxProperties"), "of length {} or less"),
    "pattern": "that matches '{}'",
}


def kind_word(kind: str) -> str:
    """What a kind of component is called in a sentence."""
    return {"data": "data set"}.get(kind, kind)


def component_words(kind: str) -> str:
    """What to write where a component of this kind belongs."""
    return f'{"an" if kind[0] in "aeiou" else "a"} {kind_word(kind)}: a name, or an object with "name" and options'


def describe(annotation: Any) -> str:
    """What a value of this type should be.

    >>> from typing import Annotated, Literal
    >>> from pydantic import Field
    >>> describe(Annotated[float, Field(ge=0, lt=1)] | Literal["auto"] | None)
    "a number of at least 0 and below 1, 'auto' or null"
    """
    try:
        schema = TypeAdapter(annotation).json_schema()
    except Exception:  # a type of a plugin's own may have no schema
        return _ANYTHING
    return schema_words(schema, schema.get("$defs", {}))


def schema_words(schema: Schema, parts: Schema) -> str:
    """What a JSON schema allows; ``parts`` are the definitions that it refers to."""
    schema = referred(schema, parts)
    if "anyOf" in schema:
        several = [one for one in schema["anyOf"] if one.get("type") == "array" and one.get("items") in schema["anyOf"]]
        named = [one for one in schema["anyOf"] if one not in several]
        choices = [words for one in named for words in _choices(one) or [schema_words(one, parts)]]
        return _either([*choices, *(["a list of such"] if several else [])])
    if _choices(schema):
        return _either(_choices(schema))
    if kind := kind_of(schema):
        return component_words(kind)
    words = "a path" if schema.get("format") == "path" else _TYPES.get(schema.get("type", ""), _ANYTHING)
    if "prefixItems" in schema:
        items = [schema_words(one, parts) for one in schema["prefixItems"]]
        return f"{words} of {len(items)} ({', '.join(items)})"
    if "properties" in schema:
        return f"{words} with {', '.join(schema['properties'])}"
    if "examples" in schema:  # with one there is no need to show a pattern
        return f"{words} such as {show(schema['examples'][0])}"
    limits = " and ".join(words.format(schema[key]) for key, words in _LIMITS.items() if key in schema)
    inner = values_of(schema)
    each = _ANYTHING if inner is None else schema_words(inner, parts)
    label = "each" if schema.get("type") == "array" else "each value"
    return " ".join(filter(None, [words, limits, f"({label}: {each})" if each != _ANYTHING else ""]))


def referred(schema: Schema, parts: Schema) -> Schema:
    """The schema, or the definition that it refers to."""
    found: Schema = parts.get(schema.get("$ref", "").removeprefix("#/$defs/"), schema)
    return found


def kind_of(schema: Schema) -> str:
    """The kind of component that belongs in a place; empty if none does."""
    target = schema["allOf"][0].get("$ref", "") if "allOf" in schema else ""
    return target.removeprefix(KIND_REF) if target.startswith(KIND_REF) else ""


def values_of(schema: Schema) -> Schema | None:
    """What each item of a list, or each value of an object with free keys, should be."""
    free = [*schema.get("patternProperties", {}).values(), schema.get("additionalProperties"), schema.get("items")]
    return next((one for one in free if isinstance(one, dict)), None)


def refusal(words: str, value: object) -> str:
    """The message for a value that does not fit: what it should be, what was found, the nearest choice.

    >>> refusal("'sum' or 'mean'", "maen")
    "should be 'sum' or 'mean'. Found 'maen'. Did you mean 'mean'?"
    """
    near = get_close_matches(value, re.findall("'([^']*)'", words), n=1) if isinstance(value, str) else []
    hint = f" Did you mean {show(near[0])}?" if near else ""
    return f"should be {words}. Found {show(value)}.{hint}"


def show(value: object, max_length: int = 100) -> str:
    """A value as the user may have written it, cut where it is long."""
    try:
        text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"


def join(*parts: str | int) -> str:
    """A dotted path, without empty parts."""
    return ".".join(str(part) for part in parts if part != "")


def _choices(schema: Schema) -> list[str]:
    constant = [schema["const"]] if "const" in schema else []
    return [show(one) for one in schema.get("enum", constant)]


def _either(words: Sequence[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
