"""The tasks in turn, one per step."""

from collections.abc import Mapping

from taskloom.core import Group
from taskloom.plugins.samplers.round_robin import RoundRobin


class Alternating(RoundRobin):
    """The tasks in turn, one task per step, each with its own update.

    Step s takes the next batch of task s mod T, in the order in which the run declares the tasks; a round is one turn
    of every task, so an epoch has T times as many steps as ``iterations`` says rounds.

    Reads: the number of rows of each task, and what ``composition`` and ``buckets`` need.

    Siblings: ``round_robin`` combines one batch of every task into one update; ``mixed`` draws whose turn it is;
    ``ordered`` gives a task all its turns of an epoch at once.

    Reference: Liu et al., "Multi-Task Deep Neural Networks for Natural Language Understanding", ACL 2019 (one task
    per step).

    Example:
        {"stages": [{"sampler": {"name": "alternating", "iterations": "smallest", "buckets": true}}]}
    """

    name = "alternating"

    def plan(self, batches: Mapping[str, int], epochs: int) -> int:
        return super().plan(batches, epochs) * len(batches)

    def group(self, step: int) -> Group:
        task = list(self.streams)[step % len(self.streams)]
        return (self.streams[task].next(),)
