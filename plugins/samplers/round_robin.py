"""One batch of every task per step."""

from taskloom.core import Group
from taskloom.plugins.samplers.iterations import count_of
from taskloom.plugins.samplers.stepwise import StepwiseSampler


class RoundRobin(StepwiseSampler):
    """One batch of every task in every step.

    Step s takes the next batch of each of the T tasks, so their gradients are combined into one update: the papers'
    "cumulative loss".

    A pass over a task's data gives every row exactly once ("one_positive": see ``run_out``), the last batch being short
    where the rows do not divide evenly. A task that runs out begins a new pass in a new order; one that is not
    through when the epoch ends goes on from there in the next.

    Reads: the number of rows of each task; with ``buckets`` also their token counts, with "one_positive" their labels,
    with "no_duplicates" their texts.

    Options:
        batch_size: rows of a task in one batch, or an object from task to number (8 where a task is not named)
        iterations: rounds in an epoch (here: steps): a number, "smallest" or "largest" for as
            many as the smallest or largest data set has batches, or a multiple of "smallest" such as "3x" or "0.5x"
        composition: how a task's rows are put into batches, one for all or an object from task to name ("shuffled"
            where a task is not named). "shuffled": a new random order for every pass; "one_positive": one positive
            row and batch_size − 1 negative ones; "no_duplicates": no text twice in a batch
        positive_from: for "one_positive": the label from which (≥) a row is positive, or an object from task to label
        run_out: for "one_positive": a pass ends where the positive or the negative rows run out ("stop"), or
            those are shuffled and used again until the others are through ("repeat")
        buckets: put texts of similar length into a batch: faster, and every epoch sees the same rows as without;
            for tasks whose composition is "shuffled"

    Siblings: ``alternating`` gives each batch an update of its own, ``mixed`` draws whose turn it is.

    Reference: Caruana, "Multitask Learning", Machine Learning 28, 1997.

    Example:
        {"stages": [{"sampler": {"name": "round_robin", "iterations": "smallest", "buckets": true}}]}
    """

    name = "round_robin"

    def plan(self, epochs: int) -> None:
        batches = self.streams.batches.values()
        self.rounds = count_of(self.iterations, batches, whole=min(batches))
        for task in self.streams.tasks:
            self.streams.mark_epochs(task, self.rounds)

    @property
    def steps(self) -> int:
        return self.rounds

    def group(self, step: int) -> Group:
        return tuple(self.streams.next(task) for task in self.streams.tasks)
