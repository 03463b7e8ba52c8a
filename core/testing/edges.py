"""The edges of what an option allows: its bounds, what is just inside, every choice, both answers, nothing."""

import json
import math
from collections.abc import Iterable, Iterator
from enum import Enum
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import TypeAdapter

from taskloom.core.component import Component
from taskloom.core.options import Option, options_of
from taskloom.core.testing.law import RAISED, Subject
from taskloom.core.words import bare

_NUDGE = 0.01  # how far inside a bound, as a share of the range (or of 1): a power near 0 is not like 0


def known_options(component: type[Component]) -> dict[str, Option]:
    """The options of a class; none where its constructor breaks a rule, which is a law of its own."""
    key: Any = component  # as a key of the cache, for which a class is as good as anything
    return _known_options(key)


@lru_cache(maxsize=128)
def _known_options(component: Any) -> dict[str, Option]:
    try:
        return options_of(component)
    except RAISED:
        return {}


def edges_of(subject: Subject) -> Iterator[Subject]:
    """The subject with one option at a time at each edge of its range."""
    for name, option in known_options(subject.component).items():
        for value in edge_values(option):
            if _differs(subject, option, value):
                yield Subject(subject.component, {**subject.options, name: value}, quick=True)


def _differs(subject: Subject, option: Option, value: Any) -> bool:
    if option.name not in subject.options:
        return option.required or not _same(value, option.default)
    # Who gives a value where None would do chose it: a size that keeps things small, a limit.
    return value is not None and not _same(value, subject.options[option.name])


def _same(one: Any, other: Any) -> bool:
    one, other = (value.value if isinstance(value, Enum) else value for value in (one, other))
    return type(one) is type(other) and bool(one == other)


def edge_values(option: Option) -> list[Any]:
    """The values at the edges of what an option allows, as its constructor takes them.

    >>> from typing import Annotated
    >>> from pydantic import Field
    >>> def values(annotation):
    ...     return edge_values(Option("x", annotation, True, None, ""))
    >>> values(Annotated[float, Field(ge=0, lt=1)] | None)
    [0.0, 0.01, 0.99, None]
    >>> values(Annotated[int, Field(gt=0)]), values(bool), values(Literal["sum", "mean"]), values(str)
    ([1], [False, True], ['sum', 'mean'], [])
    """
    found: list[Any] = []
    for value in written_edges(option):
        try:
            read = read_option(option, value)
        except ValueError:
            continue  # the bounds of another member of a union, or a validator of the plugin's own
        if not any(_same(read, one) for one in found):
            found.append(read)
    return found


def read_option(option: Option, value: Any) -> Any:
    """A JSON value as the constructor takes it; ``ValueError`` if it is none that the option allows."""
    return _adapter(option).validate_json(json.dumps(value), strict=True)


def write_option(option: Option, value: Any) -> Any:
    """The same back."""
    return _adapter(option).dump_python(value, mode="json", warnings=False)


def _adapter(option: Option) -> TypeAdapter[Any]:
    return TypeAdapter(option.annotation)


def written_edges(option: Option) -> list[Any]:
    """The same as a grid would give them; some may be refused."""
    return [one.value if isinstance(one, Enum) else one for one in _candidates(option.annotation, ())]


def _candidates(annotation: Any, metadata: Iterable[Any]) -> Iterator[Any]:
    annotation, metadata = bare(annotation, metadata)
    if get_origin(annotation) in (Union, UnionType):
        for member in get_args(annotation):
            yield from _candidates(member, metadata)
    elif get_origin(annotation) is Literal:
        yield from get_args(annotation)
    elif annotation is NoneType:
        yield None
    elif annotation is bool:
        yield from (False, True)
    elif isinstance(annotation, type) and issubclass(annotation, Enum):
        yield from annotation
    elif annotation in (int, float):
        yield from _bounds(annotation, metadata)


def _bounds(kind: type[int] | type[float], metadata: Iterable[Any]) -> Iterator[float]:
    said = {
        key: limit
        for one in metadata
        for key in ("ge", "gt", "le", "lt")
        if (limit := getattr(one, key, None)) is not None
    }
    low, high = (said.get(closed, said.get(opened)) for closed, opened in (("ge", "gt"), ("le", "lt")))
    if kind is int:
        yield from (said["ge"],) if "ge" in said else (math.floor(low) + 1,) if low is not None else ()
        yield from (said["le"],) if "le" in said else (math.ceil(high) - 1,) if high is not None else ()
        return
    nudge = _NUDGE * (high - low if low is not None and high is not None else 1)
    if low is not None:
        yield from (float(low), low + nudge) if "ge" in said else (low + nudge,)
    if high is not None:
        yield from (high - nudge, float(high)) if "le" in said else (high - nudge,)
