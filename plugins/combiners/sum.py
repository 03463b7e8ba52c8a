"""The sum of the tasks' gradients."""

from collections.abc import Sequence

from taskloom.plugins.combiners.fixed import FixedWeights


class Sum(FixedWeights):
    """The sum of the tasks' gradients.

    g = Σᵢ gᵢ, the gradient of the summed loss: what the papers call cumulative loss.

    Reads: the gradient of every task in the step; keeps none of them.

    Siblings: ``mean`` divides by the number of tasks; ``pcgrad``, ``gradvac``, ``gse``, ``cagrad``, ``aligned_mtl`` and
    ``dwa`` have the same scale by default, so that each compares with it like with like.

    Reference: Caruana, "Multitask Learning", Machine Learning 28, 1997.

    Example:
        {"stages": [{"combiner": "sum"}]}
    """

    name = "sum"

    def factors(self, tasks: Sequence[str]) -> list[float]:
        return [1.0] * len(tasks)
