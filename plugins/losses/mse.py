"""Mean squared error."""

from torch import Tensor
from torch.nn import functional

from taskloom.plugins.losses.families import ScoreLoss


class MSE(ScoreLoss):
    """The mean squared difference between score and label.

    L = 1/B Σᵢ (sᵢ − tᵢ)², where t is the label as it is, or (y − low) / (high − low), its place in its range.

    Reads: one number per example.

    Siblings: ``cosine_embedding`` looks at the vectors instead of the score.

    Reference: Reimers & Gurevych, "Sentence-BERT", EMNLP 2019, section 3 (regression objective).

    Example:
        {"tasks": {"sts": {"head": {"name": "cosine", "scale": 1}, "loss": {"name": "mse", "target": "scaled"}}}}
    """

    name = "mse"

    def compare(self, score: Tensor, goal: Tensor) -> Tensor:
        return functional.mse_loss(score, goal)
