"""Cosine-embedding loss."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from taskloom.core import Loss, Prediction, TrainingError
from taskloom.plugins.similarity import cosine_of


class CosineEmbedding(Loss):
    """Draws positive pairs together and pushes others apart down to a margin.

    L = 1/B Σᵢ lᵢ with lᵢ = 1 − cos(uᵢ, vᵢ) if yᵢ ≥ ``positive_from``, else max(0, cos(uᵢ, vᵢ) − margin);
    cos = u·v / max(‖u‖‖v‖, 1e-8).

    Reads: the two vectors of a pair, as the head saw them; the score plays no part.

    Options:
        margin: cosine below which a pair that is not positive costs nothing
        positive_from: the label from which (≥) a pair counts as positive: 1 for paraphrases, 3 for similarity 0 to 5

    Siblings: ``mse`` on the head ``cosine`` uses the whole range of the label.

    Reference: torch.nn.CosineEmbeddingLoss; Hadsell et al., "Dimensionality Reduction by Learning an Invariant
    Mapping", CVPR 2006.

    Example:
        {"tasks": {"sts": {"head": "cosine", "loss": {"name": "cosine_embedding", "positive_from": 3}}}}
    """

    name = "cosine_embedding"
    expects = "vectors"

    def __init__(self, *, margin: Annotated[float, Field(ge=-1, le=1)] = 0.0, positive_from: float = 1.0) -> None:
        super().__init__()
        self.margin = margin
        self.positive_from = positive_from

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        if len(prediction.vectors) != 2:
            raise TrainingError(
                f"loss {self.name!r} should see two vectors per example. Found {len(prediction.vectors)}; "
                "use a head that reads pairs, such as 'cosine'."
            )
        cosine = cosine_of(prediction.vectors[0], prediction.vectors[1])  # [B]
        return torch.where(target >= self.positive_from, 1 - cosine, (cosine - self.margin).relu()).mean()
