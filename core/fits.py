"""Whether a JSON value fits a JSON schema, and where it does not: the part of draft 2020-12 that our schemas use.

It says the same as any validator of that draft: 1.0 is a whole number, true is no 1, lengths count characters.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

from taskloom.core.forms import SLOT
from taskloom.core.words import show

Place = tuple[str | int, ...]


@dataclass(frozen=True)
class Refusal:
    """A place in a value, what is wrong there, and the schema's word for it."""

    place: Place
    message: str
    keyword: str


def fits(schema: Any, value: Any, parts: Mapping[str, Any] | None = None) -> bool:
    """Whether a value fits; ``parts`` are the schema's ``$defs``.

    >>> fits({"type": "integer", "minimum": 1}, 1.0), fits({"enum": [1]}, True)
    (True, False)
    """
    return next(refusals(schema, value, parts or {}), None) is None


def refusals(schema: Any, value: Any, parts: Mapping[str, Any], place: Place = ()) -> Iterator[Refusal]:
    """Every way in which a value does not fit."""
    if schema is True or schema == {}:
        return
    if schema is False:
        yield Refusal(place, f"should not be here. Found {show(value)}.", "false")
        return
    for keyword, wanted in schema.items():
        check = _CHECKS.get(keyword)
        if check is not None:
            yield from check(schema, wanted, value, parts, place)


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(item, other[key]) for key, item in one.items())
    return bool(one == other)


def _key(value: Any) -> Any:
    """Something to look up a JSON value by: equal for values that are :func:`same`."""
    if isinstance(value, list):
        return "list", tuple(_key(item) for item in value)
    if isinstance(value, dict):
        return "object", frozenset((key, _key(item)) for key, item in value.items())
    return isinstance(value, bool), value


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _remainder(value: Any, step: Any) -> Any:
    """What is left of a division, exactly: a whole number may be too large for a float."""
    return Fraction(value) % Fraction(step) if isinstance(value, int) else value % step


_TYPES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "null": ("null", lambda value: value is None),
    "boolean": ("true or false", lambda value: isinstance(value, bool)),
    "number": ("a number", _number),
    "integer": ("a whole number", lambda value: _number(value) and (isinstance(value, int) or value.is_integer())),
    "string": ("a text", lambda value: isinstance(value, str)),
    "array": ("a list", lambda value: isinstance(value, list)),
    "object": ("an object", lambda value: isinstance(value, dict)),
}
_LIMITS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "minimum": ("of at least {}", lambda value, limit: not _number(value) or value >= limit),
    "maximum": ("of at most {}", lambda value, limit: not _number(value) or value <= limit),
    "exclusiveMinimum": ("above {}", lambda value, limit: not _number(value) or value > limit),
    "exclusiveMaximum": ("below {}", lambda value, limit: not _number(value) or value < limit),
    "multipleOf": ("in steps of {}", lambda value, limit: not _number(value) or _remainder(value, limit) == 0),
    "minLength": ("of length {} or more", lambda value, limit: not isinstance(value, str) or len(value) >= limit),
    "maxLength": ("of length {} or less", lambda value, limit: not isinstance(value, str) or len(value) <= limit),
    "minItems": ("a list of {} or more", lambda value, limit: not isinstance(value, list) or len(value) >= limit),
    "maxItems": ("a list of {} or less", lambda value, limit: not isinstance(value, list) or len(value) <= limit),
    "minProperties": ("with {} or more keys", lambda value, limit: not isinstance(value, dict) or len(value) >= limit),
    "maxProperties": ("with {} or less keys", lambda value, limit: not isinstance(value, dict) or len(value) <= limit),
    "pattern": ("that matches '{}'", lambda value, limit: not isinstance(value, str) or bool(re.search(limit, value))),
    "enum": ("one of {}", lambda value, limit: any(same(value, one) for one in limit)),
    "const": ("{}", lambda value, limit: same(value, limit)),
    SLOT: (
        "a {}: a name, or an object",
        lambda value, limit: isinstance(value.get("name") if isinstance(value, dict) else value, str),
    ),
}


def _limit(keyword: str, schema: Any, wanted: Any, value: Any, parts: Any, place: Place) -> Iterator[Refusal]:
    words, check = _LIMITS[keyword]
    if not check(value, wanted):
        said = words.format(", ".join(map(show, wanted)) if isinstance(wanted, list) else wanted)
        yield Refusal(place, f"should be {said}. Found {show(value)}.", keyword)


def _type(schema: Any, wanted: Any, value: Any, parts: Any, place: Place) -> Iterator[Refusal]:
    names = [wanted] if isinstance(wanted, str) else wanted
    if not any(_TYPES[name][1](value) for name in names):
        yield Refusal(
            place, f"should be {' or '.join(_TYPES[name][0] for name in names)}. Found {show(value)}.", "type"
        )


def _ref(schema: Any, wanted: str, value: Any, parts: Any, place: Place) -> Iterator[Refusal]:
    yield from refusals(parts[wanted.removeprefix("#/$defs/")], value, parts, place)


def _items(schema: Any, wanted: Any, value: Any, parts: Any, place: Place) -> Iterator[Refusal]:
    if isinstance(value, list):
        first = len(schema.get("prefixItems", ()))
        for index, item in enumerate(value[first:], start=first):
            yield from refusals(wanted, item, parts, (*place, index))


def _prefix(schema: Any, wanted: Any, value: Any, parts: Any, place: Place) -> Iterator[Refusal]:
    if isinstance(value, list):
        for index, (inner, item) in enumerate(zip(wanted, value, strict=False)):
            yield from refusals(inner, item, parts, (*place, index))


def _unique(schema: Any, wanted: Any, value: Any, parts: Any, place: Place) -> Iterator[Refusal]:
    if isinstance(value, list) and wanted:
        seen = set[Any]()
        for one in value:
            if _key(one) in seen:
                yield Refusal(place, f"each should stand once. Found {show(one)} more than once.", "uniqueItems")
                return
            seen.add(_key(one))


def _properties(schema: Any, wanted: Any, value: Any, parts: Any, place: Place) -> Iterator[Refusal]:
    if isinstance(value, dict):
        for key in value.keys() & wanted.keys():
            yield from refusals(wanted[key], value[key], parts, (*place, key))


def _patterns(schema: Any, wanted: Any, value: Any, parts: Any, place: Place) -> Iterator[Refusal]:
    if isinstance(value, dict):
        for key, item in value.items():
            for pattern, inner in wanted.items():
                if re.search(pattern, key):
                    yield from refusals(inner, item, parts, (*place, key))


def _others(schema: Any, wanted: Any, value: Any, parts: Any, place: Place) -> Iterator[Refusal]:
    if not isinstance(value, dict):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", ())
    for key, item in value.items():
        if key not in known and not any(re.search(pattern, key) for pattern in patterns):
            if wanted is False:
                yield Refusal((*place, key), "is not known here", "additionalProperties")
            else:
                yield from refusals(wanted, item, parts, (*place, key))


def _names(schema: Any, wanted: Any, value: Any, parts: Any, place: Place) -> Iterator[Refusal]:
    if isinstance(value, dict):
        for key in value:
            for one in refusals(wanted, key, parts, place):
                yield Refusal((*place, key), f"the key {one.message}", "propertyNames")


def _required(schema: Any, wanted: Any, value: Any, parts: Any, place: Place) -> Iterator[Refusal]:
    if isinstance(value, dict):
        for key in wanted:
            if key not in value:
                yield Refusal((*place, key), "is missing", "required")


def _any_of(schema: Any, wanted: Any, value: Any, parts: Any, place: Place) -> Iterator[Refusal]:
    tried = []
    for one in wanted:
        found = list(refusals(one, value, parts, place))
        if not found:
            return
        tried.append(found)
    # What was meant is most likely the choice that fits farthest down.
    yield from max(tried, key=lambda found: (min(_depth(one) for one in found), -len(found)), default=())


def _depth(refusal: Refusal) -> float:
    wrong_choice = refusal.keyword == "const" and refusal.place[-1:] == ("name",)
    return len(refusal.place) - (1.5 if wrong_choice else 0)


def _all_of(schema: Any, wanted: Any, value: Any, parts: Any, place: Place) -> Iterator[Refusal]:
    for one in wanted:
        yield from refusals(one, value, parts, place)


def _not(schema: Any, wanted: Any, value: Any, parts: Any, place: Place) -> Iterator[Refusal]:
    if fits(wanted, value, parts):
        yield Refusal(place, f"should be something else. Found {show(value)}.", "not")


Check = Callable[[Any, Any, Any, Any, Place], Iterator[Refusal]]
_CHECKS: dict[str, Check] = {
    "$ref": _ref,
    "type": _type,
    "items": _items,
    "prefixItems": _prefix,
    "uniqueItems": _unique,
    "properties": _properties,
    "patternProperties": _patterns,
    "additionalProperties": _others,
    "propertyNames": _names,
    "required": _required,
    "anyOf": _any_of,
    "allOf": _all_of,
    "not": _not,
    **{keyword: partial(_limit, keyword) for keyword in _LIMITS},
}
