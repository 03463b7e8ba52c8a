"""Choosing some of the examples: by their content, so that the choice is the same everywhere."""

import hashlib
from collections.abc import Sequence

from taskloom.core import DataError, Examples


def lots_of(examples: Examples) -> list[bytes]:
    """A lot for each example: as good as drawn at random, and equal for equal texts wherever they stand."""
    return [hashlib.sha256("\x1f".join(texts).encode()).digest() for texts in zip(*examples.columns, strict=True)]


def take(examples: Examples, rows: Sequence[int]) -> Examples:
    """Only these rows, in this order."""
    return Examples(
        tuple(tuple(column[row] for row in rows) for column in examples.columns),
        None if examples.labels is None else examples.labels[list(rows)],
        tuple(examples.ids[row] for row in rows),
        examples.skipped,
    )


def sample(examples: Examples, limit: int) -> Examples:
    """At most ``limit`` examples, shuffled; a larger limit begins with the smaller one's."""
    if limit < 1:
        raise DataError(f"limit should be at least 1. Found {limit}.")
    lots = lots_of(examples)
    return take(examples, sorted(range(len(examples)), key=lambda row: (lots[row], row))[:limit])


def hold_out(examples: Examples, share: float) -> tuple[Examples, Examples]:
    """The rest, and the share held out, each in its old order. Equal texts are never parted."""
    lots = lots_of(examples)
    last = sorted(lots)[max(1, round(share * len(examples))) - 1]
    held = [row for row, lot in enumerate(lots) if lot <= last]
    rest = [row for row, lot in enumerate(lots) if lot > last]
    return take(examples, rest), take(examples, held)
