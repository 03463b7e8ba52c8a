"""A linear layer over two sentence vectors and their cosine."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from taskloom.core import Dropout, Prediction, new_linear
from taskloom.plugins.heads.parts import DropoutShare, ScoreHead, linear_line
from taskloom.plugins.similarity import cosine_of


class CosineFeatures(ScoreHead):
    """A linear layer over both sentence vectors and their cosine, 2d + 1 features.

    score = w · dropout(u ⊕ v ⊕ cos(u, v)) + b; the cosine is that of the whole vectors, before anything is dropped,
    and is itself dropped as one feature among the others.

    Decides: as ``linear``: the class with the largest logit; of one number the value itself, or the nearest class, or
    where the loss takes it for the logit of two classes, the second above zero.

    Reads: two texts encoded apart. Losses see u and v.

    Options:
        dropout: share of the 2d + 1 features that is dropped in training

    Siblings: ``linear`` with ``reads: "pair"`` is the same without the cosine; ``cosine`` has nothing but the cosine.

    Reference: "An Exploration of Fine-Tuning Techniques on minBERT Optimizations", section 5.3.3 (2d + 1 features).

    Example:
        {"tasks": {"sts": {"head": "cosine_features", "loss": "mse", "metric": "pearson"}}}
    """

    name = "cosine_features"
    gives = "either"
    reads = "pair"

    def __init__(self, *, dropout: DropoutShare = 0.3, **options: Any) -> None:
        super().__init__(**options)
        self.dropout = dropout

    def make_layers(self, width: int, generator: torch.Generator) -> None:
        self.drop = Dropout(self.dropout)
        self.last = new_linear(2 * width + 1, self.outputs, generator)

    def forward(self, vectors: Tensor) -> Prediction:
        cosine = cosine_of(vectors[0], vectors[1]).to(vectors.dtype)  # [B]
        features = torch.cat([vectors[0], vectors[1], cosine[:, None]], dim=-1)  # [B, 2d + 1]
        score = self.last(self.drop(features))  # [B, outputs]
        return Prediction(score.squeeze(-1) if self.outputs == 1 else score, vectors)

    def snippet(self, layer: Sequence[str] = ()) -> list[str]:
        cosine = "cosine = F.cosine_similarity(vectors[0], vectors[1])"
        features = "x = torch.cat([vectors[0], vectors[1], cosine[:, None]], -1)"
        return [*layer, cosine, features, linear_line("x", self.outputs), self.decision()]
