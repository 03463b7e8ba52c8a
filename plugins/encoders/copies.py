"""Layers that accept per-task copies of their parameters, so that one backward pass gives per-task gradients.

A parameter of shape […] may be replaced by a stack [T, …] of equal copies. The output is the same, computed for all
tasks at once, and in the backward pass each copy gets the gradient of its own task's rows. ``parts`` are the numbers
of rows of each task.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

Parts = tuple[int, ...]

#: Weights with fewer elements are multiplied by torch's own kernel: the call of another costs more than it gains.
MIN_ONEDNN_SIZE = 2**17


def linear(x: Tensor, weight: Tensor, bias: Tensor, parts: Parts) -> Tensor:
    """x Wᵀ + b."""
    if weight.dim() == 2 and not by_onednn(x, weight):
        return functional.linear(x, weight, bias)
    return _Linear.apply(x.to(weight.dtype), weight, bias, parts)  # type: ignore[no-untyped-call,no-any-return]


def by_onednn(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN should multiply: on a CPU in float32 it is about a tenth faster than torch's own kernel."""
    return weight.shape[-1] * weight.shape[-2] >= MIN_ONEDNN_SIZE and has_onednn(x, weight)


def has_onednn(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN can multiply: torch was built with it, on a CPU, in float32 and outside of a compiled graph."""
    if x.device.type != "cpu" or not x.dtype == weight.dtype == torch.float32 or torch.is_autocast_enabled("cpu"):
        return False
    library: Any = torch.backends.mkldnn
    return bool(not torch.compiler.is_compiling() and library.is_available() and library.enabled)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b, outside of autograd."""
    if by_onednn(x, weight):
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")  # type: ignore[no-any-return]
    return functional.linear(x, weight, bias)


def layer_norm(x: Tensor, norm: nn.LayerNorm, parts: Parts) -> Tensor:
    """(x − mean) / deviation · γ + β."""
    if norm.weight.dim() == 1:
        return norm(x)  # type: ignore[no-any-return]
    return _Norm.apply(x, norm.weight, norm.bias, norm.eps, parts)  # type: ignore[no-untyped-call,no-any-return]


def lookup(table: Tensor, ids: Tensor, parts: Parts, *, sparse: bool = False) -> Tensor:
    """Rows of a table; with ``sparse`` its gradient is a sparse tensor of those rows."""
    if table.dim() == 2:
        return functional.embedding(ids, table, sparse=sparse)
    return _Lookup.apply(table, ids, parts, sparse)  # type: ignore[no-untyped-call,no-any-return]


class _Linear(torch.autograd.Function):
    """Weights [out, in], or copies of them [T, out, in]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, parts: Parts) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.parts = parts
        return _product(x, weight[0], bias[0]) if weight.dim() == 3 else _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        shared = weight if weight.dim() == 2 else weight[0]
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        if torch.is_grad_enabled():  # the gradient is itself to be differentiated
            grad_x = grad_output @ shared
        else:
            grad_x = _product(grad_output, shared.t(), None) if needs_x else None
        if weight.dim() == 2 or not needs_weight:
            grad_weight = grad_output.T @ x if needs_weight else None
            return grad_x, grad_weight, grad_output.sum(0) if needs_bias else None, None
        grad_weights = grad_output.new_empty(weight.shape)  # [T, out, in]
        grad_biases = grad_output.new_empty(weight.shape[:2])  # [T, out]
        by_task = zip(
            torch.split(grad_output, ctx.parts), torch.split(x, ctx.parts), grad_weights, grad_biases, strict=True
        )
        for task_grad, task_x, grad_weight, grad_bias in by_task:
            torch.mm(task_grad.T, task_x, out=grad_weight)
            torch.sum(task_grad, 0, out=grad_bias)
        return grad_x, grad_weights, grad_biases, None


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, parts: Parts) -> Tensor:
        out, mean, scale = torch.native_layer_norm(x, [x.shape[1]], weight[0], bias[0], eps)
        ctx.save_for_backward(x, mean, scale, weight, bias)
        ctx.parts = parts
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        x, mean, scale, weight, bias = ctx.saved_tensors
        grad_x, grad_weights, grad_biases = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias)
        by_task = (torch.split(tensor, ctx.parts) for tensor in (grad_output, x, mean, scale, grad_x))
        for grad, rows, means, scales, dx, dw, db in zip(*by_task, grad_weights, grad_biases, strict=True):
            torch.ops.aten.native_layer_norm_backward.out(
                grad, rows, [x.shape[1]], means, scales, weight[0], bias[0], [True] * 3,
                out0=dx, out1=dw, out2=db,
            )  # fmt: skip
        return grad_x, grad_weights, grad_biases, None, None


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, ids: Tensor, parts: Parts, sparse: bool) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.shape, ctx.parts, ctx.sparse = table.shape, parts, sparse
        return functional.embedding(ids, table[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        (ids,) = ctx.saved_tensors
        if ctx.sparse:
            tasks = torch.repeat_interleave(
                torch.arange(len(ctx.parts), device=ids.device),
                torch.tensor(ctx.parts, device=ids.device),
                output_size=len(ids),
            )
            indices = torch.stack([tasks, ids])
            return torch.sparse_coo_tensor(indices, grad_output, ctx.shape, check_invariants=False), None, None, None
        by_task = zip(torch.split(grad_output, ctx.parts), torch.split(ids, ctx.parts), strict=True)
        tables = [
            torch.ops.aten.embedding_dense_backward(task_grad, task_ids, ctx.shape[1], -1, False)
            for task_grad, task_ids in by_task
        ]
        return torch.stack(tables), None, None, None
