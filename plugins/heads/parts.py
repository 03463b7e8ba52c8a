"""What heads share: layers in front of the score, and what a score means in the units of the labels."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from taskloom.core import Dropout, Head, Labels, SharedModules, new_linear

#: How much of a vector is dropped in training.
DropoutShare = Annotated[float, Field(ge=0, lt=1)]


def learnable_layers(width: int, layers: int, dropout: float, generator: torch.Generator) -> nn.Sequential:
    """Dropout, then ``layers`` times (linear width → width, ReLU, dropout)."""
    parts: list[nn.Module] = [Dropout(dropout)]
    for _ in range(layers):
        parts += [new_linear(width, width, generator), nn.ReLU(), Dropout(dropout)]
    return nn.Sequential(*parts)


class ScoreHead(Head):
    """A head whose score is one logit per class, or one number that is decided in the units of the labels."""

    def build(
        self, *, width: int, outputs: int, labels: Labels, generator: torch.Generator, shared: SharedModules
    ) -> None:
        self.labels, self.outputs = labels, outputs
        self.make_layers(width, generator)

    def make_layers(self, width: int, generator: torch.Generator) -> None:
        """Make the parameters; the base has none."""

    def is_positive(self, score: Tensor) -> Tensor:
        """Which numbers stand for the second of two classes: those above zero, as of logits."""
        return score > 0

    def decide(self, score: Tensor) -> Tensor:
        if self.outputs > 1:
            return score.argmax(-1)
        if self.labels.classes == 2:
            return self.is_positive(score).long()
        return score.round().clamp(0, self.labels.classes - 1).long() if self.labels.classes > 2 else score
