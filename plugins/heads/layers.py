"""The learnable layers that heads put in front of their score."""

import torch
from torch import nn

from taskloom.core import Dropout, new_linear


def learnable_layers(width: int, layers: int, dropout: float, generator: torch.Generator) -> nn.Sequential:
    """Dropout, then ``layers`` times (linear width → width, ReLU, dropout)."""
    parts: list[nn.Module] = [Dropout(dropout)]
    for _ in range(layers):
        parts += [new_linear(width, width, generator), nn.ReLU(), Dropout(dropout)]
    return nn.Sequential(*parts)
