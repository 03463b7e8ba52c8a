"""Self-attention over packed rows: padded group by group, because padding is all that attention wastes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from taskloom.core import Dropout, Tokens

#: Scores (sequences × heads × L²) that a further group has to save to pay for its kernel calls; measured.
WORTH = 2**15


@dataclass(frozen=True, eq=False)
class Group:
    """Sequences of similar length that share one padded block."""

    tokens: Tokens

    @cached_property
    def bias(self) -> Tensor | None:
        """0 for a token, −∞ for padding, [S, 1, 1, L]; None where nothing is padded."""
        if self.tokens.even:
            return None
        absent = ~self.tokens.mask[:, None, None]
        return torch.zeros(absent.shape, device=absent.device).masked_fill_(absent, -math.inf)


@dataclass(frozen=True, eq=False)
class Layout:
    """The order in which attention takes a batch: sequences sorted by length, cut into groups.

    ``rows`` takes the batch's N rows there and ``back`` brings them home, ``home`` does so for one row per sequence;
    all three are None where the batch is one group and stays as it is. ``firsts`` are the rows of first tokens.
    """

    groups: tuple[Group, ...]
    firsts: Tensor  # [S]
    rows: Tensor | None = None  # [N]
    back: Tensor | None = None  # [N]
    home: Tensor | None = None  # [S]

    @classmethod
    def of(cls, tokens: Tokens, heads: int) -> "Layout":
        sizes = group_sizes(sorted(tokens.lengths.tolist(), reverse=True), heads)
        if len(sizes) == 1:
            return cls((Group(tokens),), tokens.starts)
        order = torch.argsort(tokens.lengths, descending=True, stable=True)  # [S]
        ordered = Tokens(tokens.ids, tokens.lengths[order], tokens.types)
        rows = tokens.starts[order][ordered.owners] + ordered.positions
        groups = []
        for lengths in torch.split(ordered.lengths, sizes):
            ids = tokens.ids[: int(lengths.sum())]  # only their number counts here
            groups.append(Group(Tokens(ids, lengths, ids)))
        return cls(tuple(groups), ordered.starts, rows, torch.argsort(rows), torch.argsort(order))

    @cached_property
    def tokens(self) -> list[int]:
        """Tokens of each group."""
        return [group.tokens.ids.shape[0] for group in self.groups]

    @cached_property
    def sequences(self) -> list[int]:
        """Sequences of each group."""
        return [len(group.tokens) for group in self.groups]


def group_sizes(lengths: Sequence[int], heads: int) -> list[int]:
    """How many of the sequences, longest first, go into each group.

    A group is cut where that saves the most padded scores, as long as it saves enough of them.

    >>> group_sizes([100, 90, 10, 10, 9], heads=12), group_sizes([12, 11, 10], heads=12)
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
    return group_sizes(lengths[:cut], heads) + group_sizes(lengths[cut:], heads)


def take(rows: Tensor, order: Tensor | None) -> Tensor:
    """Rows in another order; None leaves them as they are."""
    return rows if order is None else rows.index_select(0, order)


def attend(qkv: Tensor, layout: Layout, heads: int, dropout: Dropout) -> Tensor:
    """Multi-head attention: queries, keys and values [N, 3d] in the layout's order → [N, d].

    softmax(q kᵀ / √(d/heads)) v for each sequence by itself, with dropout on the softmax.
    """
    outs = []
    for part, group in zip(torch.split(qkv, layout.tokens), layout.groups, strict=True):
        q, k, v = _heads(part, group, 3, heads)
        outs.append(group.tokens.unpad(_mix(q, k, v, group, dropout)))
    return torch.cat(outs) if len(outs) > 1 else outs[0]


def attend_first(q: Tensor, kv: Tensor, layout: Layout, heads: int, dropout: Dropout) -> Tensor:
    """The same for the first token of each sequence alone: queries [S, d], keys and values [N, 2d] → [S, d]."""
    outs = []
    queries, parts = torch.split(q, layout.sequences), torch.split(kv, layout.tokens)
    for query, part, group in zip(queries, parts, layout.groups, strict=True):
        k, v = _heads(part, group, 2, heads)
        outs.append(_mix(query.view(len(query), heads, 1, -1), k, v, group, dropout)[:, 0])
    return torch.cat(outs) if len(outs) > 1 else outs[0]


def _heads(rows: Tensor, group: Group, parts: int, heads: int) -> Tensor:
    """Packed rows [N, parts·d] → padded and split into heads, [parts, S, h, L, d/h]."""
    padded = torch.unflatten(group.tokens.pad(rows), 2, (parts, heads, -1))  # [S, L, parts, h, d/h]
    return padded.permute(2, 0, 3, 1, 4).contiguous()


def _mix(q: Tensor, k: Tensor, v: Tensor, group: Group, dropout: Dropout) -> Tensor:
    """Attention of queries [S, h, Q, d/h] over keys and values [S, h, L, d/h] → [S, Q, d]."""
    bias = None if group.bias is None else group.bias.to(q.dtype)
    if dropout.active:
        mixed = _mix_dropping(q, k, v, bias, dropout)
    else:
        mixed = scaled_dot_product_attention(q, k, v, attn_mask=bias)
    return mixed.transpose(1, 2).flatten(2)


def _mix_dropping(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: Dropout) -> Tensor:
    """Written out, because the fused kernel's dropout draws from torch's global generator (and is slower on CPUs)."""
    sequences, heads, _, size = q.shape
    if bias is None:
        bias = q.new_zeros(1, 1, 1, 1)
    bias = bias.expand(sequences, heads, 1, -1).flatten(0, 1)  # [S·h, 1, L]
    q, k, v = (part.flatten(0, 1) for part in (q, k, v))
    scores = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=1 / math.sqrt(size))  # [S·h, Q, L]
    mixed = dropout(scores.softmax(-1)) @ v
    return torch.unflatten(mixed, 0, (sequences, heads))
