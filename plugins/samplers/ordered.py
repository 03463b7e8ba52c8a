"""Whole data sets one after another inside an epoch."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from taskloom.core import Group, Problem
from taskloom.plugins.samplers.composition import Composition
from taskloom.plugins.samplers.iterations import Iterations, count_of
from taskloom.plugins.samplers.one_positive import RunOut
from taskloom.plugins.samplers.stepwise import BATCH_SIZE, BatchSize, StepwiseSampler, unknown_tasks


class Ordered(StepwiseSampler):
    """Inside an epoch, whole data sets one after another in a given order, one task per step.

    With order t₁ … t_m an epoch is all batches of t₁, then all of t₂, and so on: Σᵢ n(tᵢ) steps, n the batches of a
    task's data. A task that the order names twice is gone through twice, each time in a new random order. This is
    the "round-robin training" of Mohammed & Sabane.

    A pass over a task's data gives every row exactly once ("one_positive": see ``run_out``), the last batch being short
    where the rows do not divide evenly. A task that runs out begins a new pass in a new order; one that is not
    through when the epoch ends goes on from there in the next.

    Reads: the number of rows of each task; with ``buckets`` also their token counts, with "one_positive" their labels,
    with "no_duplicates" their texts.

    Options:
        order: the tasks as they follow each other in an epoch, each at least once; by default as the stage names them
        batch_size: rows of a task in one batch, or an object from task to number (8 where a task is not named)
        iterations: batches of a task in each of its turns: a number, "smallest" or "largest" for as many as the
            smallest or largest data set has, or a multiple of its own data set's such as "1x" (all), "2x" or "0.5x"
        composition: how a task's rows are put into batches, one for all or an object from task to name ("shuffled"
            where a task is not named). "shuffled": a new random order for every pass; "one_positive": one positive
            row and batch_size − 1 negative ones; "no_duplicates": no text twice in a batch
        positive_from: for "one_positive": the label from which (≥) a row is positive, or an object from task to label
        run_out: for "one_positive": a pass ends where the positive or the negative rows run out ("stop"), or
            those are shuffled and used again until the others are through ("repeat")
        buckets: put texts of similar length into a batch: faster, and every epoch sees the same rows as without;
            for tasks whose composition is "shuffled"

    Siblings: ``sequential`` gives a task the turns of all epochs at once, ``alternating`` changes task with every step.

    Reference: Mohammed & Sabane, "Robust Embeddings using Contrastive and Multiple Negatives on BERT", 2023,
    section 4 (RR).

    Example:
        {"stages": [{"sampler": {"name": "ordered", "order": ["sst", "sts", "sst", "sts", "para"]}}]}
    """

    name = "ordered"

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
        self.order = order

    def problems(self, tasks: Sequence[str]) -> list[Problem]:
        return super().problems(tasks) + order_problems(self.order, tasks)

    def plan(self, epochs: int) -> None:
        batches = self.streams.batches
        self.turns = self.order or list(self.streams.tasks)
        counts = {task: count_of(self.iterations, batches.values(), whole=batches[task]) for task in batches}
        self.ends = list(accumulate(counts[task] for task in self.turns))
        for task in batches:
            self.streams.mark_epochs(task, counts[task] * self.turns.count(task))

    @property
    def steps(self) -> int:
        return self.ends[-1]

    def group(self, step: int) -> Group:
        return (self.streams.next(self.turns[bisect_right(self.ends, step)]),)


def order_problems(order: list[str] | None, tasks: Sequence[str]) -> list[Problem]:
    """What is wrong with an order: names that are no tasks of the stage, tasks that never have their turn."""
    if order is None:
        return []
    missing = [task for task in tasks if task not in order]
    never = f"should name every task of the stage. Missing: {', '.join(missing)}."
    return unknown_tasks("order", order, tasks) + ([Problem("order", never)] if missing else [])
