"""pydantic's validation errors as problems in our words: where, what is allowed, what was found."""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from taskloom.core.errors import Problem, unknown
from taskloom.core.specs import ComponentSpec
from taskloom.registry.installed.options import Options
from taskloom.registry.installed.words import bare, component_words, describe, join, keys_of, kind_word, refusal, show

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
            raw = _without(raw, error)
    return None, problems


def _without(raw: Any, error: ValidationError) -> Any:
    """A copy without everything that the error complains of."""
    rest: Any = deepcopy(raw)
    found = [item["loc"][:-1] if item["type"] == "missing" else item["loc"] for item in error.errors()]
    places = {_removable(raw, place) for place in found}
    for place in places:
        if any(other != place and other[: len(place)] == place for other in places):
            continue  # a list without its bad items is "too short": only a consequence
        home: Any = rest
        for step in place[:-1]:
            home = home[step]
        if place and isinstance(home, dict):
            home.pop(place[-1], None)
    return rest


def _removable(raw: Any, place: Location) -> Location:
    """The place, or the nearest around it, that is the key of an object: to take out of a list would shift the rest."""
    removable: Location = ()
    node = raw
    for depth, step in enumerate(place, start=1):
        if isinstance(node, dict) and step in node:
            node, removable = node[step], place[:depth]
        elif isinstance(node, list) and isinstance(step, int) and step < len(node):
            node = node[step]
        else:
            break  # the names of unions and validators are not keys
    return removable


def below(path: str, problems: Iterable[Problem]) -> list[Problem]:
    """The problems of a part, with their paths in the whole; ``path`` is where the part is."""
    return [Problem(join(path, one.path), one.message) for one in problems]


def problems_of(error: ValidationError, model: type[BaseModel], prefix: str = "") -> list[Problem]:
    """What is wrong with a specification or with a component's options; ``prefix`` is the path of what was read."""
    items = error.errors(include_url=False)
    groups: dict[tuple[str, str], list[ErrorDetails]] = {}
    for item in items:
        # pydantic counts only the valid items: a list with a bad one is not too short.
        if item["type"] != "too_short" or not any(_inside(other["loc"], item["loc"]) for other in items):
            *_, last = ("", *item["loc"])
            path = join(prefix, *_follow(item["loc"], model)[0], last if item["type"] == "extra_forbidden" else "")
            key = str(item["loc"][-2]) if last == "[key]" else ""
            groups.setdefault((path, key), []).append(item)
    return [problem for (path, _), group in groups.items() for problem in _problems(path, group, model)]


def _problems(path: str, items: Sequence[ErrorDetails], model: type[BaseModel]) -> list[Problem]:
    """The problems at one path, where every member of a union may have something to say."""
    found = [
        Problem(join(path, *_places_in_lists(item["loc"], model), inner.path), inner.message)
        for item in items
        for inner in item.get("ctx", {}).get(INNER, ())
    ]
    if found:
        return found
    item = min(items, key=lambda item: (item["type"] not in _OWN, len(item["loc"])))
    steps, annotation, metadata = _follow(item["loc"], model)
    if item["type"] == "extra_forbidden" and _is_model(annotation):
        return [Problem(path, _unknown_key(str(item["loc"][-1]), annotation))]
    if item["type"] in _OWN:
        return [Problem(path, f"{item['msg'].partition(', ')[2]}. Found {show(item['input'])}.")]
    is_component = annotation is ComponentSpec and bool(steps)
    words = component_words(str(steps[-1])) if is_component else describe(annotation, metadata)
    if item["type"] == "missing":
        return [Problem(path, f"is missing; it should be {words}")]
    if is_component:
        return [Problem(path, f"should be {words}. Found {show(item['input'])}.")]
    return [Problem(path, refusal(annotation, item["input"], metadata))]


def _places_in_lists(loc: Location, model: type[BaseModel]) -> list[int]:
    """What is left of a location below a union, without pydantic's names for the union's members."""
    return [step for step in loc[len(_follow(loc, model)[0]) :] if isinstance(step, int)]


def _unknown_key(key: str, model: type[BaseModel]) -> str:
    if issubclass(model, Options):
        kind, _, name = model.__name__.partition(".")
        text = unknown("option", key, [one for one in keys_of(model) if one != "name"], where="options")
        return text.replace(repr(key), f"{key!r} of {kind_word(kind)} {name!r}", 1)
    parts = [name for name, field in model.model_fields.items() if field.annotation is ComponentSpec]
    text = unknown("key", key, keys_of(model), where="keys")
    if parts and "did you mean" not in text:
        text += f"; an option of the {' or the '.join(map(kind_word, parts))} should be inside that object"
    return text


def _inside(place: Location, outer: Location) -> bool:
    return len(place) > len(outer) and place[: len(outer)] == outer


def _follow(loc: Location, annotation: Any) -> tuple[list[str | int], Any, Iterable[Any]]:
    """The part of a location that leads through the models, and the type found there.

    A location may go on with names of pydantic's own for the members of a union; those say nothing to a user.
    """
    steps: list[str | int] = []
    metadata: Iterable[Any] = ()
    for place, step in enumerate(loc):
        inner = _without_null(bare(annotation)[0])
        home, args = get_origin(inner) or inner, get_args(inner)
        if not isinstance(home, type):
            break
        if issubclass(home, BaseModel):
            field = {info.alias or name: info for name, info in home.model_fields.items()}.get(str(step))
            if field is None:
                return steps, inner, metadata
            annotation, metadata = field.annotation, (field,)
        elif issubclass(home, Mapping) and len(args) == 2:
            if loc[place + 1 :] == ("[key]",):
                return steps, args[0], ()
            annotation, metadata = args[1], ()
        elif issubclass(home, Sequence) and args and isinstance(step, int):
            annotation, metadata = args[min(step, len(args) - 1) if home is tuple and args[-1] is not ... else 0], ()
        else:
            break
        steps.append(step)
    return steps, _without_null(annotation) if _is_model(annotation) else annotation, metadata


def _without_null(annotation: Any) -> Any:
    """``X`` for ``X | None``."""
    rest = [arg for arg in get_args(annotation) if arg is not NoneType]
    return bare(rest[0])[0] if get_origin(annotation) in (Union, UnionType) and len(rest) == 1 else annotation


def _is_model(annotation: Any) -> bool:
    inner = _without_null(bare(annotation)[0])
    return isinstance(inner, type) and issubclass(inner, BaseModel)
