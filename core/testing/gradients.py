"""Gradients against finite differences, in float64."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from taskloom.core.testing.law import generator, given, require


@dataclass(frozen=True)
class _Scale:
    """How far a value is moved, and what its rise and its gradient may differ by: a share, and a number."""

    step: float
    share: float
    least: float

    def close(self, rise: float, slope: float, value: float) -> bool:
        return abs(rise - slope) <= self.share * max(abs(rise), abs(slope)) + self.least * max(1.0, abs(value))


_FINE = _Scale(1e-6, 1e-4, 2e-6)
#: Where a step on the way rounds to float32: a longer one against rounding, a shorter one against kinks in between.
_COARSE = (_Scale(1e-2, 5e-3, 1e-3), _Scale(1e-3, 5e-3, 1e-3))


def require_gradient(
    value: Callable[[], Tensor], at: Mapping[str, Tensor], *, directions: int = 2, hint: str = ""
) -> None:
    """The gradient of ``value()`` with respect to each tensor in ``at``, by name, is that of finite differences.

    Along a few random directions v of unit length, (f(x + hv) − f(x − hv)) / 2h should be ∇f·v. ``value`` reads the
    tensors, which are moved in place. A tensor that plays no part has a gradient of zero. What is computed in less
    than float64 on the way, as by ``score.float()``, is moved by more and compared less closely. ``hint`` is what the
    message ends with.
    """
    with _Precision() as precision:
        here = value()
    scales = (_FINE, *_COARSE) if precision.lower else (_FINE,)
    tensors = list(at.values())
    require(here.requires_grad, "no gradient flows back")
    gradients = torch.autograd.grad(here, tensors, allow_unused=True)
    draws = generator(11)
    for (name, tensor), gradient in zip(at.items(), gradients, strict=True):
        dense = torch.zeros_like(tensor) if gradient is None else gradient.to_dense()
        for _ in range(directions):
            way = torch.randn(tensor.shape, generator=draws, dtype=tensor.dtype)
            way /= way.norm()
            slope = float((dense * way).sum())
            for scale in scales:
                rise = _rise(value, tensor, scale.step * way) / (2 * scale.step)
                if scale.close(rise, slope, here.item()):
                    break
            else:
                with given(f"{name} of {list(tensor.shape)}"):
                    words = f"moved by a little it rises by {rise:.6g} per unit, its gradient says {slope:.6g}"
                    raise AssertionError(words + hint)


def _rise(value: Callable[[], Tensor], tensor: Tensor, move: Tensor) -> float:
    """f(x + move) − f(x − move)."""
    start = tensor.detach().clone()
    values = []
    for sign in (1, -1):
        tensor.data.copy_(start + sign * move)
        values.append(value().item())
    tensor.data.copy_(start)
    return values[0] - values[1]


class _Precision(TorchFunctionMode):
    """Notices whether anything that a gradient flows through is computed in less than float64."""

    lower = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, Tensor) and found.requires_grad and found.dtype is not torch.float64:
            self.lower = True
        return found
