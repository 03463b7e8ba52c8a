"""All epochs of one task, then the next task."""

from collections.abc import Mapping, Sequence

from taskloom.core import Group, Problem
from taskloom.plugins.samplers.ordered import Ordered


class Sequential(Ordered):
    """All epochs of one task, then all epochs of the next, one task per step.

    In a stage of E epochs, E passes over the first task's data are followed by E over the second's, and so on. The
    stage is as long as with ``ordered``, and its epochs are equal parts of it: each has Σₜ n(t) steps, n the batches
    of a task's data, so the model is scored as often, and an epoch may end in the middle of a task.

    Reads: the number of rows of each task, and what ``composition`` and ``buckets`` need.

    Options:
        order: the tasks as they follow each other, each once; by default as the stage names them
        iterations: batches of a task per epoch of the stage: a number, "smallest" or "largest" for as many as the
            smallest or largest data set has, or a multiple of its own data set's such as "1x" (all), "2x" or "0.5x"

    Siblings: ``ordered`` goes through all tasks in every epoch. One stage per task is like this sampler with a new
    optimizer for each task.

    Reference: Mohammed & Sabane, "Robust Embeddings using Contrastive and Multiple Negatives on BERT", 2023,
    section 4 (ST).

    Example:
        {"stages": [{"epochs": 3, "sampler": {"name": "sequential", "order": ["para", "sst", "sts"]}}]}
    """

    name = "sequential"

    def problems(self, tasks: Sequence[str]) -> list[Problem]:
        problems = super().problems(tasks)
        if self.order is not None and len(set(self.order)) < len(self.order):
            message = f"should name a task once, because all its epochs come together. Found {self.order}."
            problems.append(Problem("order", message))
        return problems

    def plan(self, batches: Mapping[str, int], epochs: int) -> int:
        steps = super().plan(batches, epochs)  # of all tasks once
        begin, times = 0, max(epochs, 1)
        self.ends = [times * end for end in self.ends]
        for task, end in zip(self.turns, self.ends, strict=True):
            self.streams[task].mark_epochs(steps, first=-begin % steps)
            begin = end
        return steps

    def group(self, step: int) -> Group:
        return super().group(self.drawn % self.ends[-1])  # the step within the stage: one batch per step
