"""Conflict-averse gradient descent."""

from math import sqrt
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from taskloom.core import GradientCombiner
from taskloom.plugins.combiners.hull import least_norm

#: Below this share of the largest gradient, a combination of gradients counts as zero.
_ZERO = 1e-6


class CAGrad(GradientCombiner):
    """Stays near the summed gradient and, within that distance, helps most the task that gains least.

    d = argmax minᵢ gᵢ·d over ‖d − g₀‖ ≤ c‖g₀‖, with g₀ the mean gradient. That is d = g₀ + c‖g₀‖ g_w/‖g_w‖, where
    g_w = Σᵢ wᵢ gᵢ and w = argmin g_w·g₀ + c‖g₀‖‖g_w‖ over w ≥ 0, Σ w = 1. Writing ‖g_w‖ = c‖g₀‖ s, that w is the one of
    ``mgda`` for the gradients gᵢ + s g₀, and s is the root of a function of one variable. Where g_w is zero (no
    direction helps every task), d = g₀. For one task d is (1 + c) times its gradient. The update of T tasks is T d, so
    that it stays near the sum, or d itself.

    Reads: the gradients of the shared parameters. A head's own parameters get the whole gradient of their task.

    Options:
        c: how far from the summed gradient the update may be, as a share of its length; 0 is ``sum``, below 1 it
            converges to a minimum of the summed loss
        reduction: "sum" stays near the sum of the gradients, "mean" (as in the paper) near their mean

    Siblings: c = 0 is ``sum``, or ``mean`` of the shared parameters; with growing c the direction becomes that of
    ``mgda``.

    Reference: Liu et al., "Conflict-Averse Gradient Descent for Multi-task Learning", NeurIPS 2021, Algorithm 1.
    The authors' code also divides by 1 + c², which AdamW cancels.

    Example:
        {"stages": [{"combiner": {"name": "cagrad", "c": 0.4}}]}
    """

    name = "cagrad"

    def __init__(self, *, c: Annotated[float, Field(ge=0)] = 0.4, reduction: Literal["sum", "mean"] = "sum") -> None:
        super().__init__()
        self.c = c
        self.reduction = reduction

    def weights(self, gramian: Tensor) -> Tensor:
        return self._near_mean(gramian) * (len(gramian) if self.reduction == "sum" else 1)

    def _near_mean(self, gramian: Tensor) -> Tensor:
        """The weights of d."""
        from scipy.optimize import brentq

        count = len(gramian)
        uniform = torch.full((count,), 1 / count, dtype=gramian.dtype)
        scale = float(gramian.diagonal().max())
        if scale <= 0:
            return uniform
        gramian = gramian / scale
        with_mean = gramian @ uniform  # [T] gᵢ·g₀
        square = with_mean @ uniform  # ‖g₀‖²
        radius = self.c * sqrt(max(float(square), 0.0))  # c‖g₀‖

        def solve(shift: float) -> tuple[Tensor, float]:
            """w for a given s, and the norm of g_w."""
            shifted = gramian + shift * (with_mean[:, None] + with_mean) + shift**2 * square  # of gᵢ + s g₀
            w = least_norm(shifted)
            return w, sqrt(max(float(w @ gramian @ w), 0.0))

        def gap(shift: float) -> float:
            return solve(shift)[1] - radius * shift

        if radius <= _ZERO or gap(_ZERO / radius) <= 0:
            return uniform
        # No combination of gradients is longer than the longest, which is 1: there the gap is negative.
        w, norm = solve(brentq(gap, _ZERO / radius, 2 / radius, xtol=1e-12 / radius, rtol=1e-12))
        return uniform + radius / norm * w
