"""All epochs of one task, then the next task."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from taskloom.core import Group, Problem
from taskloom.plugins.samplers.composition import Composition
from taskloom.plugins.samplers.iterations import Iterations, count_of
from taskloom.plugins.samplers.one_positive import RunOut
from taskloom.plugins.samplers.ordered import order_problems
from taskloom.plugins.samplers.stepwise import BATCH_SIZE, BatchSize, StepwiseSampler


class Sequential(StepwiseSampler):
    """All epochs of one task, then all epochs of the next, one task per step.

    In a stage of E epochs, E passes over the first task's data are followed by E over the second's, and so on. The
    stage is as long as with ``ordered``, and its epochs are equal parts of it: each has Σₜ n(t) steps, n the batches
    of a task's data, so scores are taken as often and an epoch may end in the middle of a task.

    A pass over a task's data gives every row exactly once ("one_positive": see ``run_out``), the last batch being short
    where the rows do not divide evenly. A task that runs out begins a new pass in a new order; one that is not
    through when the epoch ends goes on from there in the next.

    Reads: the number of rows of each task; with ``buckets`` also their token counts, with "one_positive" their labels,
    with "no_duplicates" their texts.

    Options:
        order: the tasks as they follow each other, each once; by default as the stage names them
        batch_size: rows of a task in one batch, or an object from task to number (8 where a task is not named)
        iterations: batches of a task per epoch of the stage: a number, "smallest" or "largest" for as many as the
            smallest or largest data set has, or a multiple of its own data set's such as "1x" (all), "2x" or "0.5x"
        composition: how a task's rows are put into batches, one for all or an object from task to name ("shuffled"
            where a task is not named). "shuffled": a new random order for every pass; "one_positive": one positive
            row and batch_size − 1 negative ones; "no_duplicates": no text twice in a batch
        positive_from: for "one_positive": the label from which (≥) a row is positive, or an object from task to label
        run_out: for "one_positive": a pass ends where the positive or the negative rows run out ("stop"), or
            those are shuffled and used again until the others are through ("repeat")
        buckets: put texts of similar length into a batch: faster, and every epoch sees the same rows as without;
            for tasks whose composition is "shuffled"

    Siblings: ``ordered`` goes through all tasks in every epoch. One stage per task is like this sampler with a new
    optimizer for each task.

    Reference: Mohammed & Sabane, "Robust Embeddings using Contrastive and Multiple Negatives on BERT", 2023,
    section 4 (ST).

    Example:
        {"stages": [{"epochs": 3, "sampler": {"name": "sequential", "order": ["para", "sst", "sts"]}}]}
    """

    name = "sequential"

    def __init__(
        self,
        *,
        order: list[str] | None = None,
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
        if order is not None and len(set(order)) < len(order):
            raise ValueError(f"order should name a task once: all its epochs come together. Found {order}.")
        self.order = order

    def problems(self, tasks: Sequence[str]) -> list[Problem]:
        return super().problems(tasks) + order_problems(self.order, tasks)

    def plan(self, epochs: int) -> None:
        batches = self.streams.batches
        self.turns = self.order or list(self.streams.tasks)
        times = max(epochs, 1)
        counts = [count_of(self.iterations, batches.values(), whole=batches[task]) for task in self.turns]
        self.ends = [times * end for end in accumulate(counts)]
        self._steps = sum(counts)
        for task, end, count in zip(self.turns, self.ends, counts, strict=True):
            begins = end - times * count
            self.streams.mark_epochs(task, self._steps, first=-begins % self._steps)

    @property
    def steps(self) -> int:
        return self._steps

    def group(self, step: int) -> Group:
        place = self.streams.given % self.ends[-1]  # in the stage: every step gives one batch
        return (self.streams.next(self.turns[bisect_right(self.ends, place)]),)
