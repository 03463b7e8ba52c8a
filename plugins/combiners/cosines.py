"""The Gramian apart: how long the gradients are, and the angles between them."""

import torch
from torch import Tensor


def norms_and_cosines(gramian: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The places [k] of gradients that are not zero, their norms [k], and their cosines [k, k].

    Solving in cosines keeps tasks of very different scale apart from tasks that are nearly parallel: only the
    latter make a system ill-conditioned.
    """
    squares = gramian.diagonal()  # [T]
    places = (squares > 0).nonzero()[:, 0]  # [k]
    norms = squares[places].sqrt()  # [k]
    cosines = gramian[places][:, places] / norms[:, None] / norms  # [k, k]
    return places, norms, cosines


def at_places(values: Tensor, places: Tensor, count: int) -> Tensor:
    """Weights [k] of the gradients at some places → weights of all, [T]: a gradient of zero weighs nothing."""
    return torch.zeros(count, dtype=values.dtype).index_copy(0, places, values)
