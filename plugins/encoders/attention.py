"""Self-attention over packed rows: one fused kernel on a GPU; on a CPU padded blocks, one for each range of lengths."""

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

#: Scores (sequences × heads × L²) that a further block has to save to pay for its kernel calls; measured.
WORTH = 2**15
#: The fused kernel reads vectors of so many numbers; with heads of another size sequences are padded.
ALIGNED = 8


@dataclass(frozen=True, eq=False)
class Block:
    """Sequences of similar length that are padded to one."""

    sequences: int
    longest: int
    bias: Tensor | None  # [S, 1, 1, L] 0 for a token, −∞ for padding; None where nothing is padded


class Layout:
    """How attention takes a batch: sequences sorted by length and cut into blocks, their tokens found by index.

    ``order`` takes one row per sequence there and ``home`` brings it back. Every head of a token is copied by itself,
    straight from the packed projections to where the products want it, and back: ``into`` and ``back`` are the
    indices, for 2 (keys and values) or 3 parts of a projection, and ``out`` those of the results.
    """

    def __init__(self, tokens: Tokens, heads: int) -> None:
        lengths = tokens.lengths.numpy()
        order = np.argsort(-lengths, kind="stable")  # [S]
        sizes = block_sizes(lengths[order].tolist(), heads)
        self.heads = heads
        self._places: list[NDArray[np.int64]] = []  # [S, L] of each block: rows of its tokens
        self._masks: list[NDArray[np.bool_]] = []
        starts, biases = np.cumsum(lengths) - lengths, []
        for chosen in np.split(order, np.cumsum(sizes)[:-1]):
            counts, steps = lengths[chosen], np.arange(lengths[chosen[0]])
            # Padding reads the last token once more: what it gives is masked or dropped.
            self._places.append(starts[chosen][:, None] + np.minimum(steps, counts[:, None] - 1))
            self._masks.append(steps < counts[:, None])
            biases.append(np.where(self._masks[-1], np.float32(0), np.float32(-math.inf))[:, None, None])
        self._device, self._rows = tokens.ids.device, int(lengths.sum())
        self.order, self.home, *placed = place_arrays([order, np.argsort(order), *biases], self._device)
        self.blocks = tuple(
            Block(len(mask), mask.shape[1], None if mask.all() else bias)
            for mask, bias in zip(self._masks, placed, strict=True)
        )
        indices = {parts: self._indices(parts) for parts in (2, 3)}
        self.into = {parts: into for parts, (into, _) in indices.items()}
        self.back = {parts: back for parts, (_, back) in indices.items()}
        self.out = self._back(1)  # [N·h]

    @property
    def slots(self) -> list[int]:
        """Padded heads of each block."""
        return [block.sequences * self.heads * block.longest for block in self.blocks]

    def _indices(self, parts: int) -> tuple[list[Tensor], Tensor]:
        """Of every padded head of each block its row among the N·parts·h packed ones, and of those their padded row."""
        part, head = np.arange(parts)[:, None, None, None], np.arange(self.heads)[:, None]
        into = [((place[:, None] * parts + part) * self.heads + head).reshape(-1) for place in self._places]
        return place_arrays(into, self._device), self._back(parts)

    def _back(self, parts: int) -> Tensor:
        found, base = np.empty((self._rows, parts, self.heads), np.int64), 0
        for place, mask in zip(self._places, self._masks, strict=True):
            shape = (parts, len(mask), self.heads, mask.shape[1])
            slots = base + np.arange(math.prod(shape)).reshape(shape)  # [parts, S, h, L]
            found[place[mask]] = slots.transpose(1, 3, 0, 2)[mask]
            base += math.prod(shape)
        return place_arrays([found.reshape(-1)], self._device)[0]


def block_sizes(lengths: Sequence[int], heads: int) -> list[int]:
    """How many of the sequences, longest first, go into each block.

    A block is cut where that saves the most padded scores, as long as it saves enough of them.

    >>> block_sizes([100, 90, 10, 10, 9], heads=12), block_sizes([12, 11, 10], heads=12)
    ([2, 3], [3])
    """
    count = len(lengths)
    cut, saved = 0, 0
    for place in range(1, count):
        gain = (count - place) * (lengths[0] ** 2 - lengths[place] ** 2)
        if gain > saved:
            cut, saved = place, gain
    if saved * heads <= WORTH:
        return [count]
    return block_sizes(lengths[:cut], heads) + block_sizes(lengths[cut:], heads)


def layout_of(tokens: Tokens, heads: int, like: Tensor) -> Layout | None:
    """The blocks of a batch, worked out once and kept with it; None where one fused kernel takes packed rows."""
    if like.shape[-1] % ALIGNED == 0 and _is_fused(like.device, like.dtype):
        return None
    if heads not in tokens.layouts:
        tokens.layouts[heads] = Layout(tokens, heads)
    found = tokens.layouts[heads]
    assert isinstance(found, Layout)
    return found


def _is_fused(device: torch.device, dtype: torch.dtype) -> bool:
    if device.type == "cpu" or torch.version.hip is not None:  # ROCm's kernel does not take packed rows everywhere
        return False
    # Cards before Ampere have no kernel for bfloat16.
    return device.type != "cuda" or dtype != torch.bfloat16 or torch.cuda.get_device_capability(device) >= (8, 0)


@dataclass(frozen=True, eq=False)
class ByLength:
    """A batch in ascending order of length, for scoring on a CPU: sequences of one length lie side by side.

    Attention takes such a run as it lies there, without copies and without padding.
    """

    tokens: Tokens
    rows: Tensor  # [N] where each token was
    home: Tensor  # [S] where each sequence is now


def by_length(tokens: Tokens) -> ByLength:
    """The batch in order of length, worked out once and kept with it."""
    if ByLength not in tokens.layouts:
        lengths = tokens.lengths.numpy()
        order = np.argsort(lengths, kind="stable")
        counts, starts = lengths[order], np.cumsum(lengths) - lengths
        moves = starts[order] - np.cumsum(counts) + counts  # of each sequence
        rows = torch.from_numpy(np.arange(len(tokens.ids)) + np.repeat(moves, counts))
        there = Tokens(tokens.ids[rows], torch.from_numpy(counts), tokens.types[rows], poolings=tokens.poolings)
        sizes, sequences = np.unique(counts, return_counts=True)
        there.layouts[_RUNS] = list(zip(sequences.tolist(), sizes.tolist(), strict=True))
        tokens.layouts[ByLength] = ByLength(there, rows, torch.from_numpy(np.argsort(order)))
    found = tokens.layouts[ByLength]
    assert isinstance(found, ByLength)
    return found


#: Where a batch in order of length keeps its runs: how many sequences of which length.
_RUNS = "runs"


def _attend_runs(tokens: Tokens, heads: int, kv: Tensor, q: Tensor) -> Tensor:
    """Attention run by run, where nothing is learned: keys and values [N, 2d], queries [N, d] or [S, d] → the same."""
    runs = cast(list[tuple[int, int]], tokens.layouts[_RUNS])
    keys = torch.split(kv, [count * length for count, length in runs])
    queries = torch.split(q, [count * (length if len(q) == len(kv) else 1) for count, length in runs])
    mixed = []
    for (count, _), query, pair in zip(runs, queries, keys, strict=True):
        size = query.shape[1] // heads
        k, v = pair.view(count, -1, 2, heads, size).permute(2, 0, 3, 1, 4)  # [S, h, L, d/h]
        asked = query.view(count, -1, heads, size).transpose(1, 2)  # [S, h, L or 1, d/h]
        mixed.append(scaled_dot_product_attention(asked, k, v).transpose(1, 2).reshape(len(query), -1))
    return torch.cat(mixed)


def attend(qkv: Tensor, tokens: Tokens, heads: int, dropout: Dropout) -> Tensor:
    """Multi-head attention: queries, keys and values [N, 3d] → [N, d].

    softmax(q kᵀ / √(d/heads)) v for each sequence by itself, with dropout on the softmax.
    """
    if _RUNS in tokens.layouts:
        width = qkv.shape[1] // 3
        return _attend_runs(tokens, heads, qkv[:, width:], qkv[:, :width])
    q, k, v = torch.unflatten(qkv, 1, (3, heads, -1)).unbind(1)  # [N, h, d/h]
    layout = layout_of(tokens, heads, q)
    if layout is None:
        return _fused(q, k, v, tokens, dropout, tokens.offsets, tokens.longest).flatten(1)
    padded = _Pad.apply(qkv, layout, 3)  # type: ignore[no-untyped-call]
    mixed = [_mix(q, k, v, block, dropout) for (q, k, v), block in zip(padded, layout.blocks, strict=True)]
    out: Tensor = _Unpad.apply(layout, *mixed)  # type: ignore[no-untyped-call]
    return out


def attend_first(q: Tensor, kv: Tensor, tokens: Tokens, heads: int, dropout: Dropout) -> Tensor:
    """The same for the first token of each sequence alone: queries [S, d], keys and values [N, 2d] → [S, d]."""
    if _RUNS in tokens.layouts:
        return _attend_runs(tokens, heads, kv, q)
    k, v = torch.unflatten(kv, 1, (2, heads, -1)).unbind(1)  # [N, h, d/h]
    layout = layout_of(tokens, heads, k)
    if layout is None:
        each = torch.arange(len(q) + 1, dtype=torch.int32, device=q.device)
        return _fused(torch.unflatten(q, 1, (heads, -1)), k, v, tokens, dropout, each, 1).flatten(1)
    queries = torch.split(q.index_select(0, layout.order), [block.sequences for block in layout.blocks])
    padded = _Pad.apply(kv, layout, 2)  # type: ignore[no-untyped-call]
    mixed = [
        _mix(query.view(len(query), heads, 1, -1), k, v, block, dropout).flatten(1)
        for query, (k, v), block in zip(queries, padded, layout.blocks, strict=True)
    ]
    return torch.cat(mixed).index_select(0, layout.home)


def _fused(
    q: Tensor, k: Tensor, v: Tensor, tokens: Tokens, dropout: Dropout, query_offsets: Tensor, most: int
) -> Tensor:
    share = dropout.p if dropout.active else 0.0
    mixed: Tensor = _Fused.apply(  # type: ignore[no-untyped-call]
        q, k, v, (query_offsets, tokens.offsets), (most, tokens.longest), share
    )
    return mixed


class _Fused(torch.autograd.Function):
    """Attention of packed rows in one kernel each way: queries [Q, h, d/h], keys and values [N, h, d/h] → [Q, h, d/h].

    Its dropout draws from the device's default generator, which a run seeds. Written out because torch's public way
    there (jagged tensors) leaves the order in which the way back adds up to chance: one split of the keys fixes it.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, offsets: tuple[Tensor, Tensor], most: tuple[int, int], share: float
    ) -> Tensor:
        rows = (q[None], k[None], v[None])
        out, logsumexp, seed, place, _, _ = torch.ops.aten._efficient_attention_forward(
            *rows, None, *offsets, *most, share, 0, any(ctx.needs_input_grad)
        )
        ctx.save_for_backward(*rows, out, *offsets, logsumexp, seed, place)
        ctx.most, ctx.share = most, share
        return out[0]  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> Any:
        q, k, v, out, query_offsets, offsets, logsumexp, seed, place = ctx.saved_tensors
        dq, dk, dv, _ = torch.ops.aten._efficient_attention_backward(
            slope[None].contiguous(), q, k, v, None, out, query_offsets, offsets, *ctx.most, logsumexp, ctx.share, seed,
            place, 0, False, num_splits_key=1,
        )  # fmt: skip
        return dq[0], dk[0], dv[0], None, None, None


class _Pad(torch.autograd.Function):
    """Packed rows [N, parts·d] → the parts of each block, split into heads, [parts, S, h, L, d/h]."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, layout: Layout, parts: int) -> tuple[Tensor, ...]:
        ctx.layout, ctx.parts = layout, parts
        heads = rows.reshape(-1, rows.shape[1] // (parts * layout.heads))  # [N·parts·h, d/h]
        return tuple(
            heads.index_select(0, index).view(parts, block.sequences, layout.heads, block.longest, -1)
            for index, block in zip(layout.into[parts], layout.blocks, strict=True)
        )

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        flat = [slope.reshape(-1, slope.shape[-1]) for slope in slopes]
        heads = (torch.cat(flat) if len(flat) > 1 else flat[0]).index_select(0, ctx.layout.back[ctx.parts])
        return heads.view(-1, ctx.parts * ctx.layout.heads * heads.shape[1]), None, None


class _Unpad(torch.autograd.Function):
    """The results of each block, [S, h, L, d/h] → packed rows, [N, d]."""

    @staticmethod
    def forward(ctx: Any, layout: Layout, *mixed: Tensor) -> Tensor:
        ctx.layout = layout
        flat = [part.reshape(-1, part.shape[-1]) for part in mixed]
        heads = (torch.cat(flat) if len(flat) > 1 else flat[0]).index_select(0, layout.out)
        return heads.view(-1, layout.heads * heads.shape[1])

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        layout = ctx.layout
        heads = slope.reshape(layout.out.shape[0], -1)
        flat = heads.new_zeros(sum(layout.slots), heads.shape[1]).index_copy(0, layout.out, heads)
        parts = zip(torch.split(flat, layout.slots), layout.blocks, strict=True)
        return None, *(part.view(block.sequences, layout.heads, block.longest, -1) for part, block in parts)


def _mix(q: Tensor, k: Tensor, v: Tensor, block: Block, dropout: Dropout) -> Tensor:
    """Attention of queries [S, h, Q, d/h] over keys and values [S, h, L, d/h] → [S, h, Q, d/h]."""
    bias = None if block.bias is None else block.bias.to(q.dtype)
    if not dropout.active and (q.device.type == "cpu" or not torch.is_grad_enabled()):
        return scaled_dot_product_attention(q, k, v, attn_mask=bias)
    # Written out, because the fused kernel's dropout draws from torch's global generator (and is slower on CPUs), and
    # its way back on a GPU adds in any order.
    sequences, heads, _, size = q.shape
    bias = q.new_zeros(1, 1, 1, 1) if bias is None else bias
    bias = bias.expand(sequences, heads, 1, -1).flatten(0, 1)  # [S·h, 1, L]
    q, k, v = (part.flatten(0, 1) for part in (q, k, v))
    scores = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=1 / math.sqrt(size))  # [S·h, Q, L]
    return torch.unflatten(dropout(scores.softmax(-1)) @ v, 0, (sequences, heads))
