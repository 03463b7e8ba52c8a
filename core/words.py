"""Types and values in words: what should be there, and what was found."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from datetime import date, datetime
from decimal import Decimal
from difflib import get_close_matches
from enum import Enum, Flag
from pathlib import PurePath
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from uuid import UUID

from pydantic import BaseModel, JsonValue
from pydantic.fields import FieldInfo

from taskloom.core import specs
from taskloom.core.component import Component

_SIMPLE = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", NoneType: "null"}
_SIMPLE |= {Any: "any JSON value", object: "any JSON value", Decimal: "a number", UUID: "a UUID"}
_SIMPLE |= {date: "a date as in '2026-01-31'", datetime: "a moment as in '2026-01-31T12:00:00'"}
_LIMITS = {
    "ge": "of at least {}",
    "gt": "above {}",
    "le": "of at most {}",
    "lt": "below {}",
    "multiple_of": "in steps of {}",
    "min_length": "of length {} or more",
    "max_length": "of length {} or less",
    "pattern": "that matches {}",
}


def kind_word(kind: str) -> str:
    """What a kind of component is called in a sentence."""
    return {"data": "data set"}.get(kind, kind)


def describe(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """What a value of this type should be.

    >>> from pydantic import Field
    >>> describe(Annotated[float, Field(ge=0, lt=1)] | Literal["auto"] | None)
    "a number of at least 0 and below 1, 'auto' or null"
    """
    annotation, metadata = bare(annotation, metadata)
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        choices = [_choices_of(arg) or [describe(arg, () if arg is NoneType else metadata)] for arg in args]
        return _either([words for choice in choices for words in choice])
    return " ".join([_described(annotation, origin, args), *_limits(metadata), *_items(origin, args)])


def _described(annotation: Any, origin: Any, args: tuple[Any, ...]) -> str:
    if annotation is JsonValue:
        return "any JSON value"
    if origin is Literal:
        return _either(_choices_of(annotation))
    home = origin or annotation
    if origin is tuple and not args:
        return "an empty list"
    if home is tuple and args and args[-1] is not Ellipsis:
        return f"a list of {len(args)} ({', '.join(map(describe, args))})"
    if not isinstance(home, type):
        return _SIMPLE.get(home, str(annotation))
    if issubclass(home, Component):
        return f'a {kind_word(home.kind)}: a name, or an object with "name" and options'
    if home is specs.ComponentSpec:
        return 'a component: a name, or an object with "name" and options'
    if issubclass(home, BaseModel):
        return f"an object with {', '.join(keys_of(home))}"
    if issubclass(home, Enum):
        values = [show(member.value) for member in home]
        return f"a sum of any of {', '.join(values)}" if issubclass(home, Flag) else _either(values)
    if issubclass(home, PurePath):
        return "a path"
    if home in _SIMPLE:
        return _SIMPLE[home]
    if issubclass(home, Mapping):
        return "an object"
    if issubclass(home, Sequence | Set):
        return "a list"
    return home.__name__


def _items(origin: Any, args: tuple[Any, ...]) -> list[str]:
    """What the items of a collection should be, where that says something."""
    if not isinstance(origin, type) or not args or (origin is tuple and args[-1] is not Ellipsis):
        return []
    mapping = issubclass(origin, Mapping)
    if mapping and len(args) < 2:  # a counter's values are numbers; what another mapping's are, only its author knows
        return ["(each value: a whole number)"] if issubclass(origin, Counter) else []
    words = describe(args[1] if mapping else args[0])
    return [] if words == _SIMPLE[object] else [f"({'each value' if mapping else 'each'}: {words})"]


def refusal(annotation: Any, value: object, metadata: Iterable[Any] = ()) -> str:
    """The message for a value that does not fit: what it should be, what was found, the nearest choice.

    >>> refusal(Literal["sum", "mean"], "maen")
    "should be 'sum' or 'mean'. Found 'maen'. Did you mean 'mean'?"
    """
    near = get_close_matches(value, _texts_of(annotation), n=1) if isinstance(value, str) else []
    hint = f" Did you mean {show(near[0])}?" if near else ""
    return f"should be {describe(annotation, metadata)}. Found {show(value)}.{hint}"


def show(value: object, longest: int = 100) -> str:
    """A value as the user may have written it, cut where it is long."""
    try:
        text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def join(*parts: str | int) -> str:
    """A dotted path, without empty parts."""
    return ".".join(str(part) for part in parts if part != "")


def keys_of(model: type[BaseModel]) -> list[str]:
    """The keys that a user may write in an object of this model."""
    return [info.alias or name for name, info in model.model_fields.items()]


def bare(annotation: Any, metadata: Iterable[Any] = ()) -> tuple[Any, list[Any]]:
    """A type without its wrapping, and all that the wrapping says."""
    found = list(metadata)
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *more = get_args(annotation)
            found = [*more, *found]
        elif annotation is not JsonValue and hasattr(annotation, "__value__"):
            annotation = annotation.__value__
        else:
            flat = [inner for one in found for inner in (one.metadata if isinstance(one, FieldInfo) else [one])]
            return annotation, flat


def without_null(annotation: Any) -> Any:
    """``X`` for ``X | None``."""
    rest = [arg for arg in get_args(annotation) if arg is not NoneType]
    return rest[0] if get_origin(annotation) in (Union, UnionType) and len(rest) == 1 else annotation


def _texts_of(annotation: Any) -> list[str]:
    annotation = bare(annotation)[0]
    args = get_args(annotation)
    if get_origin(annotation) is Literal:
        return [arg for arg in args if isinstance(arg, str)]
    if get_origin(annotation) in (Union, UnionType):
        return [choice for arg in args for choice in _texts_of(arg)]
    return []


def _choices_of(annotation: Any) -> list[str]:
    return [show(arg) for arg in get_args(annotation)] if get_origin(annotation) is Literal else []


def _limits(metadata: Iterable[Any]) -> list[str]:
    said = [
        words.format(limit if key != "pattern" else f"'{limit}'")
        for one in metadata
        for key, words in _LIMITS.items()
        if (limit := getattr(one, key, None)) is not None
    ]
    return [" and ".join(said)] if said else []


def _either(words: Sequence[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
