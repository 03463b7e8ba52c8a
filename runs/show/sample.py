"""A value that an option takes, for a snippet that can be pasted into a grid."""

import json
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import PurePath
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

from pydantic import TypeAdapter

from taskloom.core import Component
from taskloom.core.options import Option
from taskloom.core.words import bare

if TYPE_CHECKING:
    from taskloom.registry.installed.catalogue import Catalogue


def sample(catalogue: "Catalogue", option: Option) -> Any:
    """A value that the option accepts; None if none of those that come to mind is one."""
    for value in _values(catalogue, option.annotation):
        try:
            TypeAdapter(option.annotation).validate_json(json.dumps(value), strict=True)
        except ValueError:
            continue
        return value
    return None


def _values(catalogue: "Catalogue", annotation: Any) -> Iterator[Any]:
    """JSON values that may be of a type, the likeliest first."""
    annotation, limits = bare(annotation)
    origin, args = get_origin(annotation), get_args(annotation)
    home = origin or annotation
    if origin is Literal:
        yield from args
    elif origin in (Union, UnionType):
        for arg in args:
            yield from _values(catalogue, arg)
    elif not isinstance(home, type):
        yield from (1, "text", [], {})
    elif issubclass(home, Component):
        yield from _components(catalogue, home.kind)
    elif issubclass(home, Enum):
        yield from (member.value for member in home)
    elif issubclass(home, Mapping):
        inner = list(_values(catalogue, args[-1]))[:8] if args else [1]
        yield from ({"mine": value} for value in inner)
    elif issubclass(home, str | PurePath):
        yield from ("text", "a", "text.txt")
    elif home is bool:
        yield True
    elif issubclass(home, int | float):
        yield from _numbers(limits)
    else:
        inner = list(_values(catalogue, args[0]))[:8] if args else [1]
        yield from ([value] * count for count in (1, 2, 3, 4) for value in inner)


def _numbers(limits: list[Any]) -> Iterator[float]:
    bounds = [
        getattr(one, name) for one in limits for name in ("ge", "gt", "le", "lt", "multiple_of") if hasattr(one, name)
    ]
    yield from (1, 0.5, 0, 2, -1)
    for bound in bounds:
        yield from (bound, bound + 1, bound - 1, bound + 0.5, bound - 0.5, 2 * bound)


def _components(catalogue: "Catalogue", kind: str) -> Iterator[str]:
    for entry in catalogue.entries:
        if entry.kind == kind and not any(option.required for option in entry.options.values()):
            yield entry.name
