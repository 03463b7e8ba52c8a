"""What samplers share that make up one step after another from the tasks' streams."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import torch
from pydantic import Field

from taskloom.core import Group, Pool, Sampler
from taskloom.plugins.samplers.composition import Composition
from taskloom.plugins.samplers.streams import Iterations, Streams


class StepwiseSampler(Sampler):
    """Counts the steps of an epoch; a sampler says how many there are and what group each one is."""

    streams: Streams  # after ``prepare``

    def __init__(
        self,
        *,
        batch_size: Annotated[int, Field(ge=1)] = 8,
        iterations: Iterations = "largest",
        composition: Composition = "shuffled",
        buckets: bool = False,
    ) -> None:
        self.batch_size = batch_size
        self.iterations = iterations
        self.composition = composition
        self.buckets = buckets
        self._step = 0

    @abstractmethod
    def group(self, step: int) -> Group:
        """The group of a step, counted from 0 in each epoch; asked for once, in order."""

    def prepare(self, pools: Mapping[str, Pool], *, generator: torch.Generator) -> None:
        self._step = 0
        self.streams = Streams(
            pools,
            generator=generator,
            batch_size=self.batch_size,
            iterations=self.iterations,
            composition=self.composition,
            buckets=self.buckets,
        )

    def epoch(self) -> Iterator[Group]:
        while self._step < self.steps:
            group = self.group(self._step)
            self._step += 1  # before the group is given: the state may be taken while it is in use
            yield group
        self._step = 0

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._step, **self.streams.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._step = state["step"]
        self.streams.load_state_dict(state)
