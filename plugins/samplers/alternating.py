"""The tasks in turn, one per step."""

from taskloom.core import Group
from taskloom.plugins.samplers.stepwise import StepwiseSampler


class Alternating(StepwiseSampler):
    """The tasks in turn, one task per step, each with its own update.

    Step s takes the next batch of task s mod T, in the order in which the run declares the tasks; a round is one turn
    of every task, so an epoch has T times as many steps as ``iterations`` says rounds.

    A pass over a task's data gives every row exactly once, the last batch of a pass being short where the rows do
    not divide evenly. A task that runs out begins a new pass in a new order; one that is not through when the
    epoch ends goes on from there in the next.

    Reads: the number of rows of each task; with ``buckets`` also their token counts.

    Options:
        batch_size: rows of a task in one batch
        iterations: rounds in an epoch (one turn of every task): a number, "smallest" or "largest" for as many
            as the smallest or largest data set has batches, or a multiple of "smallest" such as "3x"
        composition: how rows are put into batches; "shuffled" is a new random order for every pass
        buckets: put texts of similar length into a batch: faster, and every epoch sees the same rows as without

    Siblings: ``round_robin`` combines one batch of every task into one update.

    Reference: Liu et al., "Multi-Task Deep Neural Networks for Natural Language Understanding", ACL 2019 (one task
    per step).

    Example:
        {"stages": [{"sampler": {"name": "alternating", "iterations": "smallest", "buckets": true}}]}
    """

    name = "alternating"

    @property
    def steps(self) -> int:
        return self.streams.rounds * len(self.streams.tasks)

    def group(self, step: int) -> Group:
        task = self.streams.tasks[step % len(self.streams.tasks)]
        return (self.streams.next(task),)
