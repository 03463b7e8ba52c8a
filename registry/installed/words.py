"""Types and values in words: what is allowed, and what was found."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from difflib import get_close_matches
from enum import Enum
from pathlib import PurePath
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, JsonValue
from pydantic.fields import FieldInfo

from taskloom.core.component import Component

_SIMPLE = {bool: "true or false", int: "an integer", float: "a number", str: "a string", NoneType: "null"}
_ANYTHING = "any JSON value"
_LIMITS = {
    "ge": "of at least {}",
    "gt": "above {}",
    "le": "of at most {}",
    "lt": "below {}",
    "multiple_of": "that is a multiple of {}",
    "min_length": "of length {} or more",
    "max_length": "of length {} or less",
    "pattern": "that matches '{}'",
}


def kind_word(kind: str) -> str:
    """What a kind of component is called in a sentence."""
    return {"data": "data set"}.get(kind, kind)


def component_words(kind: str) -> str:
    """What to write where a component of this kind belongs."""
    return f'{"an" if kind[0] in "aeiou" else "a"} {kind_word(kind)}: a name, or an object with "name" and options'


def describe(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """What a value of this type should be.

    >>> from pydantic import Field
    >>> describe(Annotated[float, Field(ge=0, lt=1)] | Literal["auto"] | None)
    "a number of at least 0 and below 1, 'auto' or null"
    """
    annotation, metadata = bare(annotation, metadata)
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        choices = [_choices(arg) or [describe(arg, () if arg is NoneType else metadata)] for arg in args]
        return _either([words for choice in choices for words in choice])
    return " ".join([_described(annotation, origin, args), *_limits(metadata), *_items(origin, args)])


def _described(annotation: Any, origin: Any, args: tuple[Any, ...]) -> str:
    home = origin or annotation
    if origin is Literal:
        return _either(_choices(annotation))
    if home in _SIMPLE:
        return _SIMPLE[home]
    if not isinstance(home, type) or home is object or annotation is JsonValue:
        return _ANYTHING
    if home is tuple and args and args[-1] is not Ellipsis:
        return f"a list of {len(args)} ({', '.join(map(describe, args))})"
    if issubclass(home, Component):
        return component_words(home.kind)
    if issubclass(home, BaseModel):
        return f"an object with {', '.join(keys_of(home))}"
    if issubclass(home, Enum):
        return _either([show(member.value) for member in home])
    words = {PurePath: "a path", Mapping: "an object", Sequence: "a list", Set: "a list"}
    return next((text for kind, text in words.items() if issubclass(home, kind)), home.__name__)


def _items(origin: Any, args: tuple[Any, ...]) -> list[str]:
    """What the items of a collection should be, where that says something."""
    if not isinstance(origin, type) or not args or (origin is tuple and args[-1] is not Ellipsis):
        return []
    words = describe(args[-1] if issubclass(origin, Mapping) else args[0])
    return [] if words == _ANYTHING else [f"({'each value' if issubclass(origin, Mapping) else 'each'}: {words})"]


def refusal(annotation: Any, value: object, metadata: Iterable[Any] = ()) -> str:
    """The message for a value that does not fit: what it should be, what was found, the nearest choice.

    >>> refusal(Literal["sum", "mean"], "maen")
    "should be 'sum' or 'mean'. Found 'maen'. Did you mean 'mean'?"
    """
    words = describe(annotation, metadata)
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


def keys_of(model: type[BaseModel]) -> list[str]:
    """The keys that a user may write in an object of this model."""
    return [info.alias or name for name, info in model.model_fields.items()]


def bare(annotation: Any, metadata: Iterable[Any] = ()) -> tuple[Any, list[Any]]:
    """A type without its wrapping, and the limits that the wrapping states."""
    found = list(metadata)
    while get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        found = [*more, *found]
    return annotation, [part for one in found for part in _parts(one)]


def _parts(one: Any) -> list[Any]:
    """What a ``Field`` states; with an example there is no need to show its pattern."""
    if not isinstance(one, FieldInfo):
        return [one]
    return [one] if one.examples else list(one.metadata)


def _choices(annotation: Any) -> list[str]:
    return [show(arg) for arg in get_args(annotation)] if get_origin(annotation) is Literal else []


def _limits(metadata: Iterable[Any]) -> list[str]:
    examples = [f"such as {show(one.examples[0])}" for one in metadata if getattr(one, "examples", None)]
    stated = [
        words.format(limit)
        for one in metadata
        for key, words in _LIMITS.items()
        if (limit := getattr(one, key, None)) is not None
    ]
    return examples or ([" and ".join(stated)] if stated else [])


def _either(words: Sequence[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
