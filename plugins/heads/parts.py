"""What heads share: learnable layers in front of the score, and what a number means in the units of the labels."""

import torch
from torch import Tensor, nn

from taskloom.core import Dropout, Labels, new_linear


def learnable_layers(width: int, layers: int, dropout: float, generator: torch.Generator) -> nn.Sequential:
    """Dropout, then ``layers`` times (linear width → width, ReLU, dropout)."""
    parts: list[nn.Module] = [Dropout(dropout)]
    for _ in range(layers):
        parts += [new_linear(width, width, generator), nn.ReLU(), Dropout(dropout)]
    return nn.Sequential(*parts)


def decide_number(score: Tensor, positive: Tensor, labels: Labels) -> Tensor:
    """One number per example → what is predicted, [B].

    ``positive`` says which of two classes it is; of more classes it is the nearest; a value is the number itself.
    """
    if labels.classes == 2:
        return positive.long()
    if labels.classes > 2:
        return score.round().clamp(0, labels.classes - 1).long()
    return score
