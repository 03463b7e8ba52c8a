"""Mean squared error."""

from typing import Literal

from torch import Tensor
from torch.nn import functional

from taskloom.core import Labels, Loss, Prediction
from taskloom.plugins.losses.targets import scaled_target
from taskloom.plugins.similarity import at_least_float32


class MSE(Loss):
    """The mean squared difference between score and label.

    L = 1/B Σᵢ (sᵢ − tᵢ)², where t is the label as it is, or (y − low) / (high − low), its place in its range.

    Reads: one number per example.

    Options:
        target: "raw" compares with the label itself, "scaled" with the label mapped from its range to 0..1

    Siblings: ``cosine_embedding`` looks at the vectors instead of the score.

    Reference: Reimers & Gurevych, "Sentence-BERT", EMNLP 2019, section 3 (regression objective).

    Example:
        {"tasks": {"sts": {"head": {"name": "cosine", "scale": 1}, "loss": {"name": "mse", "target": "scaled"}}}}
    """

    name = "mse"
    expects = "score"
    separable = True

    def __init__(self, *, target: Literal["raw", "scaled"] = "raw") -> None:
        super().__init__()
        self.target = target
        self.labels = Labels.of_range(0, 1)

    def prepare(self, *, labels: Labels, rows: int) -> None:
        self.labels = labels

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        score = at_least_float32(prediction.score)  # [B]
        goal = target.to(score.dtype)
        if self.target == "scaled":
            goal = scaled_target(goal, self.labels)
        return functional.mse_loss(score, goal)
