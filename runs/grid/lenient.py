"""Reading a specification that is wrong in places: every problem, and as much as can be used all the same."""

from copy import deepcopy
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from taskloom.core.errors import Problem
from taskloom.registry.installed.problems import problems_of

M = TypeVar("M", bound=BaseModel)
Place = tuple[int | str, ...]


def read(model: type[M], raw: Any, prefix: str = "") -> tuple[M | None, list[Problem]]:
    """The model of ``raw``, and all that is wrong with it.

    Where something is wrong the model is that of the rest, so that what comes later can be checked too; None if too
    little is left.
    """
    problems: list[Problem] = []
    for _ in range(10):  # a sound rest shows after a round or two
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


def _removable(raw: Any, place: Place) -> Place:
    """The place, or the nearest around it, that is the key of an object: to take out of a list would shift the rest."""
    longest: Place = ()
    node = raw
    for depth, step in enumerate(place, start=1):
        if isinstance(node, dict) and step in node:
            node, longest = node[step], place[:depth]
        elif isinstance(node, list) and isinstance(step, int) and step < len(node):
            node = node[step]
        else:
            break  # the names of unions and validators are no keys
    return longest
