"""Layers whose parameters may be copies, one for each task that is packed into the batch.

A parameter of shape […] may be replaced by a stack [T, …] of equal copies. The result is the same, computed for all
tasks at once, and on the way back each copy gets the gradient of its own task's rows: the gradients of the tasks apart,
for one forward pass and one way back. ``parts`` are the rows of each task.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

Parts = tuple[int, ...]


#: Weights of fewer numbers are multiplied by torch's own kernel: calling another costs more than it gains.
SMALL = 2**17


def linear(x: Tensor, weight: Tensor, bias: Tensor, parts: Parts) -> Tensor:
    """x Wᵀ + b."""
    if weight.dim() == 2 and not by_onednn(x, weight):
        return functional.linear(x, weight, bias)
    return _Linear.apply(x.to(weight.dtype), weight, bias, parts)  # type: ignore[no-untyped-call,no-any-return]


def by_onednn(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN should multiply: on a CPU in float32 it is about a tenth faster than torch's own kernel."""
    if x.device.type != "cpu" or not x.dtype == weight.dtype == torch.float32 or torch.is_autocast_enabled("cpu"):
        return False
    large = weight.shape[-1] * weight.shape[-2] >= SMALL
    return large and not torch.compiler.is_compiling() and has_onednn()


def has_onednn() -> bool:
    """Whether torch was built with oneDNN, and nobody has turned it off."""
    library: Any = torch.backends.mkldnn
    return bool(library.is_available() and library.enabled)


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
    """Rows of a table. ``sparse``: the gradient is those rows, not a table of zeros."""
    if table.dim() == 2:
        return functional.embedding(ids, table, sparse=sparse)
    return _Lookup.apply(table, ids, parts, sparse)  # type: ignore[no-untyped-call,no-any-return]


class _Linear(torch.autograd.Function):
    """Weights [out, in], or copies of them [T, out, in]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, parts: Parts) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.parts = parts
        return _product(x, *(one[0] if weight.dim() == 3 else one for one in (weight, bias)))

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        shared = weight if weight.dim() == 2 else weight[0]
        if torch.is_grad_enabled():  # the gradient is itself to be differentiated
            below = slope @ shared
        else:
            below = _product(slope, shared.t(), None) if ctx.needs_input_grad[0] else None
        _, weighs, shifts, _ = ctx.needs_input_grad
        if weight.dim() == 2 or not weighs:
            return below, slope.T @ x if weighs else None, slope.sum(0) if shifts else None, None
        weights, biases = slope.new_empty(weight.shape), slope.new_empty(weight.shape[:2])  # [T, out, in], [T, out]
        split = zip(torch.split(slope, ctx.parts), torch.split(x, ctx.parts), weights, biases, strict=True)
        for one, rows, out, total in split:
            torch.mm(one.T, rows, out=out)
            torch.sum(one, 0, out=total)
        return below, weights, biases, None


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, parts: Parts) -> Tensor:
        out, mean, scale = torch.native_layer_norm(x, [x.shape[1]], weight[0], bias[0], eps)
        ctx.save_for_backward(x, mean, scale, weight, bias)
        ctx.parts = parts
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> Any:
        x, mean, scale, weight, bias = ctx.saved_tensors
        below, weights, biases = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias)
        columns = (torch.split(one, ctx.parts) for one in (slope, x, mean, scale, below))
        for one, rows, m, s, out, w, b in zip(*columns, weights, biases, strict=True):
            torch.ops.aten.native_layer_norm_backward.out(
                one, rows, [x.shape[1]], m, s, weight[0], bias[0], [True] * 3, out0=out, out1=w, out2=b
            )
        return below, weights, biases, None, None


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, ids: Tensor, parts: Parts, sparse: bool) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.shape, ctx.parts, ctx.sparse = table.shape, parts, sparse
        return functional.embedding(ids, table[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> Any:
        (ids,) = ctx.saved_tensors
        if ctx.sparse:
            owners = torch.repeat_interleave(
                torch.arange(len(ctx.parts), device=ids.device),
                torch.tensor(ctx.parts, device=ids.device),
                output_size=len(ids),
            )
            places = torch.stack([owners, ids])
            return torch.sparse_coo_tensor(places, slope, ctx.shape, check_invariants=False), None, None, None
        split = zip(torch.split(slope, ctx.parts), torch.split(ids, ctx.parts), strict=True)
        tables = [torch.ops.aten.embedding_dense_backward(one, rows, ctx.shape[1], -1, False) for one, rows in split]
        return torch.stack(tables), None, None, None
