"""Dynamic weight average."""

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from taskloom.plugins.combiners.fixed import FixedWeights


class DWA(FixedWeights):
    """Weighs a task the more, the more slowly its loss fell over the last two epochs.

    λᵢ = T · softmax(rᵢ/τ), with rᵢ = Lᵢ(t−1)/Lᵢ(t−2) the ratio of its mean training losses in the last two epochs. In
    the first two epochs, and for a task that has not been in two epochs, r = 1. The weights sum to the number of
    the stage's tasks. The losses are state: they are saved and restored.

    Reads: each epoch's mean training losses, which should be above zero; keeps no gradient. The heads' own
    parameters get the weight too.

    Options:
        temperature: τ; the larger, the more equal the weights; 2 as in the paper

    Siblings: equal weights are those of ``sum``. ``uncertainty`` and ``famo`` change their weights in every step.

    Reference: Liu, Johns and Davison, "End-to-End Multi-Task Learning with Attention", CVPR 2019, section 3.3.

    Example:
        {"stages": [{"combiner": {"name": "dwa", "temperature": 2.0}}]}
    """

    name = "dwa"
    history: Tensor  # [2, T] the mean losses of the last epoch and of the one before; NaN where there is none

    def __init__(self, *, temperature: Annotated[float, Field(gt=0)] = 2.0) -> None:
        super().__init__()
        self.temperature = temperature
        self.tasks: list[str] = []

    def prepare(self, *, tasks: Sequence[str]) -> None:
        self.tasks = list(tasks)
        self.register_buffer("history", torch.full((2, len(tasks)), torch.nan, dtype=torch.float64))

    def factors(self, tasks: Sequence[str]) -> list[float]:
        last, before = self.history.cpu()
        ratios = torch.where((before > 0) & last.isfinite(), last / before, 1.0)  # [T]
        weights = len(self.tasks) * torch.softmax(ratios / self.temperature, 0)
        return [float(weights[self.tasks.index(task)]) for task in tasks]

    def metrics(self) -> dict[str, float]:
        """The weight of each task."""
        return dict(zip(self.tasks, self.factors(self.tasks), strict=True))

    def epoch_ended(self, *, epoch: int, losses: dict[str, float]) -> None:
        for task, loss in losses.items():
            index = self.tasks.index(task)
            self.history[1, index] = self.history[0, index]
            self.history[0, index] = loss
