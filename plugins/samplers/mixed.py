"""All tasks' batches shuffled together."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
from numpy.random import Generator, Philox
from pydantic import Field

from taskloom.core import Group, Problem, derive_seed
from taskloom.plugins.samplers.composition import Composition
from taskloom.plugins.samplers.iterations import Iterations, count_of
from taskloom.plugins.samplers.one_positive import RunOut
from taskloom.plugins.samplers.stepwise import BATCH_SIZE, BatchSize, StepwiseSampler, unknown_tasks

Weight = Annotated[float, Field(gt=0)]


class Mixed(StepwiseSampler):
    """All tasks' mini-batches shuffled together, one task per step.

    An epoch of S steps holds cₜ batches of task t in random order, cₜ being S · pₜ with

        pₜ ∝ wₜ · nₜ^a,    nₜ the batches of the task's data,

    rounded so that Σₜ cₜ = S (largest remainders). Weights "proportional": w = 1, a = 1, so that an epoch is every
    batch of every task once, as in MT-DNN. "equal": w = 1, a = 0, each task as often as the others. Numbers: w as given
    (1 where a task is not named), a = 0: {"para": 2} means twice as often as each other task. ``temperature`` τ sets
    a = 1/τ: τ = 1 with numbers weighs tasks relative to their size, a large τ comes near "equal".

    A pass over a task's data gives every row exactly once ("one_positive": see ``run_out``), the last batch being short
    where the rows do not divide evenly. A task that runs out begins a new pass in a new order; one that is not
    through when the epoch ends goes on from there in the next.

    Reads: the number of rows of each task; with ``buckets`` also their token counts, with "one_positive" their labels,
    with "no_duplicates" their texts.

    Options:
        weights: "proportional", "equal", or an object from task to number: how often a task has its turn
        temperature: softens differences in size: a task counts as its number of batches to the power 1/temperature
        batch_size: rows of a task in one batch, or an object from task to number (8 where a task is not named)
        iterations: steps in an epoch: a number, "smallest" or "largest" for as many as the smallest or largest data
            set has batches, or a multiple of what all data sets together have, such as "1x" or "0.5x"
        composition: how a task's rows are put into batches, one for all or an object from task to name ("shuffled"
            where a task is not named). "shuffled": a new random order for every pass; "one_positive": one positive
            row and batch_size − 1 negative ones; "no_duplicates": no text twice in a batch
        positive_from: for "one_positive": the label from which (≥) a row is positive, or an object from task to label
        run_out: for "one_positive": a pass ends where the positive or the negative rows run out ("stop"), or
            those are shuffled and used again until the others are through ("repeat")
        buckets: put texts of similar length into a batch: faster, and every epoch sees the same rows as without;
            for tasks whose composition is "shuffled"

    Siblings: ``alternating`` has the tasks in turn; ``round_robin`` has all of them in every step, which is what a
    combiner of gradients needs.

    Reference: Liu et al., "Multi-Task Deep Neural Networks for Natural Language Understanding", ACL 2019,
    Algorithm 1; temperature: Xue et al., "mT5", NAACL 2021, section 3.1 (its α is 1/temperature).

    Example:
        {"stages": [{"sampler": {"name": "mixed", "batch_size": 64, "weights": {"para": 2}}}]}
    """

    name = "mixed"

    def __init__(
        self,
        *,
        weights: Literal["proportional", "equal"] | dict[str, Weight] = "proportional",
        temperature: Annotated[float, Field(gt=0)] | None = None,
        batch_size: BatchSize | dict[str, BatchSize] = BATCH_SIZE,
        iterations: Iterations = "1x",
        composition: Composition | dict[str, Composition] = "shuffled",
        positive_from: float | dict[str, float] = 1.0,
        run_out: RunOut = "stop",
        buckets: bool = False,
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            iterations=iterations,
            composition=composition,
            positive_from=positive_from,
            run_out=run_out,
            buckets=buckets,
        )
        if weights == "equal" and temperature is not None:
            raise ValueError("temperature has no meaning with weights 'equal'; leave one of the two out")
        self.weights = weights
        self.temperature = temperature

    def problems(self, tasks: Sequence[str]) -> list[Problem]:
        return super().problems(tasks) + unknown_tasks("weights", self.weights, tasks)

    def plan(self, epochs: int) -> None:
        batches = self.streams.batches
        self._steps = count_of(self.iterations, batches.values(), whole=sum(batches.values()))
        self.counts = apportion(self._steps, list(self.shares(batches).values()))
        self._drawn: tuple[int, int] | None = None  # seed and epoch of the turns at hand
        for task, count in zip(self.streams.tasks, self.counts, strict=True):
            self.streams.mark_epochs(task, count)

    def shares(self, batches: Mapping[str, int]) -> dict[str, float]:
        """How often each task has its turn, up to a common factor, from the batches of its data."""
        if self.temperature is not None:
            power = 1 / self.temperature
        else:
            power = 1.0 if self.weights == "proportional" else 0.0
        numbers = {} if isinstance(self.weights, str) else self.weights
        largest = max(batches.values())  # the power of a share of it cannot overflow
        return {task: numbers.get(task, 1.0) * (count / largest) ** power for task, count in batches.items()}

    @property
    def steps(self) -> int:
        return self._steps

    def group(self, step: int) -> Group:
        key = self.streams.seed, self.streams.given // self._steps  # every step gives one batch
        if key != self._drawn:
            random = Generator(Philox(derive_seed(key[0], "turns", key[1])))
            self._turns = random.permutation(np.repeat(np.arange(len(self.counts)), self.counts))
            self._drawn = key
        return (self.streams.next(self.streams.tasks[self._turns[step]]),)


def apportion(total: int, shares: Sequence[float]) -> list[int]:
    """Whole numbers that add up to ``total`` in proportion to ``shares``, by largest remainders.

    >>> apportion(10, [2, 1, 1]), apportion(2, [1, 1, 1])
    ([5, 3, 2], [1, 1, 0])
    """
    quotas = np.asarray(shares, np.float64) / sum(shares) * total
    # Less than a billionth is a rounding error: 754.9999999999999 is 755 with nothing left over.
    counts = np.floor(quotas + 1e-9 * np.maximum(quotas, 1))
    largest = np.argsort(counts - quotas, kind="stable")  # of equals the first
    counts[largest[: total - int(counts.sum())]] += 1
    return [int(count) for count in counts]
