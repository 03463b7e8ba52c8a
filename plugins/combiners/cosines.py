"""A Gramian split into the norms of the gradients and the cosines between them."""

import torch
from torch import Tensor


def norms_and_cosines(gramian: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The indices [k] of the gradients that are not zero, their norms [k] and their cosines [k, k].

    In cosines a system is ill-conditioned only where gradients are nearly parallel, not where they differ in scale.
    """
    squares = gramian.diagonal()  # [T]
    indices = (squares > 0).nonzero()[:, 0]  # [k]
    norms = squares[indices].sqrt()  # [k]
    cosines = gramian[indices][:, indices] / norms[:, None] / norms  # [k, k]
    return indices, norms, cosines


def scatter_weights(weights: Tensor, indices: Tensor, count: int) -> Tensor:
    """The weights [k] of the gradients at ``indices`` → weights [count], 0 for every other gradient."""
    return torch.zeros(count, dtype=weights.dtype).index_copy(0, indices, weights)
