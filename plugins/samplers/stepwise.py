"""What samplers share that make up one step after another from the tasks' streams."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import torch
from pydantic import Field

from taskloom.core import Group, Pool, Problem, RequestError, Sampler, unknown
from taskloom.plugins.samplers.composition import Batching, Composition
from taskloom.plugins.samplers.iterations import Iterations
from taskloom.plugins.samplers.one_positive import RunOut
from taskloom.plugins.samplers.streams import Streams

V = TypeVar("V")
BatchSize = Annotated[int, Field(ge=1)]
BATCH_SIZE = 8


class StepwiseSampler(Sampler):
    """Counts the steps of an epoch; a sampler says how many there are and what group each one is."""

    streams: Streams  # after ``prepare``

    def __init__(
        self,
        *,
        batch_size: BatchSize | dict[str, BatchSize] = BATCH_SIZE,
        iterations: Iterations = "largest",
        composition: Composition | dict[str, Composition] = "shuffled",
        positive_from: float | dict[str, float] = 1.0,
        run_out: RunOut = "stop",
        buckets: bool = False,
    ) -> None:
        if buckets and isinstance(composition, str) and composition != "shuffled":
            raise ValueError(
                f"buckets sort rows by length, which batches of composition {composition!r} do not allow; "
                "leave one of the two out"
            )
        self.batch_size = batch_size
        self.iterations = iterations
        self.composition = composition
        self.positive_from = positive_from
        self.run_out = run_out
        self.buckets = buckets
        chosen = composition.values() if isinstance(composition, dict) else (composition,)
        self.uses = "every" if "one_positive" in chosen else "passes"
        self._step = 0

    @abstractmethod
    def group(self, step: int) -> Group:
        """The group of a step, counted from 0 in each epoch; asked for once, in order."""

    @abstractmethod
    def plan(self, epochs: int) -> None:
        """Lay out an epoch, once the tasks' streams are known, and mark where epochs end in them."""

    def problems(self, tasks: Sequence[str]) -> list[Problem]:
        options = ("batch_size", "composition", "positive_from")
        return [problem for option in options for problem in unknown_tasks(option, getattr(self, option), tasks)]

    def prepare(self, pools: Mapping[str, Pool], *, generator: torch.Generator, epochs: int = 1) -> None:
        found = self.problems(tuple(pools))
        if found:
            raise RequestError(f"sampler {self.name!r}", found)
        self._step = 0
        self.streams = Streams(pools, {task: self._batching(task) for task in pools}, generator=generator)
        self.plan(epochs)

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

    def _batching(self, task: str) -> Batching:
        return Batching(
            size=of_task(self.batch_size, task, BATCH_SIZE),
            composition=of_task(self.composition, task, "shuffled"),
            buckets=self.buckets,
            positive_from=of_task(self.positive_from, task, 1.0),
            run_out=self.run_out,
        )


def of_task(option: V | Mapping[str, V], task: str, otherwise: V) -> V:
    """What an option says of a task: one value for all, or an object from task to value."""
    return option.get(task, otherwise) if isinstance(option, Mapping) else option


def unknown_tasks(option: str, named: object, tasks: Sequence[str]) -> list[Problem]:
    """A problem for every name in an option that is no task of the stage."""
    names = dict.fromkeys(named) if isinstance(named, Mapping | list) else {}
    return [Problem(option, unknown("task", name, tasks, where="in the stage")) for name in names if name not in tasks]
