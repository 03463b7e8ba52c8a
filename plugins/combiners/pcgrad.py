"""Gradient surgery."""

from typing import Literal

import torch
from torch import Tensor

from taskloom.core import GradientCombiner, Step, combine_gradients, densify_gradients, gramian_of


class PCGrad(GradientCombiner):
    """Removes from each task's gradient the component that conflicts with another task's.

    For each task i, over the other tasks j in random order: if gᵢ·gⱼ < 0 then gᵢ ← gᵢ − (gᵢ·gⱼ / ‖gⱼ‖²) gⱼ, with
    gⱼ always the original gradient. The update is the sum or the mean of the projected gradients. A projected
    gradient is a combination of the original ones, so its coefficients follow from the Gramian alone.

    Reads: the gradients of the shared parameters. A head's own parameters take no part: they get the whole
    gradient of their task, under either reduction. With ``scope: all`` they do take part: a head's gradient counts
    in ‖gⱼ‖², which makes projections shorter, and the head's own gradient is multiplied by the sum of task j's
    coefficients over all projected gradients, under either reduction, since no other task has a gradient there to
    average with.

    Options:
        reduction: "sum" or "mean" of the projected gradients
        scope: "shared" (as in the paper) projects the gradients of shared parameters only; "all" projects those of
            the whole model, as the authors' TensorFlow code and Pytorch-PCGrad do
        include_self: let a projected gᵢ meet its own original gᵢ too, as LibMTL, Pytorch-PCGrad and the authors'
            code do; that changes something only with three tasks or more, where projections may have turned gᵢ
            against itself

    Siblings: without conflicts it is ``sum``, so the two compare like with like; with ``reduction: mean`` the shared
    parameters get what ``mean`` gives them. ``gradvac`` moves gradients towards the angle that tasks usually have;
    ``gse`` follows it with a plain step.

    Reference: Yu et al., "Gradient Surgery for Multi-Task Learning", NeurIPS 2020, Algorithm 1.

    Example:
        {"stages": [{"combiner": {"name": "pcgrad", "reduction": "mean"}}]}
    """

    name = "pcgrad"

    def __init__(
        self,
        *,
        reduction: Literal["sum", "mean"] = "sum",
        scope: Literal["shared", "all"] = "shared",
        include_self: bool = False,
    ) -> None:
        super().__init__()
        self.reduction = reduction
        self.scope = scope
        self.include_self = include_self

    def weights(self, gramian: Tensor) -> Tensor:
        return self._reduced(self._coefficients(gramian))

    def update(self, step: Step) -> dict[str, Tensor]:
        if self.scope == "shared":
            return super().update(step)
        losses, gradients = step.gradients()
        squares = []
        for task in step.tasks:
            densify_gradients(step.own(task))
            squares.append(gramian_of([[parameter.grad for parameter in step.own(task)]], [task])[0, 0])
        # Heads share no parameters, so they add to the norms only.
        gramian = gramian_of(gradients, step.tasks) + torch.stack(squares).diag()
        coefficients = self._coefficients(gramian)  # [T]
        step.observe(gramian, coefficients)
        combine_gradients(gradients, self._reduced(coefficients), step.shared)
        for task, factor in zip(step.tasks, coefficients.tolist(), strict=True):
            for parameter in step.own(task):
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)
        step.apply()
        return losses

    def _coefficients(self, gramian: Tensor) -> Tensor:
        """The sum of the projected gradients as coefficients of the original ones: [T, T] → [T]."""
        count = len(gramian)
        projected = torch.eye(count, dtype=gramian.dtype)  # [T, T] row i: coefficients of projected gradient i
        for i in range(count):
            for j in self._order(count):
                # The norm may underflow to zero where the inner product does not.
                if gramian[j, j] <= 0 or (j == i and not self.include_self):
                    continue
                inner = gramian[j] @ projected[i]
                if inner < 0:
                    projected[i, j] -= inner / gramian[j, j]
        return projected.sum(0)

    def _reduced(self, coefficients: Tensor) -> Tensor:
        return coefficients / len(coefficients) if self.reduction == "mean" else coefficients

    def _order(self, count: int) -> list[int]:
        device = "cpu" if self.generator is None else self.generator.device
        order: list[int] = torch.randperm(count, generator=self.generator, device=device).tolist()
        return order
