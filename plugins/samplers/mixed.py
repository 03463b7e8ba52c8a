"""All tasks' batches, or all their rows, shuffled together."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.random import Generator, Philox
from pydantic import PositiveFloat

from taskloom.core import Group, Problem, TaskBatch, derive_seed
from taskloom.plugins.samplers.stepwise import (
    BATCH_SIZE,
    Iterations,
    StepwiseSampler,
    count_of,
    of_task,
    unknown_tasks,
)


class Mixed(StepwiseSampler):
    """All tasks' mini-batches shuffled together, one task per step; or all their rows, several tasks per step.

    An epoch of S steps holds cₜ batches of task t in random order, cₜ being S · pₜ with

        pₜ ∝ wₜ · nₜ^a,    nₜ the batches of the task's data,

    rounded so that Σₜ cₜ = S (largest remainders). With ``mix`` "rows" the same holds for rows instead of batches: a
    step has ``batch_size`` rows of all tasks together, grouped by task. A task without a row in a step takes no part
    in it. Weights "proportional": w = 1, a = 1, so that an epoch is every
    batch of every task once, as in MT-DNN. "equal": w = 1, a = 0, each task as often as the others. Numbers: w as given
    (1 where a task is not named), a = 0: {"para": 2} means twice as often as each other task. ``temperature`` τ sets
    a = 1/τ: τ = 1 with numbers weighs tasks relative to their size, a large τ comes near "equal".

    Reads: the number of rows of each task, and what ``composition`` and ``buckets`` need.

    Options:
        weights: "proportional", "equal", or an object from task to number: how often a task has its turn
        temperature: softens differences in size: a task counts as its number of batches to the power 1/temperature
        mix: "batches" of one task each, or "rows": every batch mixes tasks; needs one ``batch_size`` for all and
            batches that are "shuffled", without ``buckets``
        iterations: steps in an epoch: a number, "smallest" or "largest" for as many as the smallest or largest data
            set has batches, or a multiple of what all data sets together have, such as "1x" or "0.5x"

    Siblings: ``alternating`` has the tasks in turn; ``round_robin`` has all of them in every step, which is what a
    combiner of gradients needs. With "rows", ``sum`` adds up the mean losses of the tasks in a step, and ``mean``
    averages them.

    Reference: Liu et al., "Multi-Task Deep Neural Networks for Natural Language Understanding", ACL 2019,
    Algorithm 1, which mixes batches; temperature: Xue et al., "mT5", NAACL 2021, section 3.1 (its α is 1/temperature).

    Example:
        {"stages": [{"sampler": {"name": "mixed", "batch_size": 64, "weights": {"para": 2}}}]}
    """

    name = "mixed"

    def __init__(
        self,
        *,
        weights: Literal["proportional", "equal"] | dict[str, PositiveFloat] = "proportional",
        temperature: PositiveFloat | None = None,
        mix: Literal["batches", "rows"] = "batches",
        iterations: Iterations = "1x",
        **options: Any,
    ) -> None:
        super().__init__(iterations=iterations, **options)
        if mix == "rows" and (self.composition, self.buckets) != ("shuffled", False):
            raise ValueError("mix 'rows' draws every row by itself; leave composition and buckets out")
        if mix == "rows" and not isinstance(self.batch_size, int):
            raise ValueError("mix 'rows' has one batch for all tasks; batch_size should be a number")
        if weights == "equal" and temperature is not None:
            raise ValueError("temperature has no meaning with weights 'equal'; leave one of the two out")
        self.weights = weights
        self.temperature = temperature
        self.mix = mix

    def problems(self, tasks: Sequence[str]) -> list[Problem]:
        return super().problems(tasks) + unknown_tasks("weights", self.weights, tasks)

    @property
    def _drawn_per_step(self) -> int:
        """Batches, or rows, drawn in one step."""
        return of_task(self.batch_size, "", BATCH_SIZE) if self.mix == "rows" else 1

    def rows_per_batch(self, task: str) -> int:
        return 1 if self.mix == "rows" else super().rows_per_batch(task)

    def plan(self, batches: Mapping[str, int], epochs: int) -> int:
        size = self._drawn_per_step  # where rows are mixed, a "batch" of a task is one row
        steps = count_of(
            self.iterations, [-(-count // size) for count in batches.values()], whole=-(-sum(batches.values()) // size)
        )
        if self.temperature is not None:
            power = 1 / self.temperature
        else:
            power = 1.0 if self.weights == "proportional" else 0.0
        numbers = {} if isinstance(self.weights, str) else self.weights
        largest = max(batches.values())  # the power of a share of it cannot overflow
        shares = [numbers.get(task, 1.0) * (count / largest) ** power for task, count in batches.items()]
        self.counts = apportion(steps * size, shares)
        self._turns_key: tuple[int, int] | None = None  # seed and epoch of self._turns
        for stream, count in zip(self.streams.values(), self.counts, strict=True):
            stream.mark_epochs(count)
        return steps

    def group(self, step: int) -> Group:
        size = self._drawn_per_step
        key = self.seed, self.drawn // (self.steps * size)
        if key != self._turns_key:
            random = Generator(Philox(derive_seed(key[0], "turns", key[1])))
            self._turns = random.permutation(np.repeat(np.arange(len(self.counts)), self.counts))
            self._turns_key = key
        counts = np.bincount(self._turns[step * size : (step + 1) * size], minlength=len(self.streams))
        return tuple(
            TaskBatch(task, np.concatenate([stream.next().rows for _ in range(count)]))
            for (task, stream), count in zip(self.streams.items(), counts, strict=True)
            if count
        )


def apportion(total: int, shares: Sequence[float]) -> list[int]:
    """Integers that add up to ``total`` in proportion to ``shares``, by largest remainders.

    >>> apportion(10, [2, 1, 1]), apportion(2, [1, 1, 1])
    ([5, 3, 2], [1, 1, 0])
    """
    quotas = np.asarray(shares, np.float64) / sum(shares) * total
    # Less than a billionth is a rounding error: 754.9999999999999 is 755 with nothing left over.
    counts = np.floor(quotas + 1e-9 * np.maximum(quotas, 1))
    largest = np.argsort(counts - quotas, kind="stable")  # of equals the first
    counts[largest[: total - int(counts.sum())]] += 1
    return [int(count) for count in counts]
