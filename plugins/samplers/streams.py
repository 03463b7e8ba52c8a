"""What samplers share: an endless stream of batches for each task."""

from collections.abc import Mapping
from typing import Any

import torch
from numpy.random import Generator, Philox

from taskloom.core import DataError, Pool, Rows, TaskBatch, derive_seed
from taskloom.plugins.samplers.buckets import bucketed
from taskloom.plugins.samplers.composition import Batching, composer_of


class Stream:
    """One task's batches, pass after pass.

    The order of pass k is drawn from a seed made of the sampler's seed, the task and k alone, so the stream's state
    is two numbers.
    """

    def __init__(self, task: str, pool: Pool, batching: Batching) -> None:
        self.task, self.composer = task, composer_of(task, pool, batching)
        # A row that moves to another batch would break what the other compositions promise.
        self.lengths = pool.lengths if batching.buckets and batching.composition == "shuffled" else None
        if batching.buckets and pool.lengths is None:
            raise DataError(f"length buckets need the token counts of task {task!r}, which are not known")
        self.batches = self.composer.batches
        self.seed = 0
        self.every, self.first = 1, 0  # an epoch ends before batches first, first + every, …
        self.passed, self.place = 0, 0  # passes finished, batches of this pass given
        self._order: list[Rows] | None = None

    @property
    def given(self) -> int:
        """Batches given so far."""
        return self.passed * self.batches + self.place

    def next(self) -> TaskBatch:
        """The next batch; after a pass's last one a new pass begins."""
        if self._order is None:
            self._order = self._compose()
        batch = TaskBatch(self.task, self._order[self.place])
        self.place += 1
        if self.place == self.batches:
            self.go_to(self.passed + 1, 0)
        return batch

    def go_to(self, passed: int, place: int) -> None:
        self.passed, self.place, self._order = passed, place, None

    def _compose(self) -> list[Rows]:
        random = Generator(Philox(derive_seed(self.seed, "rows", self.task, self.passed)))
        batches = self.composer.compose(random)
        if self.lengths is None:
            return batches
        first = (self.first - self.passed * self.batches) % self.every
        return bucketed(batches, self.lengths, range(first, self.batches, self.every), random)


class Streams:
    """The streams of all tasks, with one seed."""

    def __init__(
        self, pools: Mapping[str, Pool], batching: Mapping[str, Batching], *, generator: torch.Generator
    ) -> None:
        self._streams = {task: Stream(task, pool, batching[task]) for task, pool in pools.items()}
        self.tasks = tuple(self._streams)
        #: Batches in one pass over each task's data.
        self.batches = {task: stream.batches for task, stream in self._streams.items()}
        self._reseed(int(torch.randint(2**62, (), generator=generator, device=generator.device)))

    @property
    def given(self) -> int:
        """Batches given so far, of all tasks together."""
        return sum(stream.given for stream in self._streams.values())

    def next(self, task: str) -> TaskBatch:
        """The next batch of a task."""
        return self._streams[task].next()

    def mark_epochs(self, task: str, every: int, first: int = 0) -> None:
        """Tell after how many of a task's batches epochs end, so that buckets move no row over such an end."""
        self._streams[task].every, self._streams[task].first = max(every, 1), first

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
            stream.seed = seed
