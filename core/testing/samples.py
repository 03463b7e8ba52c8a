"""What the kit puts where a component asks for options that nobody gave: the smallest thing of that kind."""

from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from taskloom.core.combiner import GradientCombiner
from taskloom.core.component import Component
from taskloom.core.data import Labels
from taskloom.core.head import Head, SharedModules
from taskloom.core.loss import Loss
from taskloom.core.metric import Metric
from taskloom.core.options import Option
from taskloom.core.prediction import Prediction
from taskloom.core.random import new_linear
from taskloom.core.testing.edges import edge_values, known_options
from taskloom.core.words import bare


class SquaredError(Loss):
    """The mean squared difference between score and label."""

    name = "squared_error"
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
        self.labels = labels
        self.layer = new_linear(width, outputs, generator)

    def forward(self, vectors: Tensor) -> Prediction:
        score: Tensor = self.layer(vectors[0])
        return Prediction(score if score.shape[1] > 1 else score[:, 0], vectors)

    def decide(self, score: Tensor) -> Tensor:
        if score.dim() == 2:
            return score.argmax(1)
        return (score > 0.5).long() if self.labels.classes else score


class Added(GradientCombiner):
    """The sum of the tasks' gradients."""

    name = "added"

    def weights(self, gramian: Tensor) -> Tensor:
        return torch.ones(len(gramian), dtype=gramian.dtype)


class Cosine(Metric):
    """The cosine of predictions and labels, both less their mean."""

    name = "cosine"
    correlation = True

    def __call__(self, predicted: Any, expected: Any) -> float:
        one, other = (torch.as_tensor(x, dtype=torch.float64) for x in (predicted, expected))
        return float(cosine_similarity(one - one.mean(), other - other.mean(), dim=0).clamp(-1, 1))


SAMPLES: dict[str, type[Component]] = {
    "loss": SquaredError,
    "head": OneLayer,
    "combiner": Added,
    "metric": Cosine,
}


def completed(component: type[Component], options: dict[str, Any]) -> dict[str, Any]:
    """The options given, and a value for every one that is required and missing, where the kit knows one."""
    missing = {
        name: value
        for name, option in known_options(component).items()
        if option.required and name not in options
        for value in _value_of(option)
    }
    return {**missing, **options}


def _value_of(option: Option) -> list[Any]:
    annotation, _ = bare(option.annotation)
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        annotation, _ = bare(args[0])
        origin, args = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, Component) and annotation.kind in SAMPLES:
        return [SAMPLES[annotation.kind]()]
    if origin in (list, tuple) and args:
        inner, _ = bare(args[0])
        if isinstance(inner, type) and issubclass(inner, Component) and inner.kind in SAMPLES:
            return [origin([SAMPLES[inner.kind]()])]
    values = [value for value in edge_values(option) if value is not None]
    if not values and annotation in (int, float):
        values = [annotation(1)]
    return values[:1] if values or origin is Literal else []
