"""Fast adaptive multi-task optimization."""

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from taskloom.core import (
    GradientCombiner,
    Gradients,
    Step,
    TrainingError,
    combine_gradients,
    gramian_of,
    take_gradients,
)

_TINY = 1e-8
_BETAS = (0.9, 0.999)


class FAMO(GradientCombiner):
    """Lowers all losses at the same relative speed, from loss values alone.

    The step follows Σᵢ wᵢ gᵢ with wᵢ = c zᵢ/Lᵢ, z = softmax(ξ) and c = 1/Σ(zᵢ/Lᵢ): the gradient of Σ zᵢ log Lᵢ, with
    weights that sum to 1. After the step the losses are evaluated again on the same batches, and ξ moves along
    −(δ + γξ) with δ = (∂z/∂ξ)ᵀ (log L before − log L after): a task whose loss fell faster weighs less from then on.
    ξ starts at 0 and is state: it is saved and restored.

    Reads: the loss of every task before and after the step (one more forward pass; in training, under new
    dropout); holds two gradients at a time, however many tasks. Losses should not be below zero. A task whose loss
    is zero has nothing to learn from the batch and is left out of the step. The heads' own parameters get the
    weight too. In a step with only some of the tasks, z is the softmax over those.

    Options:
        rate: learning rate β of ξ
        decay: γ, which draws ξ back to equal weights
        rule: "adam" moves ξ by Adam, as the authors' code does, "descent" by plain gradient descent, as their
            Algorithm 1 is printed

    Siblings: the weights of T tasks sum to 1, as those of ``mean`` do, where those of ``sum`` add up to T: AdamW
    all but cancels that factor, clipping does not. ``dwa`` compares epochs instead of steps; ``nash_mtl`` gets the
    same balance from gradients.

    Reference: Liu et al., "FAMO: Fast Adaptive Multitask Optimization", NeurIPS 2023, Algorithm 1.

    Example:
        {"stages": [{"combiner": {"name": "famo", "rate": 0.025}}]}
    """

    name = "famo"
    logits: Tensor  # [T] ξ
    moments: Tensor  # [2, T] Adam's running means of the gradient and of its square
    counts: Tensor  # [T] updates of each logit

    def __init__(
        self,
        *,
        rate: Annotated[float, Field(gt=0)] = 0.025,
        decay: Annotated[float, Field(ge=0)] = 0.01,
        rule: Literal["adam", "descent"] = "adam",
    ) -> None:
        super().__init__()
        self.rate, self.decay, self.rule = rate, decay, rule
        self.tasks: list[str] = []

    def prepare(self, *, tasks: Sequence[str]) -> None:
        self.tasks = list(tasks)
        self.register_buffer("logits", torch.zeros(len(tasks), dtype=torch.float64))
        self.register_buffer("moments", torch.zeros(2, len(tasks), dtype=torch.float64))
        self.register_buffer("counts", torch.zeros(len(tasks), dtype=torch.float64))

    def update(self, step: Step) -> dict[str, Tensor]:
        task_indices = torch.tensor([self.tasks.index(task) for task in step.tasks], device=self.logits.device)  # [T]
        shares = torch.softmax(self.logits[task_indices], 0).cpu()  # [T] z
        losses, before = self._step(step, shares)
        after = [_value(task, step.evaluate(task)) for task in step.tasks]
        log_losses = (torch.tensor([before, after], dtype=torch.float64) + _TINY).log()  # [2, T]
        gain = torch.where(torch.tensor(before) > 0, log_losses[0] - log_losses[1], 0.0)
        self._move_logits(task_indices, (shares * (gain - shares @ gain)).to(self.logits))
        return losses

    def metrics(self) -> dict[str, float]:
        """The share z of each task."""
        return dict(zip(self.tasks, torch.softmax(self.logits, 0).tolist(), strict=True))

    def _step(self, step: Step, shares: Tensor) -> tuple[dict[str, Tensor], list[float]]:
        """Take the optimizer step; the common factor c is known only after the last task."""
        losses: dict[str, Tensor] = {}
        values: list[float] = []
        factors: list[float] = []
        running: list[Gradients] = []
        for task, share in zip(step.tasks, shares.tolist(), strict=True):
            losses[task] = step.backward(task)
            values.append(_value(task, losses[task]))
            factors.append(share / (values[-1] + _TINY) if values[-1] > 0 else 0.0)
            gradients = take_gradients(step.shared)
            gramian_of([gradients], [task])  # finite, or an error that names the task
            weights = torch.tensor([1.0, factors[-1]][-len(running) - 1 :], dtype=torch.float64)
            combine_gradients([*running, gradients], weights, step.shared)
            running = [take_gradients(step.shared)]
        total = sum(factors)
        common = 1 / total if total > 0 else 0.0
        combine_gradients(running, torch.tensor([common], dtype=torch.float64), step.shared)
        for task, factor in zip(step.tasks, factors, strict=True):
            for parameter in step.own(task):
                if parameter.grad is not None:
                    parameter.grad.mul_(factor * common)
        step.apply()
        return losses, values

    def _move_logits(self, tasks: Tensor, slope: Tensor) -> None:
        """Move the logits at the indices ``tasks`` along −(slope + γξ)."""
        slope = slope + self.decay * self.logits[tasks]
        if self.rule == "adam":
            self.counts[tasks] += 1
            means = []
            for moment, beta, observed in zip(self.moments, _BETAS, (slope, slope**2), strict=True):
                moment[tasks] = beta * moment[tasks] + (1 - beta) * observed
                means.append(moment[tasks] / (1 - beta ** self.counts[tasks]))
            slope = means[0] / (means[1].sqrt() + _TINY)
        self.logits[tasks] -= self.rate * slope


def _value(task: str, loss: Tensor) -> float:
    value = loss.item()
    if value < 0:
        raise TrainingError(f"the loss of task {task!r} is {value:g}; combiner 'famo' needs losses of at least 0")
    return value
