"""Turns pydantic's validation errors into problems: the path, what is allowed there and what was written."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import chain
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

#: Key in an error's context under which a component nested in an option keeps its own problems.
INNER = "problems"
_RAISED = ("value_error", "assertion_error")  # the types of errors that validators raise
M = TypeVar("M", bound=BaseModel)
Location = tuple[str | int, ...]
#: The kinds that have an installed component with an option of this name.
Owners = Callable[[str], list[str]]


def read_spec(
    model: type[M], raw: Any, prefix: str = "", owners: Owners | None = None
) -> tuple[M | None, list[Problem]]:
    """Validate ``raw``; returns the model and every problem.

    Invalid keys are left out and the rest is validated again, so that later checks have a model to look at. The model
    is None if too little is left. With ``owners``, an option written beside its component is told where it belongs.
    """
    problems: list[Problem] = []
    for _ in range(10):  # one or two rounds are enough in practice
        try:
            return model.model_validate(raw), problems
        except ValidationError as error:
            problems = problems or problems_of(error, model, prefix, owners)
            details = _causes(error)
            invalid = [detail["loc"][:-1] if detail["type"] == "missing" else detail["loc"] for detail in details]
            raw = _without(raw, {_removable(raw, location) for location in invalid})
    return None, problems


def _causes(error: ValidationError) -> list[ErrorDetails]:
    """The details of an error, without "too short" for a list with an invalid element: pydantic does not count it."""
    details = error.errors(include_url=False)
    return [
        detail
        for detail in details
        if detail["type"] != "too_short"
        or not any(other["loc"][:-1][: len(detail["loc"])] == detail["loc"] for other in details)
    ]


def _without(raw: Any, removed: set[Location], here: Location = ()) -> Any:
    """Copy a JSON value without the keys at the ``removed`` locations; ``here`` is the location of ``raw``."""
    if isinstance(raw, list):
        return [_without(element, removed, (*here, index)) for index, element in enumerate(raw)]
    if not isinstance(raw, dict):
        return raw
    return {key: _without(inner, removed, (*here, key)) for key, inner in raw.items() if (*here, key) not in removed}


def _removable(raw: Any, location: Location) -> Location:
    """The longest prefix of a location that ends in an object's key; removing a list element would shift the others."""
    removable: Location = ()
    node = raw
    for depth, step in enumerate(location, start=1):
        try:
            node = node[step]
        except (LookupError, TypeError):  # the names of unions and validators are not keys
            break
        removable = location[:depth] if isinstance(step, str) else removable
    return removable


def below(path: str, problems: Iterable[Problem]) -> list[Problem]:
    """The problems with ``path`` in front of their own paths."""
    return [Problem(join(path, problem.path), problem.message) for problem in problems]


@contextmanager
def noted(doing: str, problems: list[Problem], path: str = "") -> Iterator[None]:
    """Run a component's code and add whatever it raises to ``problems``."""
    try:
        with guard(doing):
            yield
    except TaskloomError as error:
        problems.append(Problem(path, str(error)))


def problems_of(
    error: ValidationError, model: type[BaseModel], prefix: str = "", owners: Owners | None = None
) -> list[Problem]:
    """The problems behind a validation error, each path below ``prefix``."""
    schema = _schema_of(model)
    groups: dict[tuple[Location, str], list[ErrorDetails]] = {}
    for detail in _causes(error):
        loc, key = detail["loc"], ""
        if loc[-1:] == ("[key]",):
            loc, key = loc[:-2], str(loc[-2])
        steps, _ = _follow(loc, schema)
        location = (*steps, *(loc[-1:] if detail["type"] == "extra_forbidden" else ()))
        groups.setdefault((location, key), []).append(detail)
    problems = (_problems(location, group, model, owners) for (location, _), group in groups.items())
    return below(prefix, chain.from_iterable(problems))


def _problems(
    location: Location, details: Sequence[ErrorDetails], model: type[BaseModel], owners: Owners | None
) -> list[Problem]:
    """The problems at one location, for which pydantic has an error per member of a union."""
    path, depth = join(*location), len(location)
    nested = [
        # Below a union, a location contains pydantic's names of the members, which mean nothing to a user.
        Problem(
            join(path, *(step for step in detail["loc"][depth:] if isinstance(step, int)), inner.path), inner.message
        )
        for detail in details
        for inner in detail.get("ctx", {}).get(INNER, ())
    ]
    if nested:
        return nested
    first = min(details, key=lambda detail: (detail["type"] not in _RAISED, len(detail["loc"])))
    if first["type"] in _RAISED:
        return [Problem(path, f"{first['msg'].partition(', ')[2]}. Found {show(first['input'])}.")]
    schema = _schema_of(model)
    _, node = _follow(location, schema)
    definitions = schema.get("$defs", {})
    if first["type"] == "extra_forbidden":
        component = model.__name__ if depth == 1 and issubclass(model, Options) else ""
        properties = _properties(_without_null(node, definitions), definitions)
        return [Problem(path, _unknown_key(str(location[-1]), properties, component, owners))]
    words = schema_words(node, definitions)
    is_missing = first["type"] == "missing" and len(first["loc"]) == depth
    return [Problem(path, f"is missing; it should be {words}" if is_missing else refusal(words, first["input"]))]


def _properties(node: Schema, definitions: Schema) -> Schema:
    """The properties of an object, or of all objects in a union."""
    members = [_without_null(member, definitions) for member in node.get("anyOf", ())]
    return {key: value for member in (node, *members) for key, value in member.get("properties", {}).items()}


def _unknown_key(key: str, properties: Schema, component: str, owners: Owners | None) -> str:
    """The message for an unknown key of an object, or for an unknown option of a ``component`` (``kind.name``)."""
    keys = list(properties)
    if component:
        kind, _, name = component.partition(".")
        text = unknown("option", key, [option for option in keys if option != "name"], where="options")
        return text.replace(repr(key), f"{key!r} of {kind_word(kind)} {name!r}", 1)
    kinds = [kind for kind in keys if kind_of(properties[kind])]
    if owned := [kind for kind in kinds if kind in owners(key)] if owners else []:
        words, quoted = " or the ".join(map(kind_word, owned)), " or ".join(map(repr, owned))
        return f"{key!r} is an option of the {words}: write it inside {quoted}"
    return unknown("key", key, keys, where="keys")


@cache
def _schema_of(model: type[BaseModel]) -> Schema:
    return model.model_json_schema()


def _follow(loc: Location, schema: Schema) -> tuple[list[str | int], Schema]:
    """Follow a location through a schema; returns the steps that exist in it and the schema they lead to."""
    steps: list[str | int] = []
    definitions, node = schema.get("$defs", {}), schema
    for step in loc:
        inner = _without_null(node, definitions)
        if isinstance(step, int):  # a union of a single element and a list: the list
            inner = next((member for member in inner.get("anyOf", ()) if member.get("type") == "array"), inner)
        fixed = {**inner.get("properties", {}), **dict(enumerate(inner.get("prefixItems", ())))}
        may_be_free = isinstance(step, int) == (inner.get("type") == "array")
        child = fixed.get(step, values_of(inner) if may_be_free else None)
        if child is None:
            break
        steps.append(step)
        node = child
    return steps, node


def _without_null(schema: Schema, definitions: Schema) -> Schema:
    """The schema of ``X`` for that of ``X | None``."""
    schema = referred(schema, definitions)
    members = [member for member in schema.get("anyOf", ()) if member != {"type": "null"}]
    return referred(members[0], definitions) if len(members) == 1 else schema
