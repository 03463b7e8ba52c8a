"""Cosine similarity of two sentence vectors."""

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from pydantic import Field, NonNegativeInt, PositiveFloat
from torch import Tensor

from taskloom.core import Prediction
from taskloom.plugins.heads.parts import DropoutShare, ScoreHead, activated, layer_lines, learnable_layers
from taskloom.plugins.similarity import cosine_of


class Cosine(ScoreHead):
    """The cosine of two sentence vectors, scaled to the label's range.

    score = scale · cos(x, y) with cos = x·y / max(‖x‖‖y‖, 1e-8), x and y being dropout(u) and dropout(v), each
    through the same ``layers`` × (linear, ReLU, dropout). ``relu`` lifts negative cosines to zero. A learnable layer
    ends in a ReLU, so with one the cosine is never negative.

    Decides: the score itself; where there are two classes, 1 from ``threshold`` · ``scale`` on, and where there are
    more, the nearest class.

    Reads: two texts encoded apart. Losses see x and y.

    Options:
        layers: learnable layers before the cosine, shared by both texts
        dropout: share of a vector that is dropped in training, before the first layer and after each one
        relu: no cosine below zero
        scale: what a cosine of 1 becomes; 5 for similarity labels from 0 to 5
        threshold: cosine from which two texts count as the same, for labels with two classes

    Siblings: ``linear`` with ``reads: "pair"`` learns how to compare instead; ``cosine_sigmoid`` bends the cosine,
    ``cosine_features`` takes it as one feature among others.

    Reference: Reimers & Gurevych, "Sentence-BERT", EMNLP 2019.

    Example:
        {"tasks": {"sts": {"head": {"name": "cosine", "relu": true}, "loss": "mse", "metric": "pearson"}}}
    """

    name = "cosine"
    gives = "score"
    reads = "pair"

    def __init__(
        self,
        *,
        layers: NonNegativeInt = 0,
        dropout: DropoutShare = 0.3,
        relu: bool = False,
        scale: PositiveFloat = 5.0,
        threshold: Annotated[float, Field(ge=-1, le=1)] = 0.5,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.layers = layers
        self.dropout = dropout
        self.relu = relu
        self.scale = scale
        self.cut = threshold * scale

    def make_layers(self, width: int, generator: torch.Generator) -> None:
        self.front = learnable_layers(width, self.layers, self.dropout, generator)

    def forward(self, vectors: Tensor) -> Prediction:
        compared = self.front(vectors)  # [2, B, d]
        cosine = cosine_of(compared[0], compared[1])  # [B]
        return Prediction(self.scale * (cosine.relu() if self.relu else cosine), compared)

    def snippet(self, layer: Sequence[str] = ()) -> list[str]:
        cosine = "F.cosine_similarity(x[0], x[1])"
        score = f"score = {self.scale!r} * {activated('relu' if self.relu else 'none', cosine)}"
        return [*layer, "x = vectors", *layer_lines(self.layers), score, self.decision()]
