"""Bases of losses: those that compare one number with the label, and those that compare the vectors of pairs."""

from abc import abstractmethod
from typing import Literal

from torch import Tensor

from taskloom.core import Labels, Loss, Prediction, TrainingError
from taskloom.plugins.similarity import at_least_float32


class ScoreLoss(Loss):
    """Compares one number per example with its label, or with the label scaled to 0..1.

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


class PairLoss(Loss):
    """A loss of the vectors of pairs, some of which are positive.

    Options:
        positive_from: the label from which (≥) a pair counts as positive: 1 for paraphrases, 3 for similarity 0 to 5
    """

    expects = "vectors"
    vectors: tuple[int, ...] = (2,)

    def __init__(self, *, positive_from: float = 1.0) -> None:
        super().__init__()
        self.positive_from = positive_from

    def prepare(self, *, labels: Labels, rows: int) -> None:
        """Refuse a bound that no label reaches: no pair would be positive."""
        if labels.high < self.positive_from:
            raise TrainingError(
                f"loss {self.name!r} should have labels that reach positive_from = {self.positive_from:g}. "
                f"Found labels from {labels.low:g} to {labels.high:g}; lower it, or use labelled data."
            )
