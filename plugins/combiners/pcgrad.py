"""Gradient surgery."""

from typing import Literal

import torch
from torch import Tensor

from taskloom.core import GradientCombiner


class PCGrad(GradientCombiner):
    """Takes out of each task's gradient what works against another task.

    For each task i, over the other tasks j in random order: if gᵢ·gⱼ < 0 then gᵢ ← gᵢ − (gᵢ·gⱼ / ‖gⱼ‖²) gⱼ, with
    gⱼ always the original gradient. The update is the mean or the sum of the projected gradients. A projected
    gradient is a combination of the original ones, so its coefficients follow from the Gramian alone.

    Reads: the gradients of the shared parameters. A head's own parameters take no part: they get the whole
    gradient of their task, under either reduction.

    Options:
        reduction: "mean" or "sum" of the projected gradients

    Siblings: without conflicts the shared parameters get what ``mean`` or ``sum`` gives them.

    Reference: Yu et al., "Gradient Surgery for Multi-Task Learning", NeurIPS 2020, Algorithm 1.

    Example:
        {"stages": [{"combiner": {"name": "pcgrad", "reduction": "sum"}}]}
    """

    name = "pcgrad"

    def __init__(self, *, reduction: Literal["mean", "sum"] = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def weights(self, gramian: Tensor) -> Tensor:
        count = len(gramian)
        projected = torch.eye(count, dtype=gramian.dtype)  # [T, T] row i: projected gradient i in original ones
        for i in range(count):
            for j in self._order(count):
                # The norm may underflow to zero where the inner product does not.
                if j == i or gramian[j, j] <= 0:
                    continue
                inner = gramian[j] @ projected[i]
                if inner < 0:
                    projected[i, j] -= inner / gramian[j, j]
        total = projected.sum(0)  # [T]
        return total / count if self.reduction == "mean" else total

    def _order(self, count: int) -> list[int]:
        device = "cpu" if self.generator is None else self.generator.device
        order: list[int] = torch.randperm(count, generator=self.generator, device=device).tolist()
        return order
