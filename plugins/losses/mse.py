"""Mean squared error."""

from torch import Tensor
from torch.nn import functional

from taskloom.core import Labels, TrainingError
from taskloom.plugins.losses.families import ScoreLoss


class MSE(ScoreLoss):
    """The mean squared difference between score and label.

    L = 1/B Σᵢ (sᵢ − tᵢ)², where t is the label y, or with ``target: "scaled"`` (y − low) / (high − low).

    Reads: one number per example, in the units of the labels; the numbers of ordered classes count as values.

    Siblings: ``cosine_embedding`` looks at the vectors instead of the score.

    Reference: Reimers & Gurevych, "Sentence-BERT", EMNLP 2019, section 3 (regression objective).

    Example:
        {"tasks": {"sts": {"head": {"name": "cosine", "scale": 1}, "loss": {"name": "mse", "target": "scaled"}}}}
    """

    name = "mse"
    score_means = "value"

    def prepare(self, *, labels: Labels, rows: int) -> None:
        super().prepare(labels=labels, rows=rows)
        if self.target == "scaled" and labels.classes > 2:
            raise TrainingError(
                f"loss {self.name!r} should have target 'raw' for {labels.classes} classes: a score is rounded to a "
                "class number. Found 'scaled', whose scores lie between 0 and 1; use 'raw', or 'cross_entropy'."
            )

    def compare(self, score: Tensor, goal: Tensor) -> Tensor:
        return functional.mse_loss(score, goal)
