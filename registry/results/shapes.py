"""The types of stored values: records state them in their annotations, specifications in the shapes below.

pydantic could check them, but takes longer to import than a table takes to show.
"""
# ruff: noqa: UP013 - one line each

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Required,
    TypedDict,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

T = TypeVar("T")
#: What SQLite keeps of an integer.
INT64 = range(-(2**63), 2**63)


Json = dict[str, Any]
Figures = dict[str, float]
Axes = dict[str, list[Any] | Json]
Named = TypedDict("Named", {"name": Required[str], "weights": Figures}, total=False)
Stage = TypedDict("Stage", {"tasks": list[str], "epochs": int}, total=False)
Change = TypedDict("Change", {"settings": Json, "epochs": int | None, "label": str, "rows": list[str]}, total=False)
TableSettings = TypedDict("TableSettings", {"settings": Json, "epochs": int | None, "tuned": bool}, total=False)
#: What a search has chosen for a row, or for one seed of it, and for all of them.
Choice = TypedDict(
    "Choice", {"row": str, "seed": int | None, "trial": int | None, "settings": Json, "score": float | None}
)
Tried = TypedDict(
    "Tried", {"tried": int, "cells": list[str], "failed": dict[str, str], "paused": int, "edges": list[Json]}
)
Tuned = TypedDict("Tuned", {"per": str, "hold_out": float, "rows": list[Annotated[Any, Choice, Tried]]})
Table = TypedDict("Table", {"columns": list[str] | None, "digits": int}, total=False)
Score = TypedDict("Score", {"train": int, "test": bool}, total=False)


class RunShape(TypedDict, total=False):
    """The parts of a recorded run that are read without further checks."""

    encoder: Json | str
    tasks: dict[str, dict[str, Json | str | list[Any]]]
    stages: list[Stage]
    overall: Named | str
    selection: str
    score: Score
    seed: int


class FactsShape(TypedDict, total=False):
    """The same parts of the facts that an identity is made of."""

    spec: RunShape
    content: dict[str, str]
    plugins: dict[str, str]
    code: dict[str, str | int]
    trainer: int


class RowShape(TypedDict, total=False):
    """The same parts of a labelled row of a grid, or of a claim."""

    label: str
    set: Json
    split: str
    note: str
    reported: Figures
    reported_train: Figures
    says: str
    than: str | list[str]
    better: str | list[str] | None
    equal: str | list[str] | None
    on: str
    within: float | None


class SplitShape(TypedDict, total=False):
    """What a split of a task's data holds."""

    task: Required[str]
    split: Required[str]
    examples: Required[int]
    unreadable: int
    unlabelled: int
    classes: dict[str, int]
    low: float
    mean: float
    high: float
    constant: float
    words: Required[int]
    longest: Required[int]
    shared: int
    seen: int
    cut: float
    max_length: int
    sampled: int


class GridShape(TypedDict, total=False):
    """The same parts of a recorded grid."""

    name: str | None
    description: str
    notes: list[str]
    axes: Axes
    zip: list[Axes]
    cells: list[RowShape]
    seeds: list[int]
    baseline: str | None
    margin: float | None
    claims: list[RowShape]
    table: Table
    overrides: list[str]
    added_seeds: list[int]
    changes: list[Change]
    laid: TableSettings
    source: str
    metrics: dict[str, list[Named]]
    tuned: Tuned
    trials_of: str
    data: list[Annotated[Any, SplitShape]]


def conforms(value: Any, hint: Any) -> bool:
    """Whether a value is of the type that an annotation states; a JSON array is a tuple, too.

    >>> conforms({"sst": [1, 2.5]}, dict[str, list[float]]), conforms({"sst": "1"}, dict[str, float])
    (True, False)
    """
    return _checker(hint)(value)


def checked(record: T) -> T:
    """A record whose fields are what its class says; ``ValueError`` with the first that is not."""
    cls: Any = type(record)
    for name, check in _parts(cls):
        if not check(value := getattr(record, name)):
            raise ValueError(f"{name} of a {type(record).__name__} is {str(value)[:60]!r}")
    return record


@cache
def _parts(cls: Any) -> list[tuple[str, Callable[[Any], bool]]]:
    hints = get_type_hints(cls, include_extras=True)
    names = [field.name for field in fields(cls)] if is_dataclass(cls) else list(hints)
    return [(name, _checker(hints[name])) for name in names]


@cache
def _checker(hint: Any) -> Callable[[Any], bool]:
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value: True
    if origin in (Union, UnionType) and all(_plain(part) for part in args):
        types = frozenset(_plain(part) for part in args)
        return lambda value: type(value) in types
    if plain := _plain(hint):
        return lambda value: type(value) is plain
    inner = [_checker(part) for part in args if part is not ...]
    if origin in (Union, UnionType):
        return lambda value: any(check(value) for check in inner)
    if origin in (Annotated, Required):
        return lambda value: all(check(value) for check in inner)
    if origin is dict:
        return lambda value: type(value) is dict and all(map(inner[1], value.values()))
    if origin in (list, tuple):
        return lambda value: isinstance(value, list | tuple) and all(map(inner[0], value))
    if is_typeddict(hint):
        required, parts = hint.__required_keys__, dict(_parts(hint))
        return lambda value: (
            type(value) is dict
            and required <= value.keys()
            and all(parts[name](value[name]) for name in parts.keys() & value.keys())
        )
    if hint is float:
        return lambda value: type(value) is float or (type(value) is int and value in INT64)
    return lambda value: type(value) is int and value in INT64


def _plain(hint: Any) -> Any:
    """The class that a value should have, if that is all to check; None if there is more."""
    if get_origin(hint) in (dict, list) and get_args(hint)[-1] is Any:
        return get_origin(hint)
    return hint if hint in (str, bool, NoneType) or is_dataclass(hint) else None
