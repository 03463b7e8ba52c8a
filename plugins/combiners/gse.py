"""Gradient surgery followed by a plain step."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from taskloom.core import GradientCombiner, Gradients, Step, combine_gradients, gramian_of
from taskloom.plugins.combiners.pcgrad import PCGrad


class GSE(GradientCombiner):
    """Two optimizer steps per batch: one by gradient surgery, then one on the plain summed loss.

    θ′ = step(θ, sum or mean of the projected gradients of ``pcgrad``), θ″ = step(θ′, Σᵢ gᵢ): each step is a whole
    one, with its own clipping and optimizer update (AdamW counts two). The paper leaves open which gradients the
    second step uses: "fresh" ones at the moved parameters cost another forward and backward pass of every task;
    "kept" ones are those of the first pass, so the two steps differ in the projection only.

    Reads: the gradients of the shared parameters. A head's own parameters get the whole gradient of their task in
    both steps. The reported loss is that of the first pass. No more memory than ``pcgrad`` with "fresh", one
    gradient more with "kept".

    Options:
        reduction: "sum" or "mean" of the projected gradients in the first step, "mean" as in the paper
        second: gradients of the second step: "fresh" at the moved parameters, or "kept" from the first pass

    Siblings: its first step is ``pcgrad``, its second ``sum``; without conflicts, with "sum" and "fresh" gradients, it
    is two steps of ``sum`` on the same batch.

    Reference: Cortes, Hsieh and Fu, "An Exploration of Fine-Tuning Techniques on minBERT Optimizations", CS224N,
    experiment 1c.

    Example:
        {"stages": [{"combiner": {"name": "gse", "second": "kept"}}]}
    """

    name = "gse"

    def __init__(
        self, *, reduction: Literal["sum", "mean"] = "sum", second: Literal["fresh", "kept"] = "fresh"
    ) -> None:
        super().__init__()
        self.second = second
        self.surgery = PCGrad(reduction=reduction)

    def update(self, step: Step) -> dict[str, Tensor]:
        if self.second == "fresh":
            losses = self.surgery.update(step)
            step.add_up([1.0] * len(step.tasks))
        else:
            losses, kept = self._surgery_step(step)
            for parameter, gradient in kept:
                parameter.grad = gradient
        step.apply()
        return losses

    def _surgery_step(self, step: Step) -> tuple[dict[str, Tensor], list[tuple[nn.Parameter, Tensor]]]:
        """Take the first step; returns its losses and each parameter's summed gradient."""
        losses, gradients_by_task = step.gradients()
        own = [parameter for task in step.tasks for parameter in step.own(task)]
        kept = [(parameter, parameter.grad.clone()) for parameter in own if parameter.grad is not None]
        gramian = gramian_of(gradients_by_task, step.tasks)
        weights = self.surgery.weights(gramian)
        step.observe(gramian, weights)
        for index, parameter in enumerate(step.shared):
            task_gradients = [[gradients[index]] for gradients in gradients_by_task]
            for gradients in gradients_by_task:
                gradients[index] = None
            total = _sum_of(task_gradients, parameter)
            if total is not None:
                kept.append((parameter, total))
            combine_gradients(task_gradients, weights, [parameter])
        step.apply()
        return losses, kept


def _sum_of(task_gradients: Sequence[Gradients], parameter: nn.Parameter) -> Tensor | None:
    """The sum of one parameter's gradients over the tasks, computed on copies because combining uses them up."""
    copies: list[Gradients] = [[None if g is None else g.clone() for g in gradients] for gradients in task_gradients]
    combine_gradients(copies, torch.ones(len(copies)), [parameter])
    return parameter.grad
