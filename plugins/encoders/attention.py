"""Self-attention over packed rows: by one fused kernel on a GPU, in padded blocks of similar lengths on a CPU."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention

from taskloom.core import Dropout, Tokens, place_arrays

#: Scores (sequences × heads × L²) that one more block must save to pay for its kernel calls; measured.
MIN_SAVED_SCORES = 2**15
#: The fused kernel needs a head size that is a multiple of this; with others, sequences are padded.
HEAD_ALIGNMENT = 8


@dataclass(frozen=True, eq=False)
class Block:
    """Sequences of similar length, padded to the longest."""

    sequences: int
    longest: int
    bias: Tensor | None  # [S, 1, 1, L] 0 for a token, −∞ for padding; None where nothing is padded


class PaddedBlocks:
    """The blocks in which attention pads a batch: sequences sorted by length, longest first, and cut into blocks.

    ``order`` sorts rows of one per sequence, and ``inverse`` restores them. Every head of a token is copied by itself,
    straight from the packed projections into the padded blocks and back: ``pad_rows`` and ``unpad_rows`` are the
    indices for a projection of 2 parts (keys and values) or 3, and ``output_rows`` those of attention's output.
    """

    def __init__(self, tokens: Tokens, heads: int) -> None:
        lengths = tokens.lengths.numpy()
        order = np.argsort(-lengths, kind="stable")  # [S]
        sizes = block_sizes(lengths[order].tolist(), heads)
        self.heads = heads
        self._token_rows: list[NDArray[np.int64]] = []  # [S, L] of each block: packed rows of its tokens
        self._masks: list[NDArray[np.bool_]] = []
        starts, biases = np.cumsum(lengths) - lengths, []
        for sequences in np.split(order, np.cumsum(sizes)[:-1]):
            counts, steps = lengths[sequences], np.arange(lengths[sequences[0]])
            # Padding repeats the last token: its scores are masked, its output is dropped.
            self._token_rows.append(starts[sequences][:, None] + np.minimum(steps, counts[:, None] - 1))
            self._masks.append(steps < counts[:, None])
            biases.append(np.where(self._masks[-1], np.float32(0), np.float32(-math.inf))[:, None, None])
        self._device, self._count = tokens.ids.device, int(lengths.sum())
        self.order, self.inverse, *device_biases = place_arrays([order, np.argsort(order), *biases], self._device)
        self.blocks = tuple(
            Block(len(mask), mask.shape[1], None if mask.all() else bias)
            for mask, bias in zip(self._masks, device_biases, strict=True)
        )
        self.pad_rows = {parts: self._pad_rows(parts) for parts in (2, 3)}
        self.unpad_rows = {parts: self._unpad_rows(parts) for parts in (2, 3)}
        self.output_rows = self._unpad_rows(1)  # [N·h]

    @property
    def padded_heads(self) -> list[int]:
        """The number of heads of each block, padding included."""
        return [block.sequences * self.heads * block.longest for block in self.blocks]

    def _pad_rows(self, parts: int) -> list[Tensor]:
        """For each padded head of each block, its row among the N·parts·h packed ones."""
        part, head = np.arange(parts)[:, None, None, None], np.arange(self.heads)[:, None]
        packed = [((rows[:, None] * parts + part) * self.heads + head).reshape(-1) for rows in self._token_rows]
        return place_arrays(packed, self._device)

    def _unpad_rows(self, parts: int) -> Tensor:
        """For each of the N·parts·h packed heads, its row among the padded ones of all blocks."""
        padded, base = np.empty((self._count, parts, self.heads), np.int64), 0
        for rows, mask in zip(self._token_rows, self._masks, strict=True):
            shape = (parts, len(mask), self.heads, mask.shape[1])
            block_rows = base + np.arange(math.prod(shape)).reshape(shape)  # [parts, S, h, L]
            padded[rows[mask]] = block_rows.transpose(1, 3, 0, 2)[mask]
            base += math.prod(shape)
        return place_arrays([padded.reshape(-1)], self._device)[0]


def block_sizes(lengths: Sequence[int], heads: int) -> list[int]:
    """The number of sequences in each block, for lengths in descending order.

    A block is cut where that saves the most padded scores, if it saves enough of them.

    >>> block_sizes([100, 90, 10, 10, 9], heads=12), block_sizes([12, 11, 10], heads=12)
    ([2, 3], [3])
    """
    count = len(lengths)
    cut, saved = 0, 0
    for index in range(1, count):
        gain = (count - index) * (lengths[0] ** 2 - lengths[index] ** 2)
        if gain > saved:
            cut, saved = index, gain
    if saved * heads <= MIN_SAVED_SCORES:
        return [count]
    return block_sizes(lengths[:cut], heads) + block_sizes(lengths[cut:], heads)


def padded_blocks(tokens: Tokens, heads: int, like: Tensor) -> PaddedBlocks | None:
    """The blocks of a batch, computed once and kept with it; None where the fused kernel reads packed rows."""
    if like.shape[-1] % HEAD_ALIGNMENT == 0 and _is_fused(like.device, like.dtype):
        return None
    if heads not in tokens.layouts:
        tokens.layouts[heads] = PaddedBlocks(tokens, heads)
    return cast(PaddedBlocks, tokens.layouts[heads])


def _is_fused(device: torch.device, dtype: torch.dtype) -> bool:
    # Apple's and Intel's GPUs have no such kernel, and ROCm's does not support packed rows everywhere.
    if device.type in ("cpu", "mps", "xpu") or torch.version.hip is not None:
        return False
    # Cards before Ampere have no kernel for bfloat16.
    return device.type != "cuda" or dtype != torch.bfloat16 or torch.cuda.get_device_capability(device) >= (8, 0)


@dataclass(frozen=True, eq=False)
class SortedByLength:
    """A batch sorted by length, for scoring on a CPU: sequences of the same length are adjacent.

    Attention reads such a run in place, without copies and without padding.
    """

    tokens: Tokens
    rows: Tensor  # [N] the row that each token had before
    inverse: Tensor  # [S] the index of each sequence in the sorted batch


def sorted_by_length(tokens: Tokens) -> SortedByLength:
    """The batch in ascending order of length, computed once and kept with it."""
    if SortedByLength not in tokens.layouts:
        lengths = tokens.lengths.numpy()
        order = np.argsort(lengths, kind="stable")
        counts, starts = lengths[order], np.cumsum(lengths) - lengths
        shifts = starts[order] - np.cumsum(counts) + counts  # of each sequence
        rows = torch.from_numpy(np.arange(len(tokens.ids)) + np.repeat(shifts, counts))
        ordered = Tokens(tokens.ids[rows], torch.from_numpy(counts), tokens.types[rows], poolings=tokens.poolings)
        sizes, sequences = np.unique(counts, return_counts=True)
        ordered.layouts[_RUNS] = list(zip(sequences.tolist(), sizes.tolist(), strict=True))
        tokens.layouts[SortedByLength] = SortedByLength(ordered, rows, torch.from_numpy(np.argsort(order)))
    return cast(SortedByLength, tokens.layouts[SortedByLength])


#: The key under which a sorted batch keeps its runs: (number of sequences, their length).
_RUNS = "runs"


def _attend_runs(tokens: Tokens, heads: int, kv: Tensor, q: Tensor) -> Tensor:
    """Attention run by run, without gradients: keys and values [N, 2d], queries [N, d] or [S, d] → as the queries."""
    runs = cast(list[tuple[int, int]], tokens.layouts[_RUNS])
    run_kv = torch.split(kv, [count * length for count, length in runs])
    run_q = torch.split(q, [count * (length if len(q) == len(kv) else 1) for count, length in runs])
    mixed = []
    for (count, _), queries, keys_values in zip(runs, run_q, run_kv, strict=True):
        size = queries.shape[1] // heads
        k, v = keys_values.view(count, -1, 2, heads, size).permute(2, 0, 3, 1, 4)  # [S, h, L, d/h]
        head_queries = queries.view(count, -1, heads, size).transpose(1, 2)  # [S, h, L or 1, d/h]
        mixed.append(scaled_dot_product_attention(head_queries, k, v).transpose(1, 2).reshape(len(queries), -1))
    return torch.cat(mixed)


def attend(projected: Tensor, tokens: Tokens, heads: int, dropout: Dropout, first: Tensor | None = None) -> Tensor:
    """Multi-head attention: queries, keys and values [N, 3d] → [N, d].

    softmax(q kᵀ / √(d/heads)) v within each sequence, with dropout on the softmax. With ``first``, the queries [S, d]
    of the first token of each sequence, ``projected`` has keys and values only: [N, 2d] → [S, d].
    """
    if _RUNS in tokens.layouts:
        if first is not None:
            return _attend_runs(tokens, heads, projected, first)
        width = projected.shape[1] // 3
        return _attend_runs(tokens, heads, projected[:, width:], projected[:, :width])
    parts = 3 if first is None else 2
    heads_of_parts = torch.unflatten(projected, 1, (parts, heads, -1)).unbind(1)  # [N, h, d/h] each
    layout = padded_blocks(tokens, heads, heads_of_parts[0])
    if layout is None:
        if first is None:
            q, query_offsets, longest_query = heads_of_parts[0], tokens.offsets, tokens.longest
        else:
            q, longest_query = torch.unflatten(first, 1, (heads, -1)), 1
            query_offsets = torch.arange(len(first) + 1, dtype=torch.int32, device=first.device)
        k, v = heads_of_parts[-2:]
        offsets, longest = (query_offsets, tokens.offsets), (longest_query, tokens.longest)
        fused: Tensor = _Fused.apply(  # type: ignore[no-untyped-call]
            q, k, v, offsets, longest, dropout.p if dropout.active else 0.0
        )
        return fused.flatten(1)
    padded = _Pad.apply(projected, layout, parts)  # type: ignore[no-untyped-call]
    if first is None:
        mixed = [_mix(q, k, v, block, dropout) for (q, k, v), block in zip(padded, layout.blocks, strict=True)]
        out: Tensor = _Unpad.apply(layout, *mixed)  # type: ignore[no-untyped-call]
        return out
    block_queries = torch.split(first.index_select(0, layout.order), [block.sequences for block in layout.blocks])
    mixed = [
        _mix(query.view(len(query), heads, 1, -1), k, v, block, dropout).flatten(1)
        for query, (k, v), block in zip(block_queries, padded, layout.blocks, strict=True)
    ]
    return torch.cat(mixed).index_select(0, layout.inverse)


class _Fused(torch.autograd.Function):
    """Attention of packed rows in one kernel per pass: queries [Q, h, d/h], keys and values [N, h, d/h] → [Q, h, d/h].

    Its dropout draws from the device's default generator, which a run seeds. Calls the kernel directly because the
    backward pass of torch's public interface (jagged tensors) is nondeterministic: a single split of the keys fixes
    the order of its sums.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        offsets: tuple[Tensor, Tensor],
        longest: tuple[int, int],
        p: float,
    ) -> Tensor:
        rows = (q[None], k[None], v[None])
        out, logsumexp, seed, philox_offset, _, _ = torch.ops.aten._efficient_attention_forward(
            *rows, None, *offsets, *longest, p, 0, any(ctx.needs_input_grad)
        )
        ctx.save_for_backward(*rows, out, *offsets, logsumexp, seed, philox_offset)
        ctx.longest, ctx.p = longest, p
        return out[0]  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        q, k, v, out, query_offsets, offsets, logsumexp, seed, philox_offset = ctx.saved_tensors
        dq, dk, dv, _ = torch.ops.aten._efficient_attention_backward(
            grad_output[None].contiguous(), q, k, v, None, out, query_offsets, offsets, *ctx.longest, logsumexp, ctx.p,
            seed, philox_offset, 0, False, num_splits_key=1,
        )  # fmt: skip
        return dq[0], dk[0], dv[0], None, None, None


class _Pad(torch.autograd.Function):
    """Packed rows [N, parts·d] → padded blocks, split into parts and heads, [parts, S, h, L, d/h] each."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, layout: PaddedBlocks, parts: int) -> tuple[Tensor, ...]:
        ctx.layout, ctx.parts = layout, parts
        heads = rows.reshape(-1, rows.shape[1] // (parts * layout.heads))  # [N·parts·h, d/h]
        return tuple(
            heads.index_select(0, index).view(parts, block.sequences, layout.heads, block.longest, -1)
            for index, block in zip(layout.pad_rows[parts], layout.blocks, strict=True)
        )

    @staticmethod
    def backward(ctx: Any, *grad_blocks: Tensor) -> Any:
        flat = [grad.reshape(-1, grad.shape[-1]) for grad in grad_blocks]
        heads = (torch.cat(flat) if len(flat) > 1 else flat[0]).index_select(0, ctx.layout.unpad_rows[ctx.parts])
        return heads.view(-1, ctx.parts * ctx.layout.heads * heads.shape[1]), None, None


class _Unpad(torch.autograd.Function):
    """The output of each block, [S, h, L, d/h] → packed rows, [N, d]."""

    @staticmethod
    def forward(ctx: Any, layout: PaddedBlocks, *mixed: Tensor) -> Tensor:
        ctx.layout = layout
        flat = [output.reshape(-1, output.shape[-1]) for output in mixed]
        heads = (torch.cat(flat) if len(flat) > 1 else flat[0]).index_select(0, layout.output_rows)
        return heads.view(-1, layout.heads * heads.shape[1])

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        layout = ctx.layout
        heads = grad_output.reshape(layout.output_rows.shape[0], -1)
        flat = heads.new_zeros(sum(layout.padded_heads), heads.shape[1]).index_copy(0, layout.output_rows, heads)
        grads = zip(torch.split(flat, layout.padded_heads), layout.blocks, strict=True)
        return None, *(grad.view(block.sequences, layout.heads, block.longest, -1) for grad, block in grads)


def _mix(q: Tensor, k: Tensor, v: Tensor, block: Block, dropout: Dropout) -> Tensor:
    """Attention of queries [S, h, Q, d/h] over keys and values [S, h, L, d/h] → [S, h, Q, d/h]."""
    bias = None if block.bias is None else block.bias.to(q.dtype)
    if not dropout.active and (q.device.type == "cpu" or not torch.is_grad_enabled()):
        return scaled_dot_product_attention(q, k, v, attn_mask=bias)
    # Not the fused kernel: its dropout draws from torch's global generator (and is slower on CPUs), and its backward
    # pass on a GPU is nondeterministic.
    sequences, heads, _, size = q.shape
    bias = q.new_zeros(1, 1, 1, 1) if bias is None else bias
    bias = bias.expand(sequences, heads, 1, -1).flatten(0, 1)  # [S·h, 1, L]
    q, k, v = (tensor.flatten(0, 1) for tensor in (q, k, v))
    scores = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=1 / math.sqrt(size))  # [S·h, Q, L]
    return torch.unflatten(dropout(scores.softmax(-1)) @ v, 0, (sequences, heads))
