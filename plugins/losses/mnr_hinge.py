"""A positive pair against the negatives of its batch, with a hinge."""

from typing import Any, Literal

from torch import Tensor

from taskloom.core import Prediction
from taskloom.plugins.losses.families import PairLoss
from taskloom.plugins.similarity import at_least_float32, cosine_of


class MNRHinge(PairLoss):
    """One positive pair should be more alike than all negative pairs of its batch together.

    L = 1/K [max(0, 1 − s₊) + max(0, 1 − s₊ + Σᵢ sᵢ)], s = a·b of a pair, the sum over the K − 1 negative pairs. The
    paper has one positive and at least four negative pairs in a batch; its formula compares the texts of each negative
    pair, sᵢ = aᵢ·bᵢ, its text the positive pair's first text with their second ones, sᵢ = a₊·bᵢ. Where a batch has
    several positive pairs, L is the mean over them, each against all negatives; where it has none, 0.

    Reads: the two vectors of a pair, as the head saw them; the score is not used. Made for batches composed as
    ``one_positive``.

    Options:
        similarity: "dot" is a·b as printed, "cos" the cosine, which keeps the terms within reach of the hinge
        negatives: what sᵢ compares: "pairs" is aᵢ with bᵢ, "anchor" is a₊ with bᵢ

    Siblings: ``mnr`` is the softmax form, with every second text of the batch as a candidate.

    Reference: "Losing to Win: Evaluating the Success of Various Loss Functions Within Multitask Settings", section 4.4.

    Example:
        {"tasks": {"para": {"head": {"name": "linear", "reads": "pair"}, "loss": "mnr_hinge"}}}
    """

    name = "mnr_hinge"

    def __init__(
        self,
        *,
        similarity: Literal["dot", "cos"] = "dot",
        negatives: Literal["pairs", "anchor"] = "pairs",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.similarity = similarity
        self.negatives = negatives

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        a, b = (at_least_float32(x) for x in prediction.vectors)
        positive = target >= self.positive_from  # [B]
        alike = self._alike(a, b)  # [B]
        own, others = alike[positive], alike[~positive]  # [P], [K − 1]
        if self.negatives == "anchor":
            others = self._alike(a[positive, None], b[~positive])  # [P, K − 1]
        terms = (1 - own).relu() + (1 - own + others.sum(-1)).relu()  # [P]
        return terms.sum() / max(1, len(own)) / (1 + others.shape[-1])

    def _alike(self, a: Tensor, b: Tensor) -> Tensor:
        return cosine_of(a, b) if self.similarity == "cos" else (a * b).sum(-1)
