"""What the losses that compare one number with a label have in common."""

from abc import abstractmethod
from typing import Literal

from torch import Tensor

from taskloom.core import Labels, Loss, Prediction
from taskloom.plugins.similarity import at_least_float32


class ScoreLoss(Loss):
    """Compares one number per example with its label, or with the label's place in its range.

    Options:
        target: "raw" compares with the label itself, "scaled" with the label mapped from its range to 0..1
    """

    expects = "score"
    separable = True

    def __init__(self, *, target: Literal["raw", "scaled"] = "raw") -> None:
        super().__init__()
        self.target = target
        self.labels = Labels.of_range(0, 1)

    def prepare(self, *, labels: Labels, rows: int) -> None:
        self.labels = labels

    @abstractmethod
    def compare(self, score: Tensor, goal: Tensor) -> Tensor:
        """The mean over the examples, [B] and [B] → a scalar."""

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        score = at_least_float32(prediction.score)  # [B]
        goal = target.to(score.dtype)
        if self.target == "scaled":
            goal = (goal - self.labels.low) / ((self.labels.high - self.labels.low) or 1.0)
        return self.compare(score, goal)
