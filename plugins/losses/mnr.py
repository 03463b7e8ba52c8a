"""Multiple negatives ranking."""

from typing import Any, Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor
from torch.nn import functional

from taskloom.core import Labels, Prediction
from taskloom.plugins.losses.families import PairLoss
from taskloom.plugins.similarity import at_least_float32, cosine_matrix


class MNR(PairLoss):
    """Multiple negatives ranking: among all second texts of a batch, each first text should find its own.

    L = −1/K Σᵢ [S(uᵢ, vᵢ) − log Σⱼ exp S(uᵢ, vⱼ)], S = scale · cos or scale · dot. The sum over i goes over the K
    positive pairs (label ≥ ``positive_from``; all pairs where the data have no labels), the sum over j over all pairs
    of the batch: the second text of a pair that is not positive is a candidate, but its first text is no anchor. A
    third text per example is one candidate more. The loss of a batch without a positive pair is 0.

    ``symmetric`` is the mean of that and of the same with first and second texts exchanged.

    Reads: the vectors of a pair (or of anchor, positive and negative), as the head saw them. The same text twice in a
    batch would count as wrong once: use batches with ``no_duplicates``.

    Options:
        scale: factor of the similarity, the inverse of a temperature; 1 is usual with dot
        similarity: "cos" or "dot"
        symmetric: also let each second text find its first

    Siblings: ``simcse`` makes positives by dropout; ``mnr_hinge`` compares one positive with the batch's negatives;
    ``cosine_embedding`` takes each pair by itself.

    Reference: Henderson et al., "Efficient Natural Language Response Suggestion for Smart Reply", 2017, section 4.4.

    Example:
        {"tasks": {"para": {"head": {"name": "linear", "reads": "pair"},
                            "loss": {"name": "total", "losses": ["binary_cross_entropy", "mnr"]}}}}
    """

    name = "mnr"
    vectors = (2, 3)

    def __init__(
        self,
        *,
        scale: PositiveFloat = 20.0,
        similarity: Literal["cos", "dot"] = "cos",
        symmetric: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.scale = scale
        self.similarity = similarity
        self.symmetric = symmetric
        self.labelled = True

    def prepare(self, *, labels: Labels, rows: int) -> None:
        self.labelled = labels.high > labels.low
        if self.labelled:
            super().prepare(labels=labels, rows=rows)

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        vectors = at_least_float32(prediction.vectors)  # [S, B, d]
        positive = target >= self.positive_from if self.labelled else torch.ones_like(target, dtype=torch.bool)
        anchors = positive.nonzero()[:, 0]  # [K]
        loss = self._ranking(vectors[0], vectors[1:].flatten(0, 1), anchors)
        if self.symmetric:
            loss = (loss + self._ranking(vectors[1], vectors[0], anchors)) / 2
        return loss

    def _ranking(self, texts: Tensor, candidates: Tensor, anchors: Tensor) -> Tensor:
        """Cross-entropy of each anchor's own candidate, which has the anchor's row, among all candidates [C, d]."""
        chosen = texts[anchors]  # [K, d]
        matrix = cosine_matrix(chosen, candidates) if self.similarity == "cos" else chosen @ candidates.T  # [K, C]
        # Not reduction="mean", which is NaN without anchors; this is 0 with a graph.
        return functional.cross_entropy(self.scale * matrix, anchors, reduction="sum") / max(1, len(anchors))
