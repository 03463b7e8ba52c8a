"""One batch of every task per step."""

from taskloom.core import Group
from taskloom.plugins.samplers.stepwise import StepwiseSampler


class RoundRobin(StepwiseSampler):
    """One batch of every task in every step.

    Step s takes the next batch of each of the T tasks, so their gradients are combined into one update: the papers'
    "cumulative loss".

    A pass over a task's data gives every row exactly once, the last batch of a pass being short where the rows do
    not divide evenly. A task that runs out begins a new pass in a new order; one that is not through when the
    epoch ends goes on from there in the next.

    Reads: the number of rows of each task; with ``buckets`` also their token counts.

    Options:
        batch_size: rows of a task in one batch
        iterations: rounds in an epoch (here: steps): a number, "smallest" or "largest" for as many
            as the smallest or largest data set has batches, or a multiple of "smallest" such as "3x"
        composition: how rows are put into batches; "shuffled" is a new random order for every pass
        buckets: put texts of similar length into a batch: faster, and every epoch sees the same rows as without

    Siblings: ``alternating`` gives each batch an update of its own.

    Reference: Caruana, "Multitask Learning", Machine Learning 28, 1997.

    Example:
        {"stages": [{"sampler": {"name": "round_robin", "iterations": "smallest", "buckets": true}}]}
    """

    name = "round_robin"

    @property
    def steps(self) -> int:
        return self.streams.rounds

    def group(self, step: int) -> Group:
        return tuple(self.streams.next(task) for task in self.streams.tasks)
