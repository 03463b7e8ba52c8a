"""Whole data sets one after another inside an epoch."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from taskloom.core import Group, Problem
from taskloom.plugins.samplers.stepwise import Iterations, StepwiseSampler, count_of, unknown_tasks


class Ordered(StepwiseSampler):
    """Inside an epoch, whole data sets one after another in a given order, one task per step.

    With order t₁ … t_m an epoch is all batches of t₁, then all of t₂, and so on: Σᵢ n(tᵢ) steps, n the batches of a
    task's data. A task that the order names twice is run twice, each time in a new random order. This is
    the "round-robin training" of Mohammed & Sabane.

    Reads: the number of rows of each task, and what ``composition`` and ``buckets`` need.

    Options:
        order: the tasks as they follow each other in an epoch, each at least once; by default as the stage names them
        iterations: batches of a task in each of its turns: a number, "smallest" or "largest" for as many as the
            smallest or largest data set has, or a multiple of its own data set's such as "1x" (all), "2x" or "0.5x"

    Siblings: ``sequential`` gives a task the turns of all epochs at once, ``alternating`` changes task with every step.

    Reference: Mohammed & Sabane, "Robust Embeddings using Contrastive and Multiple Negatives on BERT", 2023,
    section 4 (RR).

    Example:
        {"stages": [{"sampler": {"name": "ordered", "order": ["sst", "sts", "sst", "sts", "para"]}}]}
    """

    name = "ordered"

    def __init__(self, *, order: list[str] | None = None, iterations: Iterations = "1x", **options: Any) -> None:
        super().__init__(iterations=iterations, **options)
        self.order = order

    def problems(self, tasks: Sequence[str]) -> list[Problem]:
        problems = super().problems(tasks) + unknown_tasks("order", self.order, tasks)
        missing = [task for task in tasks if self.order is not None and task not in self.order]
        if missing:
            problems.append(Problem("order", f"should name every task of the stage. Missing: {', '.join(missing)}."))
        return problems

    def plan(self, batches: Mapping[str, int], epochs: int) -> int:
        self.turns = self.order or list(batches)
        counts = {task: count_of(self.iterations, batches.values(), whole=batches[task]) for task in batches}
        self.ends = list(accumulate(counts[task] for task in self.turns))
        for task, stream in self.streams.items():
            stream.mark_epochs(counts[task] * self.turns.count(task))
        return self.ends[-1]

    def group(self, step: int) -> Group:
        task = self.turns[bisect_right(self.ends, step)]
        return (self.streams[task].next(),)
