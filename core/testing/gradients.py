"""Gradients against finite differences, in float64."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from taskloom.core.testing.law import generator, given, require

_STEP = 1e-6


def require_gradient(value: Callable[[], Tensor], at: Mapping[str, Tensor], *, directions: int = 2) -> None:
    """The gradient of ``value()`` with respect to each tensor in ``at``, by name, is that of finite differences.

    Along a few random directions v of unit length, (f(x + hv) − f(x − hv)) / 2h should be ∇f·v. ``value`` reads the
    tensors, which are moved in place. A tensor that plays no part has a gradient of zero.
    """
    here = value()
    tensors = list(at.values())
    require(here.requires_grad, "no gradient flows back")
    gradients = torch.autograd.grad(here, tensors, allow_unused=True)
    draws = generator(11)
    for (name, tensor), gradient in zip(at.items(), gradients, strict=True):
        dense = torch.zeros_like(tensor) if gradient is None else gradient.to_dense()
        for _ in range(directions):
            way = torch.randn(tensor.shape, generator=draws, dtype=tensor.dtype)
            way /= way.norm()
            rise = _rise(value, tensor, way)
            slope = float((dense * way).sum())
            close = abs(rise - slope) <= 1e-4 * max(abs(rise), abs(slope)) + 2e-6 * max(1.0, abs(here.item()))
            with given(f"{name} of {list(tensor.shape)}"):
                words = f"moved by a little it rises by {rise:.6g} per unit, its gradient says {slope:.6g}"
                require(close, words)


def _rise(value: Callable[[], Tensor], tensor: Tensor, way: Tensor) -> float:
    start = tensor.detach().clone()
    values = []
    for sign in (1, -1):
        tensor.data.copy_(start + sign * _STEP * way)
        values.append(value().item())
    tensor.data.copy_(start)
    return (values[0] - values[1]) / (2 * _STEP)
