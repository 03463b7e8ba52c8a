"""How far two predictions for the same examples are apart."""

from typing import Literal

from torch import Tensor

from taskloom.plugins.similarity import at_least_float32

Divergence = Literal["kl", "squared_error"]


def divergence_of(one: Tensor, other: Tensor, kind: Divergence) -> Tensor:
    """The divergence of each example, symmetric in its arguments, at least in float32: [B, …], [B, …] → [B]."""
    one, other = at_least_float32(one), at_least_float32(other)
    if kind == "squared_error":
        return (one - other).square().flatten(1).mean(1) if one.dim() > 1 else (one - other).square()
    return symmetric_kl(one, other) if one.dim() > 1 else (one.sigmoid() - other.sigmoid()) * (one - other)


def symmetric_kl(one: Tensor, other: Tensor) -> Tensor:
    """KL(P‖Q) + KL(Q‖P) = Σ (p − q)(log p − log q) of the distributions of two rows of logits: [B, C] → [B].

    A single logit s is the two logits (0, s), which makes the sum (σ(s) − σ(t))(s − t).

    >>> import torch
    >>> symmetric_kl(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 1.0]]))  # (σ(1) − σ(0)) · 1
    tensor([0.2311])
    """
    p, q = one.log_softmax(-1), other.log_softmax(-1)
    distance: Tensor = ((p.exp() - q.exp()) * (p - q)).sum(-1)
    return distance
