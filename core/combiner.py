"""Interface 5 of 5: per-task gradients → one update."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NoReturn

import torch
from torch import Tensor, nn

from taskloom.core.component import Component
from taskloom.core.errors import NotFiniteError, Problem
from taskloom.core.gradients import Gradients, combine_gradients, densify_gradients, gramian_of, take_gradients


class Step(ABC):
    """One optimizer step as the runner offers it to a combiner."""

    #: The tasks of this step's group, in order.
    tasks: Sequence[str]
    #: The trainable parameters that several tasks share; a head's own never take part in combination.
    shared: Sequence[nn.Parameter]

    @abstractmethod
    def own(self, task: str) -> Sequence[nn.Parameter]:
        """The trainable parameters that one task has for itself: its head's and its loss's."""

    @abstractmethod
    def backward(self, task: str, scale: float = 1.0) -> Tensor:
        """Forward, loss and backward of one task: adds ``scale`` × its gradient to every ``.grad``.

        Returns the unscaled loss, detached; one that is not finite is an error that names the task. The task's
        activations are gone when this returns.
        """

    @abstractmethod
    def evaluate(self, task: str) -> Tensor:
        """The task's loss on this step's batch at the present parameters, without gradients."""

    @abstractmethod
    def observe(self, gramian: Tensor, weights: Tensor) -> None:
        """Record the Gramian [T, T] and the weights [T] for the run's diagnostics; changes nothing."""

    @abstractmethod
    def apply(self) -> None:
        """Clip, step the optimizer and clear the gradients."""

    def add_up(self, factors: Sequence[float]) -> dict[str, Tensor]:
        """Leave Σ wᵢ gᵢ in ``.grad``, dense and finite; returns each task's loss. A run does this in one pass."""
        losses = {task: self.backward(task, factor) for task, factor in zip(self.tasks, factors, strict=True)}
        densify_gradients(self.shared)
        gradients = [parameter.grad for parameter in self.shared if parameter.grad is not None]
        if gradients and not torch.stack(torch._foreach_norm(gradients)).isfinite().all():
            self.blame()
        return losses

    def blame(self, *, again: bool = True) -> NoReturn:
        """Raise an error that names the task whose gradient is not finite.

        ``again`` repeats the backward pass of each task; without it, where the step is long past, all tasks are named.
        """
        take_gradients(self.shared)
        for task in self.tasks if again else ():
            self.backward(task)
            gramian_of([take_gradients(self.shared)], [task])
        raise NotFiniteError(f"the summed gradient of tasks {', '.join(map(repr, self.tasks))} is not finite")

    def gradients(self) -> tuple[dict[str, Tensor], list[Gradients]]:
        """Each task's loss and its gradients of the shared parameters; those of its own parameters stay in ``.grad``.

        A run computes all of them in one pass where the encoder allows it.
        """
        losses: dict[str, Tensor] = {}
        gradients: list[Gradients] = []
        for task in self.tasks:
            losses[task] = self.backward(task)
            gradients.append(take_gradients(self.shared))
        return losses, gradients


class GradientCombiner(nn.Module, Component, ABC):
    """Turns per-task gradients into one update of the shared parameters.

    The common case is a pure function from the Gramian to weights: override :meth:`weights`. The base class computes
    each task's gradients, forms G[i, j] = gᵢ·gⱼ, and writes Σ wᵢ gᵢ over the first task's gradients. A combiner that
    needs more overrides :meth:`update`, with ``step.add_up`` where the weights are known beforehand, ``step.gradients``
    where they are not, and ``step.backward`` to process one task after another. A gradient that is not finite is an
    error that names the task, and every ``.grad`` is dense when ``step.apply`` is called.

    State that changes during training belongs in buffers; random numbers come from ``self.generator``.
    """

    kind: ClassVar[str] = "combiner"

    def __init__(self) -> None:
        super().__init__()
        self.generator: torch.Generator | None = None

    def problems(self, tasks: Sequence[str]) -> list[Problem]:
        """Options that do not fit the tasks of the stage, such as a name that is none of them.

        Called before anything is trained; each problem's path is the option's name.
        """
        return []

    def prepare(self, *, tasks: Sequence[str]) -> None:
        """Called once before a stage with the names of its tasks."""

    def weights(self, gramian: Tensor) -> Tensor:
        """The weight of each task's gradient: [T, T] → [T]. Pure, on the CPU, in float64."""
        raise NotImplementedError(f"combiner {self.name!r} should override weights() or update()")

    def update(self, step: Step) -> dict[str, Tensor]:
        """Carry out one step; returns each task's loss."""
        losses, gradients = step.gradients()
        gramian = gramian_of(gradients, step.tasks)
        weights = self.weights(gramian)
        step.observe(gramian, weights)
        combine_gradients(gradients, weights, step.shared)
        step.apply()
        return losses

    def metrics(self) -> dict[str, float]:
        """The combiner's own figures after an epoch, such as its current weights; for curves."""
        return {}

    def epoch_ended(self, *, epoch: int, losses: dict[str, float]) -> None:
        """Called after each epoch (counted from 1) with the mean training loss of each task."""
