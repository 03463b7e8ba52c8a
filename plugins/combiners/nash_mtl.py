"""Multi-task learning as a bargaining game."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from taskloom.core import GradientCombiner
from taskloom.plugins.combiners.cosines import norms_and_cosines, scatter_weights

#: Added to the cosines' diagonal, so that a solution exists even where no direction helps every task.
_RIDGE = 1e-6
_MOST_STEPS = 200


class NashMTL(GradientCombiner):
    """The Nash bargaining solution between the tasks: the update with the largest product of their gains.

    d = argmax Σᵢ log(gᵢ·d) over a ball, which is d = Σᵢ αᵢ gᵢ with α > 0 and gᵢ·d = 1/αᵢ, that is G α = 1/α. That α is
    the minimum of ½ αᵀGα − Σ log αᵢ, which is convex and which Newton's method finds to rounding. Every gᵢ·d is
    positive, and the scale of a task's gradient (or of its loss) does not matter. ‖d‖ is √T without a limit,
    whatever the gradients' lengths; for one task d is its gradient divided by its norm.

    Reads: the gradients of the shared parameters. A head's own parameters get the whole gradient of their task.

    Options:
        max_norm: the longest update; 1 as in the authors' code, which makes every update of two tasks or more that
            long; null leaves √T

    Siblings: the update's length does not depend on that of the gradients, so its scale is neither that of ``sum``
    nor of ``mean``: AdamW all but cancels a constant factor, clipping does not. ``imtl_g`` asks for equal gains
    instead of the largest product of gains.

    Reference: Navon et al., "Multi-Task Learning as a Bargaining Game", ICML 2022. The authors solve a sequence of
    convex approximations and reuse weights for some steps; this is the exact solution in every step.

    Example:
        {"stages": [{"combiner": "nash_mtl"}]}
    """

    name = "nash_mtl"

    def __init__(self, *, max_norm: Annotated[float, Field(gt=0)] | None = 1.0) -> None:
        super().__init__()
        self.max_norm = max_norm

    def weights(self, gramian: Tensor) -> Tensor:
        indices, norms, cosines = norms_and_cosines(gramian)
        if not len(indices):
            return torch.zeros(len(gramian), dtype=gramian.dtype)
        bargain = bargaining_solution(cosines + _RIDGE * torch.eye(len(cosines), dtype=cosines.dtype))
        length = (bargain @ cosines @ bargain).clamp(min=0).sqrt()
        if self.max_norm is not None and length > self.max_norm:
            bargain = bargain * (self.max_norm / length)
        return scatter_weights(bargain / norms, indices, len(gramian))


def bargaining_solution(matrix: Tensor) -> Tensor:
    """The α > 0 with M α = 1/α for a positive definite M: [k, k] → [k].

    ½ αᵀMα − Σ log αᵢ is self-concordant: damped Newton steps stay positive and converge from anywhere.
    """
    alpha = matrix.diagonal().rsqrt()
    for _ in range(_MOST_STEPS):
        slope = matrix @ alpha - 1 / alpha
        step = torch.linalg.solve(matrix + (alpha**-2).diag(), slope)
        decrement = (slope @ step).clamp(min=0).sqrt()
        alpha = alpha - step / (1 + decrement if decrement > 0.25 else 1)
        if decrement < 1e-10:
            break
    return alpha
