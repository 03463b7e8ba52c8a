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
    """States → one vector per sequence, [S, d], with the pooling of each part.

    The states are those of all tokens, [N, d], or of first tokens only, [S, d], where no pooling is "mean" or "max".
    """

    def pool(pooling: str) -> Tensor:
        if pooling == "mean":
            return tokens.pad(states).sum(1) / tokens.offsets.diff()[:, None]
        if pooling == "max":
            return tokens.pad(states).masked_fill(~tokens.mask[..., None], -torch.inf).max(1).values
        first = states if len(states) == len(tokens.lengths) else states.index_select(0, tokens.starts)
        return first if pooling == "cls" else pooler(first)

    poolings = part_poolings(tokens, default)
    pooled = {pooling: pool(pooling) for pooling in dict.fromkeys(poolings)}  # of all sequences: that costs little
    if len(pooled) == 1:
        return pooled[poolings[0]]
    parts = [torch.split(pooled[pooling], list(tokens.parts))[index] for index, pooling in enumerate(poolings)]
    return torch.cat(parts)
