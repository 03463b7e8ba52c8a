"""pydantic's validation errors of a specification, as problems in our words."""

from collections.abc import Iterable, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from taskloom.core.errors import Problem, unknown
from taskloom.core.specs import ComponentSpec
from taskloom.core.words import bare, describe, join, keys_of, kind_word, refusal, show, without_null


def problems_of(error: ValidationError, model: type[BaseModel], prefix: str = "") -> list[Problem]:
    """What is wrong with a ``RunSpec``, a ``GridSpec`` or a part of one, in our words.

    ``prefix`` is the path of the part that was validated.
    """
    items = error.errors(include_url=False)
    places = [item["loc"] for item in items]
    found = [
        _problem(item, model, prefix)
        for item in items
        # pydantic counts only the valid items: a list with a bad one is not too short.
        if item["type"] != "too_short" or not any(_inside(place, item["loc"]) for place in places)
    ]
    return list(dict.fromkeys(found))


def _inside(place: tuple[str | int, ...], outer: tuple[str | int, ...]) -> bool:
    return len(place) > len(outer) and place[: len(outer)] == outer


def _problem(item: ErrorDetails, model: Any, prefix: str) -> Problem:
    steps, annotation, metadata = _follow(item["loc"], model)
    path = join(prefix, *steps)
    if item["type"] == "extra_forbidden":
        key = str(item["loc"][-1])
        return Problem(join(path, key), unknown("key", key, keys_of(annotation), where="keys"), "form")
    words = describe(annotation, metadata)
    if annotation is ComponentSpec and steps:
        words = words.replace("component", kind_word(str(steps[-1])), 1)
    if item["type"] == "missing":
        return Problem(path, f"is missing; it should be {words}", "form")
    if annotation is ComponentSpec:
        return Problem(path, f"should be {words}. Found {show(item['input'])}.", "form")
    return Problem(path, refusal(annotation, item["input"], metadata), "form")


def _follow(loc: Sequence[str | int], annotation: Any) -> tuple[list[str | int], Any, Iterable[Any]]:
    """The part of a location that leads through the models, and the type found there.

    A location may go on with names of pydantic's own for the members of a union; those say nothing to a user.
    """
    steps: list[str | int] = []
    metadata: Iterable[Any] = ()
    for step in loc:
        inner, args = without_null(bare(annotation)[0]), get_args(without_null(bare(annotation)[0]))
        home = get_origin(inner) or inner
        if isinstance(home, type) and issubclass(home, BaseModel):
            field = {info.alias or name: info for name, info in home.model_fields.items()}.get(str(step))
            if field is None:
                return steps, inner, metadata
            annotation, metadata = field.annotation, field.metadata
        elif home is dict:
            annotation, metadata = args[1], ()
        elif home is tuple and isinstance(step, int):
            annotation, metadata = args[0 if args[-1] is Ellipsis else min(step, len(args) - 1)], ()
        else:
            break
        steps.append(step)
    return steps, without_null(annotation) if _is_model(annotation) else annotation, metadata


def _is_model(annotation: Any) -> bool:
    inner = without_null(bare(annotation)[0])
    return isinstance(inner, type) and issubclass(inner, BaseModel)
