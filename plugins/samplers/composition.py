"""How the rows of one pass over a task's data are put into batches: the choices."""

from dataclasses import dataclass
from typing import Literal, Protocol

from numpy.random import Generator

from taskloom.core import DataError, Pool, Rows
from taskloom.plugins.samplers.no_duplicates import NoDuplicates
from taskloom.plugins.samplers.one_positive import OnePositive, RunOut
from taskloom.plugins.samplers.shuffled import Shuffled

Composition = Literal["shuffled", "one_positive", "no_duplicates"]


class Composer(Protocol):
    """Makes the batches of one pass after another; every pass has the same number of them."""

    @property
    def batches(self) -> int:
        """Batches in a pass."""
        ...

    def compose(self, random: Generator) -> list[Rows]:
        """The batches of a pass."""
        ...


@dataclass(frozen=True)
class Batching:
    """What is asked for one task."""

    size: int
    composition: Composition
    buckets: bool
    positive_from: float
    run_out: RunOut


def composer_of(task: str, pool: Pool, batching: Batching) -> Composer:
    """What makes a task's batches as asked; ``DataError`` if its data cannot be put together so."""
    if pool.size < 1:
        raise DataError(f"task {task!r} has no training rows to sample from")
    if batching.composition == "one_positive":
        return OnePositive(task, pool, batching.size, positive_from=batching.positive_from, run_out=batching.run_out)
    if batching.composition == "no_duplicates":
        return NoDuplicates(task, pool, batching.size)
    return Shuffled(pool, batching.size)
