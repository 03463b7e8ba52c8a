"""One batch of every task per step."""

from collections.abc import Mapping

from taskloom.core import Group
from taskloom.plugins.samplers.stepwise import StepwiseSampler, count_of


class RoundRobin(StepwiseSampler):
    """One batch of every task in every step.

    Step s takes the next batch of each of the T tasks, so their gradients are combined into one update: the papers'
    "cumulative loss".

    Reads: the number of rows of each task, and what ``composition`` and ``buckets`` need.

    Options:
        iterations: rounds in an epoch, a round being one batch of every task: a number, "smallest" or "largest" for as
            many as the smallest or largest data set has batches, or a multiple of "smallest" such as "3x" or "0.5x"

    Siblings: ``alternating`` gives each batch an update of its own, ``mixed`` draws whose turn it is.

    Reference: Caruana, "Multitask Learning", Machine Learning 28, 1997.

    Example:
        {"stages": [{"sampler": {"name": "round_robin", "iterations": "smallest", "buckets": true}}]}
    """

    name = "round_robin"

    def plan(self, batches: Mapping[str, int], epochs: int) -> int:
        rounds = count_of(self.iterations, batches.values(), whole=min(batches.values()))
        for stream in self.streams.values():
            stream.mark_epochs(rounds)
        return rounds

    def group(self, step: int) -> Group:
        return tuple(stream.next() for stream in self.streams.values())
