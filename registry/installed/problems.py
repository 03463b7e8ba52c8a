"""pydantic's validation errors as problems in our words: where, what is allowed, what was found."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from taskloom.core.errors import Problem, TaskloomError, unknown
from taskloom.registry.installed.manager import guard
from taskloom.registry.installed.options import Options
from taskloom.registry.installed.words import (
    Schema,
    join,
    kind_of,
    kind_word,
    referred,
    refusal,
    schema_words,
    show,
    values_of,
)

#: Where the error of a component inside an option keeps that component's own problems.
INNER = "problems"
_OWN = ("value_error", "assertion_error")  # what validators raise
M = TypeVar("M", bound=BaseModel)
Location = tuple[str | int, ...]


def read_spec(model: type[M], raw: Any, prefix: str = "") -> tuple[M | None, list[Problem]]:
    """The model of ``raw``, and all that is wrong with it.

    Where something is wrong the model is that of the rest, so that what comes later can be checked too; None if too
    little is left.
    """
    problems: list[Problem] = []
    for _ in range(10):  # a valid rest shows after a round or two
        try:
            return model.model_validate(raw), problems
        except ValidationError as error:
            problems = problems or problems_of(error, model, prefix)
            found = [item["loc"][:-1] if item["type"] == "missing" else item["loc"] for item in _causes(error)]
            raw = _without(raw, {_removable(raw, place) for place in found})
    return None, problems


def _causes(error: ValidationError) -> list[ErrorDetails]:
    """What the error complains of; pydantic counts only valid items, so a list with a bad one is not "too short"."""
    items = error.errors(include_url=False)
    return [
        item
        for item in items
        if item["type"] != "too_short"
        or not any(other["loc"][:-1][: len(item["loc"])] == item["loc"] for other in items)
    ]


def _without(raw: Any, places: set[Location], here: Location = ()) -> Any:
    """A copy without what is at these places."""
    if isinstance(raw, list):
        return [_without(item, places, (*here, place)) for place, item in enumerate(raw)]
    if not isinstance(raw, dict):
        return raw
    return {key: _without(item, places, (*here, key)) for key, item in raw.items() if (*here, key) not in places}


def _removable(raw: Any, place: Location) -> Location:
    """The place, or the nearest around it, that is the key of an object: to take out of a list would shift the rest."""
    removable: Location = ()
    node = raw
    for depth, step in enumerate(place, start=1):
        try:
            node = node[step]
        except (LookupError, TypeError):  # the names of unions and validators are not keys
            break
        removable = place[:depth] if isinstance(step, str) else removable
    return removable


def below(path: str, problems: Iterable[Problem]) -> list[Problem]:
    """The problems of a part, with their paths in the whole; ``path`` is where the part is."""
    return [Problem(join(path, one.path), one.message) for one in problems]


@contextmanager
def noted(doing: str, problems: list[Problem], path: str = "") -> Iterator[None]:
    """Run a component's code: whatever it raises is added to ``problems``."""
    try:
        with guard(doing):
            yield
    except TaskloomError as error:
        problems.append(Problem(path, str(error)))


def problems_of(error: ValidationError, model: type[BaseModel], prefix: str = "") -> list[Problem]:
    """What is wrong with a specification or with a component's options; ``prefix`` is the path of what was read."""
    groups: dict[tuple[Location, str], list[ErrorDetails]] = {}
    for item in _causes(error):
        loc, key = item["loc"], ""
        if loc[-1:] == ("[key]",):
            loc, key = loc[:-2], str(loc[-2])
        steps, _ = _follow(loc, _schema_of(model))
        place = (*steps, *(loc[-1:] if item["type"] == "extra_forbidden" else ()))
        groups.setdefault((place, key), []).append(item)
    found = [problem for (place, _), items in groups.items() for problem in _problems(place, items, model)]
    return below(prefix, found)


def _problems(place: Location, items: Sequence[ErrorDetails], model: type[BaseModel]) -> list[Problem]:
    """The problems at one place, where every member of a union may have something to say."""
    path, depth = join(*place), len(place)
    found = [
        # Below a union a location goes on with pydantic's names for its members; those say nothing to a user.
        Problem(join(path, *(step for step in item["loc"][depth:] if isinstance(step, int)), inner.path), inner.message)
        for item in items
        for inner in item.get("ctx", {}).get(INNER, ())
    ]
    if found:
        return found
    item = min(items, key=lambda item: (item["type"] not in _OWN, len(item["loc"])))
    if item["type"] in _OWN:
        return [Problem(path, f"{item['msg'].partition(', ')[2]}. Found {show(item['input'])}.")]
    schema = _schema_of(model)
    _, node = _follow(place, schema)
    parts = schema.get("$defs", {})
    if item["type"] == "extra_forbidden":
        is_option = depth == 1 and issubclass(model, Options)
        return [
            Problem(path, _unknown_key(str(place[-1]), _without_null(node, parts), model.__name__ if is_option else ""))
        ]
    words = schema_words(node, parts)
    is_missing = item["type"] == "missing" and len(item["loc"]) == depth
    return [Problem(path, f"is missing; it should be {words}" if is_missing else refusal(words, item["input"]))]


def _unknown_key(key: str, node: Schema, component: str) -> str:
    """The message for a key that an object does not have, or an option that a component (``kind.name``) does not."""
    keys = list(node["properties"])
    if component:
        kind, _, name = component.partition(".")
        text = unknown("option", key, [one for one in keys if one != "name"], where="options")
        return text.replace(repr(key), f"{key!r} of {kind_word(kind)} {name!r}", 1)
    homes = [one for one in keys if kind_of(node["properties"][one])]
    if owners := _owners(key, homes) if homes else []:
        words, places = " or the ".join(map(kind_word, owners)), " or ".join(map(repr, owners))
        return f"{key!r} is an option of the {words}: write it inside {places}"
    return unknown("key", key, keys, where="keys")


def _owners(option: str, kinds: Iterable[str]) -> list[str]:
    """Those of the kinds of which some installed component has such an option."""
    from taskloom.registry.installed.catalogue import load_catalogue  # imports torch, and this module

    entries = load_catalogue().entries
    return [kind for kind in kinds if any(one.kind == kind and option in one.options for one in entries)]


@cache
def _schema_of(model: type[BaseModel]) -> Schema:
    return model.model_json_schema()


def _follow(loc: Location, schema: Schema) -> tuple[list[str | int], Schema]:
    """The part of a location that leads through a schema, and the schema of what is there."""
    steps: list[str | int] = []
    parts, node = schema.get("$defs", {}), schema
    for step in loc:
        inner = _without_null(node, parts)
        if isinstance(step, int):  # of what may be one or a list, the list
            inner = next((one for one in inner.get("anyOf", ()) if one.get("type") == "array"), inner)
        fixed = {**inner.get("properties", {}), **dict(enumerate(inner.get("prefixItems", ())))}
        is_item = isinstance(step, int) == (inner.get("type") == "array")
        found = fixed.get(step, values_of(inner) if is_item else None)
        if found is None:
            break
        steps.append(step)
        node = found
    return steps, node


def _without_null(schema: Schema, parts: Schema) -> Schema:
    """``X`` for ``X | None``."""
    schema = referred(schema, parts)
    rest = [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]
    return referred(rest[0], parts) if len(rest) == 1 else schema
