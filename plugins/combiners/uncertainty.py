"""Weights from learned uncertainty."""

from collections.abc import Sequence
from math import exp
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from taskloom.core import GradientCombiner, Step


class Uncertainty(GradientCombiner):
    """Weighs each task's loss by how certain the model is of it, which is learned along with the model.

    L = Σᵢ ½ exp(−sᵢ) Lᵢ + ½ sᵢ, with sᵢ = log σᵢ² the log-variance of task i. The s are parameters of the combiner,
    start at 0 (a weight of ½) and are trained by the run's optimizer with ∂L/∂sᵢ = ½ − ½ exp(−sᵢ) Lᵢ, which takes
    no backward pass. At rest exp(sᵢ) = Lᵢ: a task weighs 1/(2Lᵢ). The paper's term for classes, exp(−s) L + ½ s,
    rests at the same weight, so all losses are treated alike.

    Reads: the loss of every task in the step; keeps no gradient. The heads' own parameters get the weight too. The
    log-variance of a task that is not in a step stays as it is.

    Options:
        rate: how many times the optimizer's learning rate the log-variances move at; with AdamW at 1e-5 they would
            need 100000 steps for a change of 1, so a value such as 100 suits fine-tuning

    Siblings: ``weighted`` has the weights fixed, ``dwa`` derives them from how fast losses fall.

    Reference: Kendall, Gal and Cipolla, "Multi-Task Learning Using Uncertainty to Weigh Losses for Scene Geometry
    and Semantics", CVPR 2018, with s in place of σ as the paper advises.

    Example:
        {"stages": [{"combiner": {"name": "uncertainty", "rate": 100.0}}]}
    """

    name = "uncertainty"

    def __init__(self, *, rate: Annotated[float, Field(gt=0)] = 1.0) -> None:
        super().__init__()
        self.rate = rate
        self.tasks: list[str] = []
        # sᵢ/rate: an optimizer that ignores scale then moves s rate times as far
        self.log_variances = nn.ParameterList()

    def prepare(self, *, tasks: Sequence[str]) -> None:
        self.tasks = list(tasks)
        # A parameter per task, because the optimizer skips those without a gradient.
        self.log_variances = nn.ParameterList([nn.Parameter(torch.zeros(())) for _ in tasks])

    def update(self, step: Step) -> dict[str, Tensor]:
        parameters = [self.log_variances[self.tasks.index(task)] for task in step.tasks]
        weights = self.metrics()
        factors = [weights[task] for task in step.tasks]
        losses = step.add_up(factors)
        for parameter, factor, loss in zip(parameters, factors, losses.values(), strict=True):
            parameter.grad = (self.rate * (0.5 - factor * loss)).to(parameter)
        step.apply()
        return losses

    def metrics(self) -> dict[str, float]:
        """The weight of each task."""
        weights = (0.5 * exp(-self.rate * parameter.item()) for parameter in self.log_variances)
        return dict(zip(self.tasks, weights, strict=True))
