"""Arithmetic on per-task gradients, which are freed as they are used up.

On a CPU nothing is flattened or copied, and of an embedding table only the rows that a batch used are kept. On a GPU,
where every kernel launch has a cost, one call handles many parameters.
"""

from collections.abc import Iterator, Sequence
from math import isfinite

import torch
from torch import Tensor, nn

from taskloom.core.errors import NotFiniteError

Gradients = list[Tensor | None]  # one per shared parameter; None where the task does not reach it


class TaskGradients(list[Gradients]):
    """The gradients of several tasks, and the inner products that are known already, by the index of their parameter.

    On a CPU a gradient is cheapest to multiply as soon as it is computed, while it is in the cache.
    """

    def __init__(self, gradients: Sequence[Gradients], products: dict[int, Tensor]) -> None:
        super().__init__(gradients)
        self.products = products  # [pairs] each, in the order of ``products_of``


#: A matrix with this many times more rows than columns is treated as an embedding table.
_TABLE = 8
#: Numbers per task that are concatenated for one matrix product.
_CHUNK = 2**23
#: Dense gradients of fewer numbers are concatenated on a CPU too: a call for each would cost more than its arithmetic.
SMALL = 2**14


def take_gradients(parameters: Sequence[nn.Parameter]) -> Gradients:
    """Move the gradients out of the parameters: no copy, and the next backward starts from nothing.

    On a CPU the gradient of an embedding table, of which a batch touches few rows, is kept as those rows (a sparse
    tensor): half of a small BERT's gradient is zeros that need neither memory nor arithmetic.
    """
    gradients: Gradients = []
    for parameter in parameters:
        gradient, parameter.grad = parameter.grad, None
        gradients.append(None if gradient is None else _compact(gradient))
    return gradients


def gramian_of(gradients: Sequence[Gradients], tasks: Sequence[str]) -> Tensor:
    """G[i, j] = gᵢ·gⱼ over all parameters, [T, T] in float64.

    A task whose gradient is not finite is an error that names it.
    """
    gramian = _gramian_by_chunks(gradients) if _on_gpu(gradients) else _gramian_by_pairs(gradients)
    norms = gramian.diagonal().tolist()
    bad = [repr(task) for task, norm in zip(tasks, norms, strict=True) if not isfinite(norm)]
    if bad:
        raise NotFiniteError(f"the gradient of task {', '.join(bad)} is not finite")
    return gramian


def _on_gpu(gradients: Sequence[Gradients]) -> bool:
    """Whether all gradients are dense and on a GPU."""
    tensors = [tensor for row in gradients for tensor in row if tensor is not None]
    return bool(tensors) and not any(tensor.device.type == "cpu" or tensor.is_sparse for tensor in tensors)


def _gramian_by_chunks(gradients: Sequence[Gradients]) -> Tensor:
    """One product for many parameters; the host waits once, and adds them up: not every GPU has float64."""
    products = [rows @ rows.T for rows in _chunks(gradients)]
    return torch.stack(products).cpu().double().sum(0)


def _chunks(gradients: Sequence[Gradients]) -> Iterator[Tensor]:
    """Concatenated gradients, [tasks, numbers], a few parameters at a time; zeros where a task does not reach one."""
    rows: list[list[Tensor]] = [[] for _ in gradients]
    numbers = 0
    for per_task in zip(*gradients, strict=True):  # the gradients of one parameter
        reached = next((gradient for gradient in per_task if gradient is not None), None)
        if reached is None:
            continue
        for row, gradient in zip(rows, per_task, strict=True):
            row.append((torch.zeros_like(reached) if gradient is None else gradient).reshape(-1))
        numbers += reached.numel()
        if numbers >= _CHUNK:
            yield torch.stack([torch.cat(row) for row in rows])
            rows, numbers = [[] for _ in gradients], 0
    if numbers:
        yield torch.stack([torch.cat(row) for row in rows])


def _gramian_by_pairs(gradients: Sequence[Gradients]) -> Tensor:
    known = gradients.products if isinstance(gradients, TaskGradients) else {}
    # Parameter by parameter, so that a gradient is read from memory once and not once per pair.
    products: list[Tensor] = []  # [pairs] each
    small: list[Gradients] = [[] for _ in gradients]
    for index, per_task in enumerate(zip(*gradients, strict=True)):
        reached = [gradient for gradient in per_task if gradient is not None]
        if index in known:
            products.append(known[index])
        elif reached and not any(gradient.is_sparse or gradient.numel() >= SMALL for gradient in reached):
            for row, gradient in zip(small, per_task, strict=True):
                row.append(gradient)
        elif reached:
            products.append(products_of(per_task))
    gramian = torch.zeros(len(gradients), len(gradients), dtype=torch.float64)
    if products:
        rows, columns = torch.tril_indices(len(gradients), len(gradients))
        gramian[rows, columns] = gramian[columns, rows] = torch.stack(products).cpu().double().sum(0)
    return gramian + _gramian_by_chunks(small) if small[0] else gramian


def products_of(gradients: Sequence[Tensor | None]) -> Tensor:
    """gᵢ·gⱼ of one parameter for all tasks i and j ≤ i, [pairs]; 0 where a task does not reach it."""
    pairs = [(left, right) for task, left in enumerate(gradients) for right in gradients[: task + 1]]
    reached = next(gradient for gradient in gradients if gradient is not None)
    zero = torch.zeros((), dtype=reached.dtype, device=reached.device)
    return torch.stack([zero if left is None or right is None else _dot(left, right) for left, right in pairs])


def combine_gradients(gradients: Sequence[Gradients], weights: Tensor, parameters: Sequence[nn.Parameter]) -> None:
    """Set each parameter's ``.grad`` to Σ wᵢ gᵢ, in the memory of the first gradient that reaches it.

    Uses the gradients up: afterwards the lists hold nothing.
    """
    factors = weights.tolist()
    if _on_gpu(gradients) and all(tensor is not None for row in gradients for tensor in row):
        first, *others = [[tensor for tensor in row if tensor is not None] for row in gradients]
        torch._foreach_mul_(first, factors[0])
        for factor, other in zip(factors[1:], others, strict=True):
            torch._foreach_add_(first, other, alpha=factor)
        for parameter, total in zip(parameters, first, strict=True):
            parameter.grad = total
        for row in gradients:
            row[:] = [None] * len(row)
        return
    for index, parameter in enumerate(parameters):
        terms = [(factor, row[index]) for factor, row in zip(factors, gradients, strict=True)]
        for row in gradients:
            row[index] = None
        parameter.grad = _weighted_sum([(factor, gradient) for factor, gradient in terms if gradient is not None])


def densify_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Turn sparse gradients (of embeddings) into dense ones, as optimizers and clipping expect them."""
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None and gradient.is_sparse:
            # A GPU adds repeated rows in any order, unless they are sorted first.
            parameter.grad = (gradient if gradient.device.type == "cpu" else gradient.coalesce()).to_dense()


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


def _dot(left: Tensor, right: Tensor) -> Tensor:
    """The inner product of two gradients of one parameter; either may be sparse rows."""
    if not left.is_sparse and not right.is_sparse:
        return torch.dot(left.reshape(-1), right.reshape(-1))
    if not left.is_sparse:
        left, right = right, left
    rows, left_values = left.indices()[0], left.values()  # [k], [k, d]
    if right.is_sparse:
        # Both lists of rows are sorted and without repeats, so their common rows come in the same order.
        right_values = right.values()[torch.isin(right.indices()[0], rows)]
        left_values = left_values[torch.isin(rows, right.indices()[0])]
    else:
        right_values = right.index_select(0, rows)
    return torch.dot(left_values.reshape(-1), right_values.reshape(-1))


def _weighted_sum(terms: list[tuple[float, Tensor]]) -> Tensor | None:
    """Σ w·g, dense, in the memory of the first dense gradient."""
    if not terms:
        return None
    dense = next((index for index, (_, gradient) in enumerate(terms) if not gradient.is_sparse), None)
    if dense is None:
        total = torch.zeros(terms[0][1].shape, dtype=terms[0][1].dtype, device=terms[0][1].device)
    else:
        factor, first = terms.pop(dense)
        total = first if factor == 1 else first.mul_(factor)
    for factor, gradient in terms:
        if gradient.is_sparse:
            total.index_add_(0, gradient.indices()[0], gradient.values(), alpha=factor)
        else:
            total.add_(gradient, alpha=factor)
    return total
