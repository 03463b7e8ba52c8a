"""Making mutants: a sound class with one slip in it; and the smallest sound classes."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from taskloom.core import (
    GradientCombiner,
    Head,
    Labels,
    Loss,
    Metric,
    Prediction,
    ScoreMeans,
    SharedModules,
    new_linear,
)


def mutant(sound: type, slip: str, **overrides: Any) -> Any:
    """A class as the sound one, but for what is overridden; its docstring says what is wrong with it."""
    return type("Mutant", (sound,), {"name": "mutant", "__doc__": slip, **overrides})


def then(method: Any, change: Any) -> Any:
    """A method that does something more: what ``change(self, result, *arguments)`` returns, it returns."""
    return lambda self, *given, **named: change(self, method(self, *given, **named), *given, *named.values())


class SquaredError(Loss):
    """The mean squared difference between score and label."""

    name = "squared_error"
    expects = "score"
    score_means: ScoreMeans = "value"
    separable = True

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        score = prediction.score if prediction.score.dtype is torch.float64 else prediction.score.float()
        return (score - target).square().mean()


class OneLayer(Head):
    """A linear layer on the vector of one text."""

    name = "one_layer"

    def build(
        self, *, width: int, outputs: int, labels: Labels, generator: torch.Generator, shared: SharedModules
    ) -> None:
        self.layer = new_linear(width, outputs, generator)

    def forward(self, vectors: Tensor) -> Prediction:
        score: Tensor = self.layer(vectors[0])
        return Prediction(score if score.shape[1] > 1 else score[:, 0], vectors)


class Added(GradientCombiner):
    """The sum of the tasks' gradients."""

    name = "added"

    def weights(self, gramian: Tensor) -> Tensor:
        return torch.ones(len(gramian), dtype=gramian.dtype, device=gramian.device)


class Cosine(Metric):
    """The cosine of predictions and labels, both less their mean."""

    name = "cosine"
    correlation = True

    def __call__(self, predicted: Any, expected: Any) -> float:
        one, other = (torch.as_tensor(x, dtype=torch.float64) for x in (predicted, expected))
        return float(cosine_similarity(one - one.mean(), other - other.mean(), dim=0).clamp(-1, 1))
