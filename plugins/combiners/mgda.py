"""The multiple-gradient descent algorithm."""

from torch import Tensor

from taskloom.core import GradientCombiner
from taskloom.plugins.combiners.hull import least_norm


class MGDA(GradientCombiner):
    """The shortest convex combination of the tasks' gradients, which conflicts with none of them.

    d = Σᵢ wᵢ gᵢ with w = argmin ‖Σᵢ wᵢ gᵢ‖² over w ≥ 0, Σ w = 1. Then gᵢ·d ≥ ‖d‖² for every task: a step along −d
    lowers every loss, and d = 0 where no such step exists. The weights are exact (an active-set method), not
    an approximation by Frank-Wolfe steps. The task with the smallest gradient weighs most.

    Reads: the gradients of the shared parameters. A head's own parameters get the whole gradient of their task.

    Siblings: the weights of T tasks sum to 1, as those of ``mean`` do, where those of ``sum`` add up to T: AdamW
    all but cancels that factor, clipping does not. ``cagrad`` stays near the summed gradient; ``imtl_g`` and
    ``nash_mtl`` do not favour small gradients.

    Reference: Désidéri, "Multiple-gradient descent algorithm for multiobjective optimization", Comptes Rendus
    Mathématique 350, 2012; Sener & Koltun, "Multi-Task Learning as Multi-Objective Optimization", NeurIPS 2018.

    Example:
        {"stages": [{"combiner": "mgda"}]}
    """

    name = "mgda"

    def weights(self, gramian: Tensor) -> Tensor:
        return least_norm(gramian)
