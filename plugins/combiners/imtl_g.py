"""Impartial multi-task learning, its gradient part."""

import torch
from torch import Tensor

from taskloom.core import GradientCombiner
from taskloom.plugins.combiners.cosines import norms_and_cosines, scatter_weights

#: Cosines come from float32 gradients: eigenvalues below this share of the largest are noise.
_NOISE = 1e-6


class IMTLG(GradientCombiner):
    """The combination of gradients that has the same projection onto every task's gradient.

    d = Σᵢ αᵢ gᵢ with d·gᵢ/‖gᵢ‖ equal for all i and Σ α = 1: with C the cosines of the gradients, C β = 1 and
    αᵢ ∝ βᵢ/‖gᵢ‖. Weights may be negative. Where gradients are linearly dependent β is the least-squares solution;
    a task whose gradient is zero is left out; where no multiple of the solution sums to one, all weights are 0.

    Reads: the gradients of the shared parameters. A head's own parameters get the whole gradient of their task.

    Siblings: the weights of T tasks sum to 1, as those of ``mean`` do, where those of ``sum`` add up to T: AdamW
    all but cancels that factor, clipping does not. ``nash_mtl`` also treats all scales of gradients alike and never
    weighs a task below zero.

    Reference: Liu et al., "Towards Impartial Multi-task Learning", ICLR 2021 (the gradient part; its loss part is
    equivalent to ``uncertainty``).

    Example:
        {"stages": [{"combiner": "imtl_g"}]}
    """

    name = "imtl_g"

    def weights(self, gramian: Tensor) -> Tensor:
        indices, norms, cosines = norms_and_cosines(gramian)
        shares = torch.linalg.pinv(cosines, rtol=_NOISE, hermitian=True).sum(1) / norms  # [k] β/‖g‖
        total = shares.sum()
        if total.abs() <= 1e-12 * shares.abs().sum():
            return torch.zeros(len(gramian), dtype=gramian.dtype)
        return scatter_weights(shares / total, indices, len(gramian))
