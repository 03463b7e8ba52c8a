"""Describes JSON schemas and values in words, for messages."""

import json
import re
from collections.abc import Sequence
from difflib import get_close_matches
from math import isfinite, isinf
from typing import Any

from pydantic import TypeAdapter

from taskloom.core.component import KIND_REF
from taskloom.core.errors import shortened

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
    """How a component of this kind is written in a grid."""
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


def schema_words(schema: Schema, definitions: Schema) -> str:
    """What a JSON schema allows; ``definitions`` are its ``$defs``."""
    schema = referred(schema, definitions)
    if "anyOf" in schema:
        members = schema["anyOf"]
        lists = [member for member in members if member.get("type") == "array" and member.get("items") in members]
        others = [member for member in members if member not in lists]
        choices = [words for member in others for words in _choices(member) or [schema_words(member, definitions)]]
        return _either([*choices, *(["a list of such"] if lists else [])])
    if _choices(schema):
        return _either(_choices(schema))
    if kind := kind_of(schema):
        return component_words(kind)
    words = "a path" if schema.get("format") == "path" else _TYPES.get(schema.get("type", ""), _ANYTHING)
    if "prefixItems" in schema:
        elements = [schema_words(element, definitions) for element in schema["prefixItems"]]
        return f"{words} of {len(elements)} ({', '.join(elements)})"
    if "examples" in schema:  # shown instead of a pattern or of keys
        return f"{words} such as {show(schema['examples'][0])}"
    if "properties" in schema:
        return f"{words} with {', '.join(schema['properties'])}"
    limits = " and ".join(words.format(schema[key]) for key, words in _LIMITS.items() if key in schema)
    inner = values_of(schema)
    inner_words = _ANYTHING if inner is None else schema_words(inner, definitions)
    label = "each" if schema.get("type") == "array" else "each value"
    return " ".join(filter(None, [words, limits, f"({label}: {inner_words})" if inner_words != _ANYTHING else ""]))


def referred(schema: Schema, definitions: Schema) -> Schema:
    """The schema, or the definition that it refers to."""
    definition: Schema = definitions.get(schema.get("$ref", "").removeprefix("#/$defs/"), schema)
    return definition


def kind_of(schema: Schema) -> str:
    """The kind of component that a schema stands for; empty if it stands for none."""
    target = schema["allOf"][0].get("$ref", "") if "allOf" in schema else ""
    return target.removeprefix(KIND_REF) if target.startswith(KIND_REF) else ""


def values_of(schema: Schema) -> Schema | None:
    """The schema of a list's elements, or of the values of an object with free keys."""
    free = [*schema.get("patternProperties", {}).values(), schema.get("additionalProperties"), schema.get("items")]
    return next((inner for inner in free if isinstance(inner, dict)), None)


def refusal(words: str, value: object) -> str:
    """The message for an invalid value: what is allowed, what was written and the nearest choice.

    >>> refusal("'sum' or 'mean'", "maen")
    "should be 'sum' or 'mean'. Found 'maen'. Did you mean 'mean'?"
    """
    near = get_close_matches(value, re.findall("'([^']*)'", words), n=1) if isinstance(value, str) else []
    hint = f" Did you mean {show(near[0])}?" if near else ""
    return f"should be {words}. Found {show(value)}.{hint}"


def show(value: object, max_length: int = 100) -> str:
    """A value as the user may have written it, shortened to ``max_length``."""
    try:
        text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return shortened(text, max_length)


def number_problem(value: object) -> str:
    """Why a JSON number cannot be used; empty if it can be, or if the value is not a number.

    >>> number_problem(2**64), number_problem(2.0)
    ('should be a number of at most 64 bits. Found one of 65 bits.', '')
    """
    if isinstance(value, float) and not isfinite(value):
        beyond = "; what is beyond 1.8e308, such as 1e400, is read as infinite" if isinf(value) else ""
        return f"should be a finite number{beyond}. Found {value}."
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return f"should be a number of at most 64 bits. Found one of {value.bit_length()} bits."
    return ""


def join(*parts: str | int) -> str:
    """A dotted path, without empty parts."""
    return ".".join(str(part) for part in parts if part != "")


def _choices(schema: Schema) -> list[str]:
    constant = [schema["const"]] if "const" in schema else []
    return [show(choice) for choice in schema.get("enum", constant)]


def _either(words: Sequence[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
