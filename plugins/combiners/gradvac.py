"""The gradient vaccine."""

from collections.abc import Sequence
from math import sqrt
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from taskloom.core import GradientCombiner, Step


class GradVac(GradientCombiner):
    """Moves each task's gradient to the angle that it usually has with the other tasks' gradients.

    For each task i, over the other tasks j in random order, with φ the cosine of gᵢ (as moved so far) and the original
    gⱼ, and φ̂ᵢⱼ its moving average: if φ < φ̂ then gᵢ ← gᵢ + ‖gᵢ‖ (φ̂√(1−φ²) − φ√(1−φ̂²)) / (‖gⱼ‖√(1−φ̂²)) gⱼ, after which
    their cosine is φ̂; then φ̂ ← (1−β) φ̂ + β φ. The averages start at 0 and are state: they are saved and restored.

    Reads: the gradients of the shared parameters. A head's own parameters get the whole gradient of their task,
    under either reduction. Averages are kept per pair of the stage's tasks; a step with fewer tasks updates theirs.

    Options:
        beta: how fast the averages follow, 0.01 as in the paper; with 0 they stay 0, which is ``pcgrad``
        reduction: "sum" (as in the paper) or "mean" of the moved gradients

    Siblings: ``pcgrad`` acts only on cosines below 0. Where no gradient is moved it is ``sum``.

    Reference: Wang et al., "Gradient Vaccine: Investigating and Improving Multi-task Optimization in Massively
    Multilingual Models", ICLR 2021, Algorithm 1, with the whole model as one group.

    Example:
        {"stages": [{"combiner": {"name": "gradvac", "beta": 0.01}}]}
    """

    name = "gradvac"
    targets: Tensor  # [T, T] φ̂

    def __init__(
        self, *, beta: Annotated[float, Field(ge=0, le=1)] = 0.01, reduction: Literal["sum", "mean"] = "sum"
    ) -> None:
        super().__init__()
        self.beta = beta
        self.reduction = reduction
        self.tasks: list[str] = []
        self._present: list[int] = []

    def prepare(self, *, tasks: Sequence[str]) -> None:
        self.tasks = list(tasks)
        self._present = list(range(len(tasks)))
        self.register_buffer("targets", torch.zeros(len(tasks), len(tasks), dtype=torch.float64))

    def update(self, step: Step) -> dict[str, Tensor]:
        self._present = [self.tasks.index(task) for task in step.tasks]
        return super().update(step)

    def weights(self, gramian: Tensor) -> Tensor:
        count = len(gramian)
        task_indices = torch.tensor(self._present, device=self.targets.device)  # [T]
        targets = self.targets[task_indices[:, None], task_indices].cpu()  # [T, T]
        moved = torch.eye(count, dtype=gramian.dtype)  # [T, T] row i: coefficients of moved gradient i
        for i in range(count):
            for j in self._order(i, count):
                squares = torch.stack([moved[i] @ gramian @ moved[i], gramian[j, j]])
                norm_i, norm_j = squares.clamp(min=0).sqrt().tolist()
                if norm_i == 0 or norm_j == 0:
                    continue
                cosine = min(max(float(gramian[j] @ moved[i]) / norm_i / norm_j, -1.0), 1.0)
                target = float(targets[i, j])
                moved[i, j] += _dose(cosine, target) * norm_i / norm_j
                targets[i, j] = (1 - self.beta) * target + self.beta * cosine
        self.targets[task_indices[:, None], task_indices] = targets.to(self.targets)
        return moved.mean(0) if self.reduction == "mean" else moved.sum(0)

    def _order(self, i: int, count: int) -> list[int]:
        device = "cpu" if self.generator is None else self.generator.device
        others = [j for j in range(count) if j != i]
        order: list[int] = torch.randperm(len(others), generator=self.generator, device=device).tolist()
        return [others[index] for index in order]


def _dose(cosine: float, target: float) -> float:
    """The multiple of unit gradient j that raises its cosine with unit gradient i to the target."""
    reach = sqrt(max(1 - target**2, 0.0))
    # No multiple of gⱼ makes two gradients parallel.
    if cosine >= target or reach < 1e-6:
        return 0.0
    return target * sqrt(1 - cosine**2) / reach - cosine
