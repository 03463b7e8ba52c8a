"""Memory-efficient attention of packed sequences, which CUDA has and the CPU has not, one sequence at a time."""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from taskloom.core.testing.device.attention import noise, on_host, scale_of, slopes
from taskloom.core.testing.device.generator import seed_of

_ALIGNED = 32  # queries of the logsumexp come in multiples of it


class _Packed:
    """The sequences of one call on [1, tokens, heads, width]."""

    def __init__(self, queries: tuple[Tensor, Any, Any], keys: tuple[Tensor, Any, Any], **rest: Any) -> None:
        self.query, self.key, self.p = queries[0], keys[0], rest["dropout_p"]
        self.scale = scale_of(self.query, rest["scale"])
        self.queries, self.keys = _slices(*queries), _slices(*keys)
        if rest["bias"] is not None or rest["custom_mask_type"]:
            raise NotImplementedError("the pretend device has no packed attention with a bias or a causal mask")
        if len(self.queries) != len(self.keys):
            raise RuntimeError(f"{len(self.queries)} sequences of queries, {len(self.keys)} of keys")

    def parts(self, seed: int, offset: int) -> Iterator[tuple[slice, slice, Tensor, Tensor | float]]:
        """Rows of a sequence's queries and keys, its scores [heads, queries, keys], and the factors of dropout."""
        draws = torch.Generator().manual_seed(seed_of(seed, offset))
        for rows, columns in zip(self.queries, self.keys, strict=True):
            scores = _heads_first(self.query, rows) @ _heads_first(self.key, columns).transpose(1, 2) * self.scale
            yield rows, columns, scores, noise(scores, self.p, draws)


def _slices(rows: Tensor, bounds: Tensor | None, longest: int | None) -> list[slice]:
    """The rows of each sequence, or what CUDA says to a form that it does not take."""
    if bounds is None or bounds.dtype != torch.int32 or longest is None or rows.dim() != 4 or rows.shape[0] != 1:
        raise RuntimeError("packed attention takes [1, tokens, heads, width], cu_seqlens of int32, and max_seqlen")
    ends: list[int] = bounds.tolist()
    found = [slice(first, last) for first, last in pairwise(ends)]
    most = max(one.stop - one.start for one in found)
    if ends[-1] != rows.shape[1] or longest < most:
        words = f"cu_seqlens should end at {rows.shape[1]}, max_seqlen be at least {most}"
        raise RuntimeError(f"{words}. Found {ends[-1]} and {longest}.")
    return found


def _heads_first(packed: Tensor, rows: slice) -> Tensor:
    """Some rows of [1, tokens, heads, width] as [heads, rows, width], in float32 as the kernel computes."""
    return packed[0, rows].transpose(0, 1).float()


def packed_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    dropout_p: float,
    custom_mask_type: int,
    compute_log_sumexp: bool = False,
    *,
    draw: tuple[int, int],
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, int, int]:
    """``aten::_efficient_attention_forward``; ``draw`` is the seed and the offset of its dropout."""
    rest = {"bias": bias, "custom_mask_type": custom_mask_type, "dropout_p": dropout_p, "scale": scale}
    packed = _Packed((query, cu_seqlens_q, max_seqlen_q), (key, cu_seqlens_k, max_seqlen_k), **rest)
    out = value.new_empty(*query.shape[:-1], value.shape[-1])
    aligned = math.ceil((max_seqlen_q or 0) / _ALIGNED) * _ALIGNED if compute_log_sumexp else 0
    sums = torch.full((len(packed.queries), query.shape[2], aligned), math.inf)
    for place, (rows, columns, scores, factor) in enumerate(packed.parts(*draw)):
        mixed = scores.softmax(-1) * factor @ _heads_first(value, columns)
        out[0, rows] = mixed.transpose(0, 1).to(out.dtype)
        if compute_log_sumexp:
            sums[place, :, : scores.shape[1]] = scores.logsumexp(-1)
    return out, sums, *on_host(draw), max_seqlen_q or 0, max_seqlen_k or 0


def packed_backward(
    grad_out_: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    out: Tensor,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    logsumexp: Tensor,
    dropout_p: float,
    philox_seed: Tensor,
    philox_offset: Tensor,
    custom_mask_type: int,
    bias_requires_grad: bool,
    *,
    scale: float | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor, Tensor, None]:
    """``aten::_efficient_attention_backward``: dropout's mask is made again from the seed and the offset."""
    if not logsumexp.numel():
        raise RuntimeError("the backward of efficient attention needs a forward with compute_log_sumexp=True")
    rest = {"bias": bias, "custom_mask_type": custom_mask_type, "dropout_p": dropout_p, "scale": scale}
    packed = _Packed((query, cu_seqlens_q, max_seqlen_q), (key, cu_seqlens_k, max_seqlen_k), **rest)
    whole = [torch.empty_like(one) for one in (query, key, value)]
    for rows, columns, scores, factor in packed.parts(int(philox_seed), int(philox_offset)):
        upper, q = (_heads_first(one, rows) for one in (grad_out_, query))
        k, v = (_heads_first(one, columns) for one in (key, value))
        found = slopes(upper, q, k, v, scores.softmax(-1), factor)
        for into, part, each in zip(whole, (rows, columns, columns), found, strict=True):
            into[0, part] = (each if into is whole[2] else each * packed.scale).transpose(0, 1).to(into.dtype)
    return whole[0], whole[1], whole[2], None
