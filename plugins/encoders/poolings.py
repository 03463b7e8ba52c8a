"""From the states of a sequence to one vector: the poolings that encoders know by name."""

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from taskloom.core import Tokens

Pooling = Literal["pooler", "cls", "mean", "max"]
POOLINGS: tuple[str, ...] = get_args(Pooling)
#: The encoder's own layer over the states of first tokens, [S, d] → [S, d].
Pooler = Callable[[Tensor], Tensor]


def part_poolings(tokens: Tokens, default: str) -> list[str]:
    """The pooling of each part: the one its task's head states, else the encoder's."""
    return [pooling or default for pooling in tokens.poolings]


def pool_states(states: Tensor, tokens: Tokens, default: str, pooler: Pooler) -> Tensor:
    """States [N, d] → one vector per sequence, [S, d], with the pooling of each part."""

    def pool(pooling: str) -> Tensor:
        if pooling == "mean":
            return tokens.pad(states).sum(1) / tokens.offsets.diff()[:, None]
        if pooling == "max":
            return tokens.pad(states).masked_fill(~tokens.mask[..., None], -torch.inf).max(1).values
        first = states.index_select(0, tokens.starts)
        return first if pooling == "cls" else pooler(first)

    return _pool_parts(tokens, default, pool)


def pool_first(first: Tensor, tokens: Tokens, default: str, pooler: Pooler) -> Tensor:
    """``pool_states`` from the states of first tokens only, [S, d], where every pooling is "cls" or "pooler"."""
    return _pool_parts(tokens, default, lambda pooling: first if pooling == "cls" else pooler(first))


def _pool_parts(tokens: Tokens, default: str, pool: Callable[[str], Tensor]) -> Tensor:
    """The vectors of all sequences, [S, d], with the pooling of each part."""
    poolings = part_poolings(tokens, default)
    pooled = {pooling: pool(pooling) for pooling in dict.fromkeys(poolings)}  # of all sequences: that costs little
    if len(pooled) == 1:
        return pooled[poolings[0]]
    parts = [torch.split(pooled[pooling], list(tokens.parts))[index] for index, pooling in enumerate(poolings)]
    return torch.cat(parts)
