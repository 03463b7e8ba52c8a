"""Token sequences without padding, and how texts are laid out for an encoder."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

#: What a head needs of each example: one text, two or three encoded apart, two in one sequence, or that both ways.
Reads = Literal["single", "pair", "triple", "joint", "both_orders"]
#: The token ids of one text, without special tokens.
Ids = NDArray[np.int32]

#: How many sequences one example becomes under each way of reading it.
SEQUENCES: dict[Reads, int] = {"single": 1, "pair": 2, "triple": 3, "joint": 1, "both_orders": 2}
#: How many text columns each way of reading needs.
COLUMNS: dict[Reads, int] = {"single": 1, "pair": 2, "triple": 3, "joint": 2, "both_orders": 2}


@dataclass(frozen=True, eq=False)
class Tokens:
    """A batch of token sequences, packed: one row of N ids for S sequences, and their lengths.

    Every linear layer works on [N, d] and wastes nothing on padding; :meth:`pad` lays the rows out as
    [S, L, …] for the one operation that needs it (attention), :meth:`unpad` takes them back.

    >>> tokens = Tokens.pack([[101, 7, 102], [101, 102]])
    >>> tokens.positions.tolist(), tokens.longest
    ([0, 1, 2, 0, 1], 3)
    >>> tokens.pad(tokens.ids).tolist()
    [[101, 7, 102], [101, 102, 0]]
    """

    ids: Tensor  # [N]
    lengths: Tensor  # [S]
    types: Tensor  # [N] segment of each token: 0, or 1 in the second text of a joined pair

    @classmethod
    def pack(cls, sequences: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None) -> "Tokens":
        """Pack lists of ids (and of segment ids)."""
        flat = [i for sequence in sequences for i in sequence]
        kinds = [0] * len(flat) if types is None else [t for row in types for t in row]
        lengths = [len(sequence) for sequence in sequences]
        return cls(torch.tensor(flat), torch.tensor(lengths), torch.tensor(kinds))

    def __len__(self) -> int:
        return self.lengths.shape[0]

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return int(self.lengths.max())

    @property
    def even(self) -> bool:
        """Whether all sequences have one length, so that nothing needs padding."""
        return len(self) * self.longest == self.ids.shape[0]

    @cached_property
    def starts(self) -> Tensor:
        """Row of each sequence's first token, [S]."""
        return self.lengths.cumsum(0) - self.lengths

    @cached_property
    def owners(self) -> Tensor:
        """Sequence of each token, [N]."""
        return torch.repeat_interleave(
            torch.arange(len(self), device=self.ids.device), self.lengths, output_size=self.ids.shape[0]
        )

    @cached_property
    def positions(self) -> Tensor:
        """Place of each token in its sequence, [N]."""
        return torch.arange(self.ids.shape[0], device=self.ids.device) - self.starts[self.owners]

    @cached_property
    def slots(self) -> Tensor:
        """Row of each token in the padded [S·L] layout, [N]."""
        return self.owners * self.longest + self.positions

    @cached_property
    def mask(self) -> Tensor:
        """True where the padded [S, L] layout holds a token."""
        return torch.arange(self.longest, device=self.ids.device) < self.lengths[:, None]

    def pad(self, rows: Tensor) -> Tensor:
        """[N, …] → [S, L, …], zero where there is no token."""
        if self.even:
            return torch.unflatten(rows, 0, (len(self), self.longest))
        out = rows.new_zeros((len(self) * self.longest, *rows.shape[1:]))
        return out.index_copy(0, self.slots, rows).view(len(self), self.longest, *rows.shape[1:])

    def unpad(self, padded: Tensor) -> Tensor:
        """[S, L, …] → [N, …]: the inverse of :meth:`pad`."""
        flat = padded.flatten(0, 1)
        return flat if self.even else flat.index_select(0, self.slots)

    def to(self, device: torch.device | str) -> "Tokens":
        """The same batch on another device."""
        return Tokens(self.ids.to(device), self.lengths.to(device), self.types.to(device))


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens around texts: ``start a end`` for one, ``start a middle b end`` for a joined pair.

    BERT has ``SpecialTokens(start=(101,), middle=(102,), end=(102,))``; RoBERTa doubles the middle
    and keeps one segment.
    """

    start: tuple[int, ...]
    middle: tuple[int, ...]
    end: tuple[int, ...]
    second_type: int = 1


def arrange(columns: Sequence[Sequence[Ids]], reads: Reads, special_tokens: SpecialTokens, max_length: int) -> Tokens:
    """Lay out a batch for an encoder: columns of B tokenized texts → packed sequences.

    ``single`` takes the first column, ``pair`` and ``triple`` put the columns one after another (all first texts,
    then all second ones), ``joint`` joins two texts into one sequence, ``both_orders`` joins them as (a, b) and
    then as (b, a). A sequence over ``max_length`` tokens is cut at the end of its longer text.

    >>> a, b = np.array([7, 8], np.int32), np.array([9], np.int32)
    >>> arrange([[a], [b]], "joint", SpecialTokens((1,), (2,), (2,)), 512).ids.tolist()
    [1, 7, 8, 2, 9, 2]
    """
    if reads in ("single", "pair", "triple"):
        texts = [text for column in columns[: COLUMNS[reads]] for text in column]
        seconds: list[Ids] | None = None
    else:
        texts, seconds = list(columns[0]), list(columns[1])
        if reads == "both_orders":
            texts, seconds = texts + seconds, seconds + texts
    start, middle, end = (
        np.asarray(part, np.int32) for part in (special_tokens.start, special_tokens.middle, special_tokens.end)
    )
    pieces: list[Ids] = []
    lengths = np.empty(len(texts), np.int64)
    heads = np.empty(len(texts), np.int64)  # tokens before the second segment
    for row, first in enumerate(texts):
        if seconds is None:
            first = first[: max_length - len(start) - len(end)]
            pieces += (start, first, end)
            heads[row] = lengths[row] = len(start) + len(first) + len(end)
            continue
        first, second = _fit(first, seconds[row], max_length - len(start) - len(middle) - len(end))
        pieces += (start, first, middle, second, end)
        heads[row] = len(start) + len(first) + len(middle)
        lengths[row] = heads[row] + len(second) + len(end)
    ids = np.concatenate(pieces).astype(np.int64)
    types = np.zeros(len(ids), np.int64)
    if seconds is not None and special_tokens.second_type:
        counts = np.stack([heads, lengths - heads], 1).reshape(-1)
        types = np.repeat(np.tile([0, special_tokens.second_type], len(texts)), counts)
    return Tokens(torch.from_numpy(ids), torch.from_numpy(lengths), torch.from_numpy(types))


def _fit(first: Ids, second: Ids, room: int) -> tuple[Ids, Ids]:
    """Cut the longer text until both fit, as BERT's own preprocessing does."""
    keep = min(len(second), max(room // 2, room - len(first)))
    return first[: room - keep], second[:keep]
