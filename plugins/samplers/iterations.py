"""How long an epoch is: what users write, and the number it comes to."""

import re
from collections.abc import Collection
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field

_TIMES = r"^([1-9][0-9]*(\.[0-9]+)?|0\.0*[1-9][0-9]*)x$"

#: A number, the batches of the smallest or largest data set, or a multiple of what the sampler counts from.
Iterations = (
    Annotated[int, Field(ge=1)]
    | Literal["smallest", "largest"]
    | Annotated[str, Field(pattern=_TIMES, examples=["3x"])]
)


def count_of(iterations: Iterations, batches: Collection[int], whole: int) -> int:
    """The number that ``iterations`` stands for, given the batches of each data set and what "1x" is.

    A multiple is rounded to the nearest number, halves upwards, and is at least 1.

    >>> [count_of(given, [755, 1068], whole=755) for given in (10, "smallest", "largest", "3x", "0.5x")]
    [10, 755, 1068, 2265, 378]
    """
    if isinstance(iterations, int):
        return iterations
    if iterations in ("smallest", "largest"):
        return min(batches) if iterations == "smallest" else max(batches)
    if not re.match(_TIMES, iterations):
        raise ValueError(
            "iterations should be a number, 'smallest', 'largest' or a multiple such as '3x' or '0.5x'. "
            f"Found {iterations!r}."
        )
    return max(1, int(Fraction(iterations.removesuffix("x")) * whole + Fraction(1, 2)))
