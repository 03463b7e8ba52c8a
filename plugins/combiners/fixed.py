"""What combiners that weigh losses share: gradients add up where they arise."""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from taskloom.core import (
    GradientCombiner,
    Step,
    TrainingError,
    densify_gradients,
    gramian_of,
    take_gradients,
)


class FixedWeights(GradientCombiner):
    """Σ wᵢ gᵢ with weights that do not depend on the gradients.

    Each task's backward adds its scaled gradient to ``.grad``, so no gradient is ever kept per task. The heads'
    own parameters get the same weight as the shared ones: this is the gradient of the weighted sum of losses.
    """

    scales = True

    @abstractmethod
    def factors(self, tasks: Sequence[str]) -> list[float]:
        """The weight of each task of a step, in order."""

    def update(self, step: Step) -> dict[str, Tensor]:
        losses = add_up(step, self.factors(step.tasks))
        step.apply()
        return losses


def add_up(step: Step, factors: Sequence[float]) -> dict[str, Tensor]:
    """Leave Σ wᵢ gᵢ in ``.grad``, dense and finite; returns each task's loss."""
    losses: dict[str, Tensor] = {}
    for task, factor in zip(step.tasks, factors, strict=True):
        losses[task] = step.backward(task, factor)
    densify_gradients(step.shared)
    gradients = [parameter.grad for parameter in step.shared if parameter.grad is not None]
    if gradients and not torch.stack(torch._foreach_norm(gradients)).isfinite().all():
        _blame(step)
    return losses


def _blame(step: Step) -> None:
    """Find the task whose gradient is not finite by going through the tasks again, one at a time."""
    take_gradients(step.shared)
    for task in step.tasks:
        step.backward(task)
        gramian_of([take_gradients(step.shared)], [task])
    raise TrainingError(f"the summed gradient of tasks {', '.join(map(repr, step.tasks))} is not finite")
