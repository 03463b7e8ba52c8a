"""From the states of a sequence to one vector: the ways that encoders know by name."""

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from taskloom.core import Tokens

Pooling = Literal["pooler", "cls", "mean", "max"]
POOLINGS: tuple[str, ...] = get_args(Pooling)
#: What the encoder's own layer makes of the states of first tokens, [S, d] → [S, d].
Pooler = Callable[[Tensor], Tensor]


def ways_of(tokens: Tokens, own: str) -> list[str]:
    """The pooling of each part; ``own`` is the encoder's."""
    return [asked or own for asked in tokens.poolings]


def pool_states(states: Tensor, tokens: Tokens, own: str, pooler: Pooler) -> Tensor:
    """States [N, d] → one vector per sequence, [S, d], of each part by the pooling that it asks for."""

    def pool(way: str) -> Tensor:
        if way == "mean":
            return tokens.pad(states).sum(1) / tokens.offsets.diff()[:, None]
        if way == "max":
            return tokens.pad(states).masked_fill(~tokens.mask[..., None], -torch.inf).max(1).values
        first = states.index_select(0, tokens.starts)
        return first if way == "cls" else pooler(first)

    return by_part(tokens, own, pool)


def pool_first(first: Tensor, tokens: Tokens, own: str, pooler: Pooler) -> Tensor:
    """The same from the states of first tokens alone, [S, d], where no part asks for more."""
    return by_part(tokens, own, lambda way: first if way == "cls" else pooler(first))


def by_part(tokens: Tokens, own: str, pool: Callable[[str], Tensor]) -> Tensor:
    """The vectors of all sequences, [S, d]: of each part those that ``pool`` gives for its pooling."""
    ways = ways_of(tokens, own)
    pooled = {way: pool(way) for way in dict.fromkeys(ways)}  # all sequences every way: that costs little
    if len(pooled) == 1:
        return pooled[ways[0]]
    return torch.cat([torch.split(pooled[way], list(tokens.parts))[place] for place, way in enumerate(ways)])
