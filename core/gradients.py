"""Arithmetic on per-task gradients: nothing is flattened, nothing is copied, gradients go as they are used up."""

from collections.abc import Sequence
from math import isfinite

import torch
from torch import Tensor, nn

from taskloom.core.errors import TrainingError

Gradients = list[Tensor | None]  # one per shared parameter; None where the task does not reach it

#: A matrix with this many times more rows than columns is looked at as a table of embeddings.
_TABLE = 8


def take_gradients(parameters: Sequence[nn.Parameter]) -> Gradients:
    """Move the gradients out of the parameters: no copy, and the next backward starts from nothing.

    A table of embeddings, of which a batch touches few rows, is kept as those rows (a sparse tensor): half of a
    small BERT's gradient is zeros that need neither memory nor arithmetic.
    """
    taken: Gradients = []
    for parameter in parameters:
        gradient, parameter.grad = parameter.grad, None
        taken.append(None if gradient is None else _compact(gradient))
    return taken


def gramian_of(gradients: Sequence[Gradients], tasks: Sequence[str]) -> Tensor:
    """G[i, j] = gᵢ·gⱼ over all parameters, [T, T] in float64.

    A task whose gradient is not finite is an error that names it.
    """
    pairs = [(i, j) for i in range(len(gradients)) for j in range(i + 1)]
    dots: dict[tuple[int, int], list[Tensor]] = {pair: [] for pair in pairs}
    # Parameter by parameter, so that a gradient comes from memory once and not once per pair.
    for places in zip(*gradients, strict=True):
        for i, j in pairs:
            one, other = places[i], places[j]
            if one is not None and other is not None:
                dots[i, j].append(_dot(one, other))
    gramian = torch.zeros(len(gradients), len(gradients), dtype=torch.float64)
    for i, j in pairs:
        if dots[i, j]:
            gramian[i, j] = gramian[j, i] = torch.stack(dots[i, j]).double().sum()
    norms = gramian.diagonal().tolist()
    bad = [repr(task) for task, norm in zip(tasks, norms, strict=True) if not isfinite(norm)]
    if bad:
        raise TrainingError(f"the gradient of task {', '.join(bad)} is not finite")
    return gramian


def combine_gradients(gradients: Sequence[Gradients], weights: Tensor, parameters: Sequence[nn.Parameter]) -> None:
    """Σ wᵢ gᵢ into each parameter's ``.grad``, written over the first gradient that reaches it.

    Uses the gradients up: afterwards the lists hold nothing.
    """
    factors = weights.tolist()
    for place, parameter in enumerate(parameters):
        parts = [(w, taken[place]) for w, taken in zip(factors, gradients, strict=True)]
        for taken in gradients:
            taken[place] = None
        parameter.grad = _weighted_sum([(w, part) for w, part in parts if part is not None])


def densify_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Turn sparse gradients (of embeddings) into dense ones, which is what optimizers and clipping expect."""
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.to_dense()


def _compact(gradient: Tensor) -> Tensor:
    if gradient.is_sparse:
        return gradient.coalesce() if gradient.sparse_dim() == 1 else gradient.to_dense()
    if gradient.dim() != 2 or gradient.shape[0] < _TABLE * gradient.shape[1]:
        return gradient
    # The 1-norm of a row is zero only if the row is zero; the 2-norm may underflow.
    rows = torch.linalg.vector_norm(gradient, 1, dim=1).nonzero()[:, 0]  # [k]
    if 2 * len(rows) > len(gradient):
        return gradient
    values = gradient.index_select(0, rows)  # [k, d]
    return torch.sparse_coo_tensor(rows[None], values, gradient.shape, is_coalesced=True, check_invariants=False)


def _dot(one: Tensor, other: Tensor) -> Tensor:
    """The inner product of two gradients of one parameter; either may be sparse rows."""
    if not one.is_sparse and not other.is_sparse:
        return torch.dot(one.reshape(-1), other.reshape(-1))
    if not one.is_sparse:
        one, other = other, one
    rows, values = one.indices()[0], one.values()  # [k], [k, d]
    if other.is_sparse:
        # Both lists of rows are sorted and without repeats, so the rows that both have come in the same order.
        theirs = other.values()[torch.isin(other.indices()[0], rows)]
        values = values[torch.isin(rows, other.indices()[0])]
    else:
        theirs = other.index_select(0, rows)
    return torch.dot(values.reshape(-1), theirs.reshape(-1))


def _weighted_sum(parts: list[tuple[float, Tensor]]) -> Tensor | None:
    """Σ w·g, dense, in the memory of the first dense part."""
    if not parts:
        return None
    start = next((k for k, (_, part) in enumerate(parts) if not part.is_sparse), None)
    if start is None:
        total = torch.zeros(parts[0][1].shape, dtype=parts[0][1].dtype, device=parts[0][1].device)
    else:
        factor, first = parts.pop(start)
        total = first.mul_(factor)
    for factor, part in parts:
        if part.is_sparse:
            total.index_add_(0, part.indices()[0], part.values(), alpha=factor)
        else:
            total.add_(part, alpha=factor)
    return total
