"""The base of the built-in samplers: common options, and epochs as a number of steps."""

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import Field

from taskloom.core import DataError, Group, Pool, Problem, Sampler, unknown
from taskloom.plugins.samplers.composition import Composer, Composition, OnePositive, RunOut, Shuffled, Stream
from taskloom.plugins.samplers.no_duplicates import NoDuplicates

V = TypeVar("V")
BatchSize = Annotated[int, Field(ge=1)]
BATCH_SIZE = 8
#: A number, the batches of the smallest or largest data set, or a multiple of what the sampler counts from.
Iterations = (
    Annotated[int, Field(ge=1)]
    | Literal["smallest", "largest"]
    | Annotated[str, Field(pattern=r"^([1-9][0-9]*(\.[0-9]+)?|0\.0*[1-9][0-9]*)x$", examples=["3x"])]
)


class StepwiseSampler(Sampler):
    """Counts the steps of an epoch; subclasses define how many there are and the group of each.

    Options:
        batch_size: rows of a task in one batch, or an object from task to number (8 where a task is not named)
        composition: how a task's rows are put into batches, one for all or an object from task to name ("shuffled"
            where a task is not named). "shuffled": every row once, in a new random order for every pass, the last
            batch being short where the rows do not divide evenly; "one_positive": one positive row and
            batch_size − 1 negative ones; "no_duplicates": every row once, no text twice in a batch. A task that runs
            out begins a new pass; if an epoch ends in the middle of a pass, the next epoch continues from there
        positive_from: for "one_positive": the label from which (≥) a row is positive, or an object from task to label
        run_out: for "one_positive": a pass ends where the positive or the negative rows run out ("stop"), or those are
            shuffled and used again until the others are used up ("repeat") or until there are as many batches as
            under "shuffled" ("as_shuffled"), so that an epoch has as many steps
        buckets: put texts of similar length into a batch, which is faster; every epoch has the same rows as without;
            for tasks whose composition is "shuffled"
    """

    steps = 0  # of an epoch, after ``prepare``
    streams: dict[str, Stream]  # after ``prepare``, by task

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
        self._step = 0

    @abstractmethod
    def plan(self, batches: Mapping[str, int], epochs: int) -> int:
        """The number of steps in an epoch, given the batches of each task's data; marks epoch ends in the streams."""

    @abstractmethod
    def group(self, step: int) -> Group:
        """The group of a step, counted from 0 in each epoch; called once per step, in order."""

    def problems(self, tasks: Sequence[str]) -> list[Problem]:
        options = ("batch_size", "composition", "positive_from")
        return [problem for option in options for problem in unknown_tasks(option, getattr(self, option), tasks)]

    def prepare(self, pools: Mapping[str, Pool], *, generator: torch.Generator, epochs: int = 1) -> None:
        self._step = 0
        self.seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        self.streams = {task: self._stream(task, pool) for task, pool in pools.items()}
        self.steps = self.plan({task: stream.batches for task, stream in self.streams.items()}, epochs)

    @property
    def drawn(self) -> int:
        """Batches drawn so far, of all tasks together."""
        return sum(stream.drawn for stream in self.streams.values())

    def epoch(self) -> Iterator[Group]:
        while self._step < self.steps:
            group = self.group(self._step)
            self._step += 1  # before the yield: the state may be saved while the group is in use
            yield group
        self._step = 0

    def state_dict(self) -> dict[str, Any]:
        positions = {task: [stream.passes, stream.batch_index] for task, stream in self.streams.items()}
        return {"step": self._step, "seed": self.seed, "places": positions}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._step, self.seed = state["step"], state["seed"]
        for task, (passes, batch_index) in state["places"].items():
            self.streams[task].seed = self.seed
            self.streams[task].go_to(passes, batch_index)

    def rows_per_batch(self, task: str) -> int:
        """The number of rows in a batch of the task's stream."""
        return of_task(self.batch_size, task, BATCH_SIZE)

    def _stream(self, task: str, pool: Pool) -> Stream:
        if pool.size < 1:
            raise DataError(f"task {task!r} has no training rows to sample from")
        size = self.rows_per_batch(task)
        positive_from = of_task(self.positive_from, task, 1.0)
        composition = of_task(self.composition, task, "shuffled")
        composer: Composer
        if composition == "one_positive":
            composer = OnePositive(task, pool, size, positive_from=positive_from, run_out=self.run_out)
        elif composition == "no_duplicates":
            composer = NoDuplicates(pool, size)
        else:
            composer = Shuffled(pool, size)
        # Moving a row to another batch would break what the other compositions guarantee.
        lengths = pool.lengths if self.buckets and composition == "shuffled" else None
        return Stream(task, composer, lengths, self.seed)


def count_of(iterations: Iterations, batches: Collection[int], whole: int) -> int:
    """The number that ``iterations`` stands for, given the batches of each data set and the meaning of "1x".

    A multiple is rounded to the nearest integer, halves upwards, and is at least 1.

    >>> [count_of(iterations, [755, 1068], whole=755) for iterations in (10, "smallest", "largest", "3x", "0.5x")]
    [10, 755, 1068, 2265, 378]
    """
    if isinstance(iterations, int):
        return iterations
    if iterations in ("smallest", "largest"):
        return min(batches) if iterations == "smallest" else max(batches)
    return max(1, int(Fraction(iterations.removesuffix("x")) * whole + Fraction(1, 2)))


def of_task(option: V | Mapping[str, V], task: str, otherwise: V) -> V:
    """An option's value for a task: the option is one value for all, or an object from task to value."""
    return option.get(task, otherwise) if isinstance(option, Mapping) else option


def unknown_tasks(option: str, named: object, tasks: Sequence[str]) -> list[Problem]:
    """A problem for every name in an option that is not a task of the stage."""
    names = dict.fromkeys(named) if isinstance(named, Mapping | list) else {}
    return [Problem(option, unknown("task", name, tasks, where="in the stage")) for name in names if name not in tasks]
