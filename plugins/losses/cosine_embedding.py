"""Cosine-embedding loss."""

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from taskloom.core import Prediction
from taskloom.plugins.losses.families import PairLoss
from taskloom.plugins.similarity import cosine_of


def cosine_losses(cosine: Tensor, positive: Tensor, margin: Tensor | float) -> Tensor:
    """1 − cos where a pair is positive, max(0, cos − margin) elsewhere, [B]."""
    return torch.where(positive, 1 - cosine, (cosine - margin).relu())


class CosineEmbedding(PairLoss):
    """Pulls positive pairs together and pushes other pairs apart until their cosine is below a margin.

    L = 1/B Σᵢ lᵢ with lᵢ = 1 − cos(uᵢ, vᵢ) if yᵢ ≥ ``positive_from``, else max(0, cos(uᵢ, vᵢ) − margin);
    cos = u·v / max(‖u‖‖v‖, 1e-8).

    Reads: the two vectors of a pair, as the head saw them; the score is not used.

    Options:
        margin: cosine below which the loss of a pair that is not positive is 0

    Siblings: ``mse`` on the head ``cosine`` uses the whole range of the label; ``dynamic_margin`` moves the margin;
    ``mnr`` compares with all other pairs of the batch.

    Reference: torch.nn.CosineEmbeddingLoss; Hadsell et al., "Dimensionality Reduction by Learning an Invariant
    Mapping", CVPR 2006.

    Example:
        {"tasks": {"sts": {"head": "cosine", "loss": {"name": "cosine_embedding", "positive_from": 3}}}}
    """

    name = "cosine_embedding"
    separable = True

    def __init__(self, *, margin: Annotated[float, Field(ge=-1, le=1)] = 0.0, **options: Any) -> None:
        super().__init__(**options)
        self.margin = margin

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        cosine = cosine_of(*prediction.vectors)  # [B]
        return cosine_losses(cosine, target >= self.positive_from, self.margin).mean()
