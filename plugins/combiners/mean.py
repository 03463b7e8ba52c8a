"""The mean of the tasks' gradients."""

from collections.abc import Sequence

from taskloom.plugins.combiners.fixed import FixedWeights


class Mean(FixedWeights):
    """The mean of the tasks' gradients.

    g = 1/T Σᵢ gᵢ over the T tasks of the step, the gradient of the mean loss. In a step with one task, as
    ``alternating`` makes them, that is the task's own gradient.

    Reads: the gradient of every task in the step; keeps none of them.

    Siblings: ``sum`` differs by the factor T, which AdamW all but cancels and clipping does not.

    Reference: Caruana, "Multitask Learning", Machine Learning 28, 1997.

    Example:
        {"stages": [{"combiner": "mean"}]}
    """

    name = "mean"

    def factors(self, tasks: Sequence[str]) -> list[float]:
        return [1.0 / len(tasks)] * len(tasks)
