"""What laws are tried on: a component class with options, also at the edges of each option's range."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from operator import getitem
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from taskloom.core.component import Component
from taskloom.core.errors import TaskloomError
from taskloom.core.options import Option, options_of

#: How a component refuses an input.
REFUSALS = (TaskloomError, ValueError)
#: Exceptions that break a law: a plugin may not end the program either.
RAISED = (Exception, SystemExit)
_NUDGE = 0.01  # how far inside a bound, as a share of the range (or of 1): a power near 0 is not like 0


@dataclass(frozen=True, eq=False)
class Specimen:
    """A component class with the options under which it is tested.

    ``edge``: one option is at the edge of its range. There fewer inputs are tried, and all of them may be refused.
    """

    component: type[Component]
    options: Mapping[str, Any] = field(default_factory=dict)
    edge: bool = False

    @cached_property
    def known(self) -> dict[str, Option]:
        """Its options; none where the constructor breaks a rule, for which there is a law."""
        try:
            return options_of(self.component)
        except RAISED:
            return {}

    def make(self, /, **more: Any) -> Any:
        """A new component; options that are components themselves are copied."""
        return self.component(**copy.deepcopy({**self.options, **more}))

    def can_be_made(self) -> bool:
        """Whether the constructor accepts the options; how it refuses them is the subject of a law."""
        try:
            self.make()
        except RAISED:
            return False
        return True

    def edges(self) -> Iterator["Specimen"]:
        """Specimens with one option at a time at each edge of its range."""
        for name, option in self.known.items():
            for value in edge_values(option.annotation):
                # A value in place of None was chosen on purpose: a size that keeps the test small, a limit.
                chosen = name in self.options
                current = self.options[name] if chosen else option.default
                if not (chosen and value is None) and (repr(value) != repr(current) or option.required):
                    yield Specimen(self.component, {**self.options, name: value}, edge=True)

    def other_values(self) -> Iterator[tuple[str, Any]]:
        """Other values of options at their defaults: edges of their range, and the next number."""
        for name, option in self.known.items():
            if name not in self.options and not option.required:
                values = [value for value in edge_values(option.annotation) if value != option.default]
                following = [option.default + 1] if type(option.default) is int else []
                yield from ((name, value) for value in (*values, *following))

    def __str__(self) -> str:
        options = ", ".join(f"{key}={value!r}" for key, value in self.options.items())
        kind, name = self.component.kind, self.component.name or self.component.__name__
        return f"{kind} {name!r} ({options})" if options else f"{kind} {name!r}"


def edge_values(annotation: Any, metadata: Iterable[Any] = ()) -> list[Any]:
    """The edges of what a type allows: its bounds and what is just inside, every choice, both truth values, None.

    >>> from pydantic import Field
    >>> edge_values(Annotated[float, Field(ge=0, lt=1)] | None)
    [0.0, 0.01, 0.99, None]
    >>> edge_values(Annotated[int, Field(gt=0)]), edge_values(bool), edge_values(Literal["sum", "mean"])
    ([1], [False, True], ['sum', 'mean'])
    """
    info = FieldInfo.from_annotation(annotation)
    annotation, metadata = info.annotation, [*metadata, *info.metadata]
    if get_origin(annotation) in (Union, UnionType):
        return [value for member in get_args(annotation) for value in edge_values(member, metadata)]
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    if annotation in (int, float):
        return _bounds(annotation, metadata)
    return [None] if annotation is NoneType else [False, True] if annotation is bool else []


def _bounds(kind: Any, metadata: list[Any]) -> list[Any]:
    """The numbers at and next to the bounds, less those that a validator of the plugin's own refuses."""
    limits = {
        key: limit
        for constraint in metadata
        for key in ("ge", "gt", "le", "lt")
        if (limit := getattr(constraint, key, None)) is not None
    }
    if not limits:
        return []
    low, high = limits.get("ge", limits.get("gt")), limits.get("le", limits.get("lt"))
    step = 1 if kind is int else _NUDGE * (high - low if low is not None and high is not None else 1)
    annotated: Any = getitem(Annotated, (kind, *metadata))
    adapter: TypeAdapter[Any] = TypeAdapter(annotated)
    values: list[Any] = []
    for limit, inside in ((low, step), (high, -step)):
        allowed = []
        for value in () if limit is None else (limit, limit + inside):
            with suppress(ValueError):
                allowed.append(adapter.validate_python(kind(value), strict=True))
        values += allowed[:1] if kind is int else allowed
    return values
