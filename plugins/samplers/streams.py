"""What samplers share: an endless stream of batches for each task, and the length of an epoch."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from numpy.random import Generator, Philox
from pydantic import Field

from taskloom.core import DataError, Pool, Rows, TaskBatch, derive_seed
from taskloom.plugins.samplers.composition import COMPOSITIONS, Composition, bucketed

#: A number, the batches of the smallest or largest data set, or a multiple of the smallest.
Iterations = (
    Annotated[int, Field(ge=1)] | Literal["smallest", "largest"] | Annotated[str, Field(pattern=r"^[1-9][0-9]*x$")]
)


def rounds_per_epoch(iterations: Iterations, batches: list[int]) -> int:
    """How often every task has its turn in an epoch, from the number of batches in each task's data.

    >>> [rounds_per_epoch(given, [755, 1068]) for given in (10, "smallest", "largest", "3x")]
    [10, 755, 1068, 2265]
    """
    if isinstance(iterations, int):
        return iterations
    if iterations == "largest":
        return max(batches)
    times = "1" if iterations == "smallest" else iterations.removesuffix("x")
    if not times.isdecimal() or int(times) < 1:
        raise ValueError(
            f"iterations should be a number, 'smallest', 'largest' or a multiple such as '3x'. Found {iterations!r}."
        )
    return min(batches) * int(times)


class Stream:
    """One task's batches, pass after pass.

    A pass gives every row once; the order of pass k is drawn from a seed made of the sampler's seed, the task and
    k alone, so the stream's state is two numbers.
    """

    def __init__(self, task: str, pool: Pool, batch_size: int, composition: Composition, buckets: bool) -> None:
        if pool.size < 1:
            raise DataError(f"task {task!r} has no training rows to sample from")
        if buckets and pool.lengths is None:
            raise DataError(f"length buckets need the token counts of task {task!r}, which are not known")
        self.task, self.pool, self.batch_size = task, pool, batch_size
        self.composition, self.buckets = composition, buckets
        self.batches = -(-pool.size // batch_size)
        self.seed, self.rounds = 0, self.batches
        self.passed, self.place = 0, 0  # passes finished, batches of this pass given
        self._order: list[Rows] | None = None

    def next(self) -> TaskBatch:
        """The next batch; after a pass's last one a new pass begins."""
        if self._order is None:
            self._order = self._compose()
        batch = TaskBatch(self.task, self._order[self.place])
        self.place += 1
        if self.place == len(self._order):
            self.go_to(self.passed + 1, 0)
        return batch

    def go_to(self, passed: int, place: int) -> None:
        self.passed, self.place, self._order = passed, place, None

    def _compose(self) -> list[Rows]:
        random = Generator(Philox(derive_seed(self.seed, "rows", self.task, self.passed)))
        batches = COMPOSITIONS[self.composition](self.pool, self.batch_size, random)
        if not self.buckets or self.pool.lengths is None:
            return batches
        # An epoch takes ``rounds`` batches: the first to end in this pass does so after so many of it.
        first = -(self.passed * self.batches) % self.rounds
        return bucketed(batches, self.pool.lengths, range(first, self.batches, self.rounds), random)


class Streams:
    """The streams of all tasks, with one seed, and how many rounds over the tasks an epoch has."""

    def __init__(
        self,
        pools: Mapping[str, Pool],
        *,
        generator: torch.Generator,
        batch_size: int,
        iterations: Iterations,
        composition: Composition,
        buckets: bool,
    ) -> None:
        self._streams = {task: Stream(task, pool, batch_size, composition, buckets) for task, pool in pools.items()}
        self.tasks = tuple(self._streams)
        self.rounds = rounds_per_epoch(iterations, [stream.batches for stream in self._streams.values()])
        self._reseed(int(torch.randint(2**62, (), generator=generator, device=generator.device)))

    def next(self, task: str) -> TaskBatch:
        """The next batch of a task."""
        return self._streams[task].next()

    def state_dict(self) -> dict[str, Any]:
        places = {task: [stream.passed, stream.place] for task, stream in self._streams.items()}
        return {"seed": self.seed, "places": places}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._reseed(state["seed"])
        for task, (passed, place) in state["places"].items():
            self._streams[task].go_to(passed, place)

    def _reseed(self, seed: int) -> None:
        self.seed = seed
        for stream in self._streams.values():
            stream.seed, stream.rounds = seed, self.rounds
