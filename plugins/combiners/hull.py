"""The point of least norm in the convex hull of the gradients."""

import numpy as np
import torch
from torch import Tensor


def least_norm(gramian: Tensor) -> Tensor:
    """The weights w ≥ 0, Σ w = 1 with the least ‖Σ wᵢ gᵢ‖, exactly: [T, T] → [T].

    Scaling x = μw turns ‖Rᵀx‖² + (Σx − 1)² into μ²‖g_w‖² + (μ − 1)², which for any μ > 0 is least at the same w: one
    problem of non-negative least squares, which an active-set method solves in finitely many steps.
    """
    from scipy.optimize import nnls

    scale = gramian.diagonal().max()
    if scale <= 0:
        return torch.full((len(gramian),), 1 / len(gramian), dtype=gramian.dtype)
    values, vectors = torch.linalg.eigh(gramian / scale)
    root = vectors * values.clamp(min=0).sqrt()  # [T, T] R with G = R Rᵀ
    system = torch.cat([root.T, torch.ones(1, len(gramian), dtype=gramian.dtype)]).numpy()  # [T + 1, T]
    target = np.zeros(len(system))
    target[-1] = 1.0
    scaled_weights = torch.from_numpy(nnls(system, target)[0])
    return scaled_weights / scaled_weights.sum()
