"""Limits of numbers and lengths that a JSON schema can say exactly, from pydantic's plan of a type."""

import math
from collections.abc import Mapping
from decimal import Decimal
from functools import partial
from typing import Any

_NUMBERS = ("ge", "gt", "le", "lt", "multiple_of")
_LENGTHS = ("min_length", "max_length")
#: What limits each type can have of its own.
_TAKES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("int", "float", "decimal"), _NUMBERS),
    **dict.fromkeys(("str", "list", "tuple", "set", "frozenset", "dict", "deque"), _LENGTHS),
}


def pushed(plan: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a validator that runs afterwards is given. Where it only holds a limit, its types have that limit.

    >>> from typing import Annotated
    >>> from pydantic import Field, TypeAdapter
    >>> pushed(TypeAdapter(Annotated[int | float, Field(gt=0)]).core_schema)["choices"]
    [{'type': 'int', 'gt': 0}, {'type': 'float', 'gt': 0}]
    """
    inner: Mapping[str, Any] = plan["schema"]
    for key, limit in _limits_of(plan).items():
        inner = _with_limit(inner, key, limit)
    return inner


def _limits_of(plan: Mapping[str, Any]) -> Mapping[str, Any]:
    function = plan["function"]["function"]
    own = isinstance(function, partial) and function.func.__module__ == "pydantic._internal._validators"
    return {key: limit for key, limit in function.keywords.items() if key in _NUMBERS + _LENGTHS} if own else {}


def _with_limit(plan: Mapping[str, Any], key: str, limit: Any) -> Mapping[str, Any]:
    kind = plan["type"]
    if kind == "union":
        choices = [one[0] if isinstance(one, tuple) else one for one in plan["choices"]]
        return {**plan, "choices": [_with_limit(one, key, limit) for one in choices]}
    if kind == "nullable" or (kind == "function-after" and _limits_of(plan)):
        return {**plan, "schema": _with_limit(plan["schema"], key, limit)}
    if key not in _TAKES.get(kind, ()) or (key in plan and key == "multiple_of"):
        return plan
    tighter = max if key in ("ge", "gt", "min_length") else min
    return {**plan, key: tighter(plan[key], limit) if plan.get(key) is not None else limit}


def exact(limit: Any) -> Any:
    """A limit as a number of JSON's that is exactly that; None if there is none.

    >>> exact(Decimal("0.5")), exact(Decimal("0.1")), exact(2**60)
    (0.5, None, None)
    """
    if not isinstance(limit, int | float | Decimal) or not -(2**53) < limit < 2**53:
        return None
    near = float(limit)  # 0.1 is another number in binary
    return (int(limit) if near.is_integer() else near) if Decimal(repr(near)) == Decimal(near) == limit else None


def exact_step(step: Any) -> int | float | None:
    """A step by which every validator divides without rounding: a whole number, or 0.5, 0.25 and so on.

    >>> exact_step(3.0), exact_step(0.25), exact_step(0.1)
    (3, 0.25, None)
    """
    if not isinstance(step, int | float) or not 0 < step < math.inf:
        return None
    if isinstance(step, int) or step.is_integer():
        return int(step)
    return step if math.frexp(step)[0] == 0.5 and step >= 2**-20 else None
