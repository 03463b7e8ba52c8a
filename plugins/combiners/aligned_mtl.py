"""Alignment of the independent components of the gradients."""

from typing import Literal

import torch
from torch import Tensor

from taskloom.core import GradientCombiner

#: Gramians come from float32 gradients: eigenvalues below this share of the largest are noise.
_NOISE = torch.finfo(torch.float32).eps


class AlignedMTL(GradientCombiner):
    """The sum of the gradients after their principal components are scaled to equal length.

    With G = V Λ Vᵀ the Gramian, the matrix of gradients is replaced by the nearest one whose singular values are
    all σ, so that aligned gradients are orthogonal and equally long: weights = σ V Λ^(−½) Vᵀ 1, or that divided by
    T for their mean. Zero eigenvalues (linearly dependent gradients) are left out; where all are zero, the weights
    are those of ``sum`` or ``mean``.

    Reads: the gradients of the shared parameters. A head's own parameters get the whole gradient of their task.

    Options:
        scale: σ² is the "min" or the "median" of the eigenvalues, or their mean ("rmse")
        reduction: "sum" or "mean" (as in the paper) of the aligned gradients

    Siblings: ``imtl_g`` equalises projections, this one the system of gradients itself; gradients that are aligned
    already give what ``sum`` gives.

    Reference: Senushkin et al., "Independent Component Alignment for Multi-Task Learning", CVPR 2023, Algorithm 1
    (Aligned-MTL-UB with equal preferences); "min" is the paper's, the others are the authors' code's.

    Example:
        {"stages": [{"combiner": {"name": "aligned_mtl", "scale": "min"}}]}
    """

    name = "aligned_mtl"

    def __init__(
        self,
        *,
        scale: Literal["min", "median", "rmse"] = "min",
        reduction: Literal["sum", "mean"] = "sum",
    ) -> None:
        super().__init__()
        self.scale = scale
        self.reduction = reduction

    def weights(self, gramian: Tensor) -> Tensor:
        count = len(gramian)
        uniform = torch.full((count,), 1 / count if self.reduction == "mean" else 1.0, dtype=gramian.dtype)
        values, vectors = torch.linalg.eigh(gramian)  # ascending
        kept = values > max(float(values[-1]) * count * _NOISE, 0.0)
        if not kept.any():
            return uniform
        values, vectors = values[kept], vectors[:, kept]  # [r], [T, r]
        square = {"min": values.min, "median": values.median, "rmse": values.mean}[self.scale]()
        weights: Tensor = vectors @ ((square / values).sqrt() * (vectors.T @ uniform))
        return weights
