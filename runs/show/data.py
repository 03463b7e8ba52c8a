"""What data sets hold, as a table."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from taskloom.core.errors import shortened
from taskloom.runs.show.parts import Listing

if TYPE_CHECKING:  # which imports numpy
    from taskloom.runs.grid.data_facts import SplitFacts

#: Classes that a table counts one by one.
MOST_CLASSES = 5


def data_listing(data: "Iterable[SplitFacts]") -> Listing:
    """A row for each task and split, without columns in which nothing is known."""
    rows = [_row(facts) for facts in data]
    known = [column for column in (rows[0] if rows else ()) if any(row[column] is not None for row in rows)]
    return Listing([["" if row[column] is None else row[column] for column in known] for row in rows], known, (0, 1))


def _row(facts: "SplitFacts") -> dict[str, object]:
    columns = ("task", "split", "examples", "unreadable", "unlabelled")
    return {
        **{column: getattr(facts, column) for column in columns},
        "labels": _labels(facts),
        "constant": None if facts.constant is None else f"{facts.constant:.3f}",
        "words": None if facts.words is None else f"{facts.words:,}, up to {facts.longest:,}",
        "shared": facts.shared,
        "seen": facts.seen,
        "cut": None if facts.cut is None else f"{facts.cut:.1%} at {facts.max_length}",
    }


def _labels(facts: "SplitFacts") -> str | None:
    if not facts.classes:
        if facts.low is None or facts.mean is None or facts.high is None:
            return None
        return f"{facts.low:g} to {facts.high:g}, mean {facts.mean:.3g}"
    named = [f"{shortened(name, 20)}: {number:,}" for name, number in facts.classes[:MOST_CLASSES]]
    further = [number for _, number in facts.classes[MOST_CLASSES:]]
    return "; ".join([*named, *([f"{len(further)} more: {sum(further):,}"] if further else [])])
