"""Token sequences without padding, and how texts are laid out for an encoder."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

#: What a head reads of each example: one text, two or three encoded apart, two in one sequence, or in both orders.
Reads = Literal["single", "pair", "triple", "joint", "both_orders"]
#: The token ids of one text, without special tokens.
Ids = NDArray[np.int32]

#: Sequences per example.
SEQUENCES: dict[Reads, int] = {"single": 1, "pair": 2, "triple": 3, "joint": 1, "both_orders": 2}
#: Text columns per example.
COLUMNS: dict[Reads, int] = {"single": 1, "pair": 2, "triple": 3, "joint": 2, "both_orders": 2}


class Tokens:
    """A batch of token sequences, packed: one row of N ids for S sequences, and their lengths.

    Linear layers work on [N, d] and waste nothing on padding; :meth:`pad` arranges the rows as [S, L, …] where an
    operation needs it, and :meth:`unpad` is the inverse. The lengths stay on the host, where the layout of a batch is
    computed: reading them from a GPU would make the host wait. ``parts`` are the numbers of sequences per task where
    several tasks are packed together (see :meth:`join`).

    >>> tokens = Tokens.pack([[101, 7, 102], [101, 102]])
    >>> tokens.positions.tolist(), tokens.offsets.tolist(), tokens.longest
    ([0, 1, 2, 0, 1], [0, 3, 5], 3)
    >>> tokens.pad(tokens.ids).tolist()
    [[101, 7, 102], [101, 102, 0]]
    """

    def __init__(
        self,
        ids: Tensor,
        lengths: Tensor,
        types: Tensor,
        *,
        parts: tuple[int, ...] = (),
        poolings: tuple[str | None, ...] = (),
        positions: Tensor | None = None,
        offsets: Tensor | None = None,
    ) -> None:
        self.ids = ids  # [N]
        self.types = types  # [N] segment of each token: 0, or 1 in the second text of a joined pair
        self.lengths = lengths  # [S], on the host
        self.parts = parts or (len(lengths),)  # sequences of each task
        self.poolings = poolings or (None,) * len(self.parts)  # of each task; None: the encoder's default
        self.rows: tuple[int, ...] = (len(ids),)  # tokens of each task
        if len(self.parts) > 1:
            self.rows = tuple(int(part.sum()) for part in torch.split(lengths, list(self.parts)))
        self.longest = int(lengths.max()) if len(lengths) else 0
        self.layouts: dict[object, object] = {}  # computed by encoders for this batch, by keys of their own
        self._positions, self._offsets = positions, offsets

    @classmethod
    def pack(cls, sequences: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None) -> "Tokens":
        """Pack lists of ids (and of segment ids)."""
        flat = [i for sequence in sequences for i in sequence]
        kinds = [0] * len(flat) if types is None else [t for row in types for t in row]
        lengths = [len(sequence) for sequence in sequences]
        return cls(torch.tensor(flat), torch.tensor(lengths), torch.tensor(kinds))

    @classmethod
    def join(cls, batches: Sequence["Tokens"]) -> "Tokens":
        """Join the batches of several tasks, still on the host; ``parts`` keeps their numbers of sequences."""
        ids, types, lengths = (torch.cat([getattr(b, key) for b in batches]) for key in ("ids", "types", "lengths"))
        poolings = tuple(pooling for batch in batches for pooling in batch.poolings)
        return cls(ids, lengths, types, parts=tuple(map(len, batches)), poolings=poolings)

    def __len__(self) -> int:
        return self.lengths.shape[0]

    @property
    def even(self) -> bool:
        """Whether all sequences have one length, so that nothing needs padding."""
        return len(self) * self.longest == self.ids.shape[0]

    @property
    def positions(self) -> Tensor:
        """Position of each token in its sequence, [N]."""
        if self._positions is None:
            self._locate()
        assert self._positions is not None
        return self._positions

    @property
    def offsets(self) -> Tensor:
        """Where sequences begin and end, [S + 1], int32: sequence s has the rows from offsets[s] to offsets[s + 1]."""
        if self._offsets is None:
            self._locate()
        assert self._offsets is not None
        return self._offsets

    def _locate(self) -> None:
        counts = self.lengths.numpy()
        ends = np.cumsum(counts, dtype=np.int64)
        positions = np.arange(len(self.ids), dtype=np.int64) - np.repeat(ends - counts, counts)
        arrays = [positions, np.concatenate([[0], ends]).astype(np.int32)]
        self._positions, self._offsets = place_arrays(arrays, self.ids.device)

    @property
    def starts(self) -> Tensor:
        """Row of each sequence's first token, [S]."""
        return self.offsets[:-1]

    @cached_property
    def slots(self) -> Tensor:
        """Row of each token in the padded [S·L] layout, [N]."""
        owners = np.repeat(np.arange(len(self)), self.lengths.numpy())  # sequence of each token
        return place_arrays([owners * self.longest], self.ids.device)[0] + self.positions

    @cached_property
    def mask(self) -> Tensor:
        """True where the padded [S, L] layout holds a token."""
        return place_arrays([np.arange(self.longest) < self.lengths.numpy()[:, None]], self.ids.device)[0]

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

    def split(self) -> "list[Tokens]":
        """The parts, each as a batch of its own; the inverse of :meth:`join`, on any device."""
        if len(self.parts) == 1:
            return [self]
        ids, types = (torch.split(column, list(self.rows)) for column in (self.ids, self.types))
        lengths = torch.split(self.lengths, list(self.parts))
        columns = zip(ids, lengths, types, self.poolings, strict=True)
        return [Tokens(i, n, t, poolings=(pooling,)) for i, n, t, pooling in columns]

    def to(self, device: torch.device | str) -> "Tokens":
        """The same batch on another device."""
        return self.sent(device)[0]

    def sent(self, device: torch.device | str, *beside: NDArray[Any]) -> "tuple[Tokens, list[Tensor]]":
        """The batch on a device, and further arrays of the host that are moved in the same copy."""
        own = [column.cpu().numpy() for column in (self.ids, self.types, self.positions, self.offsets)]
        ids, types, positions, offsets, *rest = place_arrays([*own, *beside], device)
        tokens = Tokens(
            ids,
            self.lengths,
            types,
            parts=self.parts,
            poolings=self.poolings,
            positions=positions,
            offsets=offsets,
        )
        return tokens, rest


def place_arrays(arrays: Sequence[NDArray[Any]], device: torch.device | str) -> list[Tensor]:
    """Move arrays of the host to a device, as tensors. To a GPU they go in one copy that does not block.

    >>> place_arrays([np.array([1, 2]), np.array([0.5], np.float32)], "cpu")
    [tensor([1, 2]), tensor([0.5000])]
    """
    device = torch.device(device)
    tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
    if device.type == "cpu":
        return tensors
    sizes = [-(-tensor.nbytes // 8) for tensor in tensors]  # in words of 8 bytes, so that each begins well aligned
    # Apple's GPU shares the host's memory, of which torch pins nothing there.
    buffer = torch.empty(sum(sizes), dtype=torch.int64, pin_memory=device.type != "mps")
    for tensor, room in zip(tensors, torch.split(buffer, sizes), strict=True):
        room.view(torch.uint8)[: tensor.nbytes] = tensor.reshape(-1).view(torch.uint8)
    there = torch.split(buffer.to(device, non_blocking=True), sizes)
    return [
        room.view(tensor.dtype)[: tensor.numel()].view(tensor.shape)
        for tensor, room in zip(tensors, there, strict=True)
    ]


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens around texts: ``start a end`` for one, ``start a middle b end`` for a joined pair.

    BERT has ``SpecialTokens(start=(101,), middle=(102,), end=(102,))``; RoBERTa doubles the middle
    and keeps one segment. ``second_start`` are tokens before b that belong to its segment, of which neither has any.
    """

    start: tuple[int, ...]
    middle: tuple[int, ...]
    end: tuple[int, ...]
    second_type: int = 1
    second_start: tuple[int, ...] = ()


def arrange(
    columns: Sequence[Sequence[Ids]],
    reads: Reads,
    special_tokens: SpecialTokens,
    max_length: int,
    *,
    pooling: str | None = None,
) -> Tokens:
    """Arrange a batch for an encoder: columns of B tokenized texts → packed sequences.

    ``single`` takes the first column, ``pair`` and ``triple`` put the columns one after another (all first texts,
    then all second ones), ``joint`` joins two texts into one sequence, ``both_orders`` joins them as (a, b) and
    then as (b, a). A sequence over ``max_length`` tokens is truncated at the end of its longer text. ``pooling`` is the
    pooling that the head requests.

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
    frame = (special_tokens.start, special_tokens.middle, special_tokens.second_start, special_tokens.end)
    start, middle, again, end = (np.asarray(part, np.int32) for part in frame)
    pieces: list[Ids] = []
    lengths = np.empty(len(texts), np.int64)
    heads = np.empty(len(texts), np.int64)  # tokens before the second segment
    for row, first in enumerate(texts):
        if seconds is None:
            first = first[: max_length - len(start) - len(end)]
            pieces += (start, first, end)
            heads[row] = lengths[row] = len(start) + len(first) + len(end)
            continue
        first, second = _fit(first, seconds[row], max_length - sum(map(len, frame)))
        pieces += (start, first, middle, again, second, end)
        heads[row] = len(start) + len(first) + len(middle)
        lengths[row] = heads[row] + len(again) + len(second) + len(end)
    ids = np.concatenate(pieces).astype(np.int64)
    types = np.zeros(len(ids), np.int64)
    if seconds is not None and special_tokens.second_type:
        counts = np.stack([heads, lengths - heads], 1).reshape(-1)
        types = np.repeat(np.tile([0, special_tokens.second_type], len(texts)), counts)
    return Tokens(*map(torch.from_numpy, (ids, lengths, types)), poolings=(pooling,))


def _fit(first: Ids, second: Ids, room: int) -> tuple[Ids, Ids]:
    """Truncate the longer text until both fit, as BERT's own preprocessing does."""
    keep = min(len(second), max(room // 2, room - len(first)))
    return first[: room - keep], second[:keep]
