"""A steep sigmoid of the cosine of two projected sentence vectors."""

from collections.abc import Sequence
from typing import Any

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn

from taskloom.core import Dropout, Prediction, new_linear
from taskloom.plugins.heads.parts import DropoutShare, ScoreHead
from taskloom.plugins.similarity import cosine_of


class CosineSigmoid(ScoreHead):
    """A steep sigmoid of the cosine of two sentence vectors, each projected by the same linear layer.

    score = scale · σ(steepness · cos(x, y)) with x = W·dropout(u) + b and y = W·dropout(v) + b, W being d × d; cos as
    in ``cosine``. The score lies between 0 and ``scale``, and is half of it where the cosine is 0. At a steepness of
    20 it hardly moves (and teaches hardly anything) beyond cosines of ±0.3.

    Decides: the score itself; where there are two classes, 1 from half of ``scale`` on, and where there are more, the
    nearest class.

    Reads: two texts encoded apart. Losses see x and y.

    Options:
        dropout: share of a sentence vector that is dropped in training, before the projection
        steepness: what the cosine is multiplied with inside the sigmoid
        scale: what the sigmoid is multiplied with; 5 for similarity labels from 0 to 5

    Siblings: ``cosine`` is a straight line of the cosine; ``cosine_features`` takes the cosine as one feature of many.

    Reference: Reimers & Gurevych, "Sentence-BERT", EMNLP 2019 (cosine of two encodings); the d-feature head of
    "An Exploration of Fine-Tuning Techniques on minBERT Optimizations", section 5.3.3.

    Example:
        {"tasks": {"sts": {"head": "cosine_sigmoid", "loss": "mse", "metric": "pearson"}}}
    """

    name = "cosine_sigmoid"
    gives = "score"
    reads = "pair"

    def __init__(
        self,
        *,
        dropout: DropoutShare = 0.0,
        steepness: PositiveFloat = 20.0,
        scale: PositiveFloat = 5.0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.dropout = dropout
        self.steepness = steepness
        self.scale = scale
        self.cut = scale / 2

    def make_layers(self, width: int, generator: torch.Generator) -> None:
        self.front = nn.Sequential(Dropout(self.dropout), new_linear(width, width, generator))

    def forward(self, vectors: Tensor) -> Prediction:
        compared = self.front(vectors)  # [2, B, d]
        cosine = cosine_of(compared[0], compared[1])  # [B]
        return Prediction(self.scale * (self.steepness * cosine).sigmoid(), compared)

    def snippet(self, layer: Sequence[str] = ()) -> list[str]:
        score = f"score = {self.scale!r} * torch.sigmoid({self.steepness!r} * F.cosine_similarity(x[0], x[1]))"
        return [*layer, 'x = F.linear(vectors, w["front.1.weight"], w["front.1.bias"])', score, self.decision()]
