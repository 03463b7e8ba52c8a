"""Arithmetic on per-task gradients, which go as they are used up.

On a CPU nothing is flattened and nothing is copied, and of a table of embeddings only the rows count that were used. On
a GPU, where every call has its price, one call takes many parameters.
"""

from collections.abc import Iterator, Sequence
from math import isfinite

import torch
from torch import Tensor, nn

from taskloom.core.errors import TrainingError

Gradients = list[Tensor | None]  # one per shared parameter; None where the task does not reach it


class TaskGradients(list[Gradients]):
    """The gradients of several tasks, and by the place of a parameter those inner products that are known already.

    On a CPU a gradient costs least to multiply when it arises, while it is in the cache.
    """

    def __init__(self, gradients: Sequence[Gradients], products: dict[int, Tensor]) -> None:
        super().__init__(gradients)
        self.products = products  # [pairs] each, in the order of ``products_of``


#: A matrix with this many times more rows than columns is looked at as a table of embeddings.
_TABLE = 8
#: Numbers of each task that are laid side by side for one product.
_CHUNK = 2**23
#: Dense gradients of fewer numbers are laid side by side on a CPU too: a call for each would cost more than its work.
SMALL = 2**14


def take_gradients(parameters: Sequence[nn.Parameter]) -> Gradients:
    """Move the gradients out of the parameters: no copy, and the next backward starts from nothing.

    On a CPU a table of embeddings, of which a batch touches few rows, is kept as those rows (a sparse tensor): half of
    a small BERT's gradient is zeros that need neither memory nor arithmetic.
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
    gramian = _gramian_by_chunks(gradients) if _on_gpu(gradients) else _gramian_by_pairs(gradients)
    norms = gramian.diagonal().tolist()
    bad = [repr(task) for task, norm in zip(tasks, norms, strict=True) if not isfinite(norm)]
    if bad:
        raise TrainingError(f"the gradient of task {', '.join(bad)} is not finite")
    return gramian


def _on_gpu(gradients: Sequence[Gradients]) -> bool:
    """Whether all of it is dense and on a GPU."""
    parts = [part for taken in gradients for part in taken if part is not None]
    return bool(parts) and not any(part.device.type == "cpu" or part.is_sparse for part in parts)


def _gramian_by_chunks(gradients: Sequence[Gradients]) -> Tensor:
    """One product for many parameters; the host waits once, for the sum."""
    products = [(rows @ rows.T).double() for rows in _chunks(gradients)]
    return torch.stack(products).sum(0).cpu()


def _chunks(gradients: Sequence[Gradients]) -> Iterator[Tensor]:
    """The gradients side by side, [tasks, numbers], some parameters at a time; zeros where a task does not reach."""
    waiting: list[list[Tensor]] = [[] for _ in gradients]
    numbers = 0
    for places in zip(*gradients, strict=True):
        known = next((part for part in places if part is not None), None)
        if known is None:
            continue
        for row, part in zip(waiting, places, strict=True):
            row.append((torch.zeros_like(known) if part is None else part).reshape(-1))
        numbers += known.numel()
        if numbers >= _CHUNK:
            yield torch.stack([torch.cat(row) for row in waiting])
            waiting, numbers = [[] for _ in gradients], 0
    if numbers:
        yield torch.stack([torch.cat(row) for row in waiting])


def _gramian_by_pairs(gradients: Sequence[Gradients]) -> Tensor:
    known = gradients.products if isinstance(gradients, TaskGradients) else {}
    # Parameter by parameter, so that a gradient comes from memory once and not once per pair.
    found: list[Tensor] = []
    small: list[Gradients] = [[] for _ in gradients]
    for place, parts in enumerate(zip(*gradients, strict=True)):
        reached = [part for part in parts if part is not None]
        if place in known:
            found.append(known[place])
        elif reached and not any(part.is_sparse or part.numel() >= SMALL for part in reached):
            for own, part in zip(small, parts, strict=True):
                own.append(part)
        elif reached:
            found.append(products_of(parts))
    gramian = torch.zeros(len(gradients), len(gradients), dtype=torch.float64)
    if found:
        rows, columns = torch.tril_indices(len(gradients), len(gradients))
        gramian[rows, columns] = gramian[columns, rows] = torch.stack(found).double().sum(0).cpu()
    return gramian + _gramian_by_chunks(small) if small[0] else gramian


def products_of(parts: Sequence[Tensor | None]) -> Tensor:
    """gᵢ·gⱼ of one parameter for all tasks i and j ≤ i, [pairs]; 0 where a task does not reach it."""
    pairs = [(one, other) for place, one in enumerate(parts) for other in parts[: place + 1]]
    known = next(part for part in parts if part is not None)
    zero = torch.zeros((), dtype=known.dtype, device=known.device)
    return torch.stack([zero if one is None or other is None else _dot(one, other) for one, other in pairs])


def combine_gradients(gradients: Sequence[Gradients], weights: Tensor, parameters: Sequence[nn.Parameter]) -> None:
    """Σ wᵢ gᵢ into each parameter's ``.grad``, written over the first gradient that reaches it.

    Uses the gradients up: afterwards the lists hold nothing.
    """
    factors = weights.tolist()
    if _on_gpu(gradients) and all(part is not None for taken in gradients for part in taken):
        first, *others = [[part for part in taken if part is not None] for taken in gradients]
        torch._foreach_mul_(first, factors[0])
        for factor, other in zip(factors[1:], others, strict=True):
            torch._foreach_add_(first, other, alpha=factor)
        for parameter, total in zip(parameters, first, strict=True):
            parameter.grad = total
        for taken in gradients:
            taken[:] = [None] * len(taken)
        return
    for place, parameter in enumerate(parameters):
        parts = [(w, taken[place]) for w, taken in zip(factors, gradients, strict=True)]
        for taken in gradients:
            taken[place] = None
        parameter.grad = _weighted_sum([(w, part) for w, part in parts if part is not None])


def densify_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Turn sparse gradients (of embeddings) into dense ones, which is what optimizers and clipping expect."""
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            found = parameter.grad
            # A GPU adds rows that come twice in any order, unless they are sorted first.
            parameter.grad = (found if found.device.type == "cpu" else found.coalesce()).to_dense()


def _compact(gradient: Tensor) -> Tensor:
    if gradient.is_sparse:
        return gradient.coalesce() if gradient.sparse_dim() == 1 else gradient.to_dense()
    if gradient.device.type != "cpu":  # counting rows would make the host wait
        return gradient
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
        total = first if factor == 1 else first.mul_(factor)
    for factor, part in parts:
        if part.is_sparse:
            total.index_add_(0, part.indices()[0], part.values(), alpha=factor)
        else:
            total.add_(part, alpha=factor)
    return total
