"""A small optimizer step that combiners are tried on."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from taskloom.core.testing.law import generator, require


class SmallStep:
    """A step over a small model: a table of embeddings and a layer that all tasks share, one head per task.

    ``spoilt`` names a task whose gradient is not finite; ``scale`` multiplies every gradient, and not the losses;
    ``order`` is that of the tasks.
    """

    def __init__(
        self,
        count: int,
        spoilt: str | None = None,
        *,
        order: Sequence[int] | None = None,
        scale: float = 1.0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        draws = generator(7)
        names = tuple(f"task{k}" for k in range(count))
        self.tasks: Sequence[str] = names if order is None else tuple(names[k] for k in order)
        self.spoilt, self.scale = spoilt, scale
        self.shared = [
            nn.Parameter(torch.randn(40, 4, generator=draws).to(dtype)),
            nn.Parameter(torch.randn(4, 4, generator=draws).to(dtype)),
        ]
        self.heads = {task: nn.Parameter(torch.randn(4, generator=draws).to(dtype)) for task in (*names, "absent")}
        self.ids = {task: torch.randint(40, (5,), generator=draws) for task in self.heads}
        self.seen: list[dict[str, Tensor | None]] = []  # the heads' gradients at each apply

    def loss(self, task: str) -> Tensor:
        table, layer = self.shared
        states = (nn.functional.embedding(self.ids[task], table, sparse=True) @ layer).tanh()  # [5, 4]
        return (states @ self.heads[task]).sin().add(1.5).sum()  # above zero, as losses are

    def own(self, task: str) -> Sequence[nn.Parameter]:
        return [self.heads[task]]

    def backward(self, task: str, scale: float = 1.0) -> Tensor:
        loss = self.loss(task)
        torch.autograd.backward(loss * (scale * self.scale))
        if task == self.spoilt and self.shared[1].grad is not None:
            self.shared[1].grad[0, 0] = float("nan")
        return loss.detach()

    def evaluate(self, task: str) -> Tensor:
        with torch.no_grad():
            return self.loss(task)

    def apply(self) -> None:
        self.seen.append({task: None if p.grad is None else p.grad.clone() for task, p in self.heads.items()})
        with torch.no_grad():
            for parameter in [*self.shared, *self.heads.values()]:
                if parameter.grad is not None:
                    require(not parameter.grad.is_sparse, "a gradient is sparse when the step is applied")
                    # Small steps where gradients are large, so that a second step starts from the same place.
                    parameter.sub_(parameter.grad, alpha=0.05 / self.scale)
                parameter.grad = None

    def values(self) -> Tensor:
        """All parameters in a row."""
        return torch.cat([p.detach().flatten() for p in [*self.shared, *self.heads.values()]])
