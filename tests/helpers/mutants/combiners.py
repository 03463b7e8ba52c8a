"""Combiners that break a law."""

from typing import Any

import torch
from mutants.base import Added, mutant, then
from torch import Tensor

from taskloom.core import Step


def weighed(change: Any) -> Any:
    """Weights that are changed."""
    return then(Added.weights, change)


class Chance(Added):
    """Weights that are drawn."""

    name = "chance"

    def weights(self, gramian: Tensor) -> Tensor:
        return 1 + torch.rand(len(gramian), generator=self.generator, dtype=torch.float64)


class Stateful(Added):
    """Weighs each update by a buffer."""

    name = "stateful"
    factor: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factor", torch.ones((), dtype=torch.float64))
        self.total, self.history = 0.0, list[Any]()
        self.learnt = torch.nn.Parameter(torch.ones((), dtype=torch.float64))

    def weights(self, gramian: Tensor) -> Tensor:
        return super().weights(gramian) * self.factor.detach().to(gramian.device)

    def epoch_ended(self, *, epoch: int, losses: dict[str, float]) -> None:
        self.factor.fill_(1 / (1 + epoch))


def by_buffer(self: Any, gramian: Tensor) -> Tensor:
    return Added.weights(self, gramian) * self.factor


def by_history(self: Any, weights: Tensor, gramian: Tensor) -> Tensor:
    if len(self.history) < 2:
        return weights
    before, last = self.history
    return weights * torch.tensor([last[task] / before[task] for task in last])


def counting(self: Any, weights: Tensor, gramian: Tensor) -> Tensor:
    self.total += 1.0
    return weights * self.total


def keeping_the_graph(self: Any, weights: Tensor, gramian: Tensor) -> Tensor:
    self.factor = (self.factor + self.learnt) / 2
    return weights * self.factor.detach().to(gramian.device)


def into_a_list(self: Any, *, epoch: int, losses: dict[str, float]) -> None:
    self.history = [*self.history, losses][-2:]


def leaking(self: Any, step: Any) -> dict[str, Tensor]:
    """All heads share one gradient."""
    heads, apply = list(step.heads.values())[: len(step.tasks)], step.apply

    def mixed() -> None:
        total = torch.stack([head.grad for head in heads]).sum(0)
        for head in heads:
            head.grad = total.clone()
        apply()

    step.apply = mixed
    losses = Added.update(self, step)
    step.apply = apply
    return losses


def unchecked(self: Any, step: Step) -> dict[str, Tensor]:
    """Steps with whatever the gradient is."""
    losses = {task: step.backward(task) for task in step.tasks}
    for parameter in step.shared:
        if parameter.grad is not None:
            parameter.grad = parameter.grad.to_dense()
    step.apply()
    return losses


def twice(self: Any, losses: dict[str, Tensor], step: Step) -> dict[str, Tensor]:
    return {task: 2 * loss for task, loss in losses.items()}


def through_numpy(self: Any, step: Step) -> dict[str, Tensor]:
    step.shared[0].detach().cpu().numpy()
    return Added.update(self, step)


PLACES = weighed(lambda self, weights, gramian: weights * torch.arange(1, len(weights) + 1))
SOUND: list[tuple[type, dict[str, Any]]] = [
    *((combiner, {}) for combiner in (Added, Chance, Stateful)),
]
MUTANTS = {
    "weights are one finite number per task": [
        mutant(
            Added,
            "divides by a length that may be zero",
            weights=lambda self, gramian: 1 / gramian.diagonal().sqrt(),
        ),
        mutant(
            Added,
            "writes to the Gramian",
            weights=weighed(lambda self, weights, gramian: weights + 0 * gramian.add_(1).sum()),
        ),
    ],
    "an update moves the shared parameters": [
        mutant(Added, "keeps them", weights=weighed(lambda self, weights, gramian: 0 * weights)),
        mutant(Added, "returns other losses", update=then(Added.update, twice)),
    ],
    "a head learns from its own task only": [mutant(Added, "leaks", update=leaking)],
    "the order of tasks does not matter": [
        mutant(Added, "weighs by place", weights=PLACES),
        mutant(
            Chance,
            "weighs by place and chance",
            weights=lambda self, gramian: Chance.weights(self, gramian) * torch.arange(1, len(gramian) + 1),
        ),
    ],
    "it works in half precision": [mutant(Added, "goes through numpy", update=through_numpy)],
    "it works on a gpu": [
        mutant(Stateful, "weighs by a buffer, which is not where the Gramian is", weights=by_buffer),
    ],
    "its randomness comes from its generator": [
        mutant(Added, "draws", weights=weighed(lambda self, weights, gramian: weights + 0 * torch.rand(1)[0])),
    ],
    "its state survives saving": [
        mutant(Stateful, "counts updates in a plain number", weights=weighed(counting)),
        mutant(Stateful, "keeps a list", epoch_ended=into_a_list, weights=weighed(by_history)),
        mutant(Stateful, "keeps a graph in a buffer", weights=weighed(keeping_the_graph)),
    ],
    "a gradient that is not finite names its task": [mutant(Added, "does not look", update=unchecked)],
}
