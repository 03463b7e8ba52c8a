"""Cosine similarity as every head and loss here means it."""

import torch
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """Half precision becomes float32; float32 and float64 stay as they are."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def cosine_of(x: Tensor, y: Tensor) -> Tensor:
    """x·y / max(‖x‖‖y‖, 1e-8) along the last dimension, at least in float32: [B, d], [B, d] → [B].

    >>> cosine_of(torch.tensor([[3.0, 4.0]]), torch.tensor([[4.0, 3.0]]))
    tensor([0.9600])
    """
    x, y = at_least_float32(x), at_least_float32(y)
    norms = torch.linalg.vector_norm(x, dim=-1) * torch.linalg.vector_norm(y, dim=-1)  # [B]
    cosine: Tensor = (x * y).sum(-1) / norms.clamp_min(1e-8)
    return cosine


def cosine_matrix(x: Tensor, y: Tensor) -> Tensor:
    """The cosine of each row of ``x`` with each row of ``y``, at least in float32: [A, d], [B, d] → [A, B].

    >>> cosine_matrix(torch.tensor([[3.0, 4.0]]), torch.tensor([[4.0, 3.0], [0.0, 2.0]]))
    tensor([[0.9600, 0.8000]])
    """
    x, y = at_least_float32(x), at_least_float32(y)
    norms = torch.outer(torch.linalg.vector_norm(x, dim=-1), torch.linalg.vector_norm(y, dim=-1))  # [A, B]
    return (x @ y.T) / norms.clamp_min(1e-8)
