"""AdamW, learning-rate schedules, and one optimizer step as combiners see it."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from taskloom.core import Group, Prediction, TrainingError, densify_gradients, predict
from taskloom.runs.feed import Feed
from taskloom.runs.model import Model


def make_optimizer(parameters: Sequence[nn.Parameter], options: dict[str, Any]) -> torch.optim.AdamW:
    """AdamW over the parameters, in one fused kernel."""
    # An empty list is no error here: an untrained baseline, or heads without weights on a frozen encoder.
    groups = [{"params": list(parameters)}]
    return torch.optim.AdamW(
        groups,
        lr=options["lr"],
        betas=tuple(options["betas"]),
        eps=options["eps"],
        weight_decay=options["weight_decay"],
        fused=True,
    )


def rate_factor(step: int, steps: int, schedule: dict[str, Any]) -> float:
    """The share of the full learning rate at a step (counted from 0) of a stage of ``steps`` steps.

    >>> [rate_factor(step, 10, {"name": "linear", "warmup": 2}) for step in (0, 1, 2, 6, 9)]
    [0.5, 1.0, 1.0, 0.5, 0.125]
    """
    warmup: float = schedule["warmup"] if schedule["warmup"] >= 1 else schedule["warmup"] * steps
    if step + 1 < warmup:
        return (step + 1) / warmup
    progress = min(1.0, max(0.0, (step - warmup) / max(1.0, steps - warmup)))
    if schedule["name"] == "linear":
        return 1.0 - progress
    if schedule["name"] == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    return 1.0


class GroupStep:
    """One optimizer step over a group of task batches: what a combiner is given (``core.Step``)."""

    def __init__(
        self,
        group: Group,
        *,
        model: Model,
        feeds: dict[str, Feed],
        shared: Sequence[nn.Parameter],
        trained: Sequence[nn.Parameter],
        optimizer: torch.optim.Optimizer,
        clip: float | None,
    ) -> None:
        self._batches = {batch.task: batch.rows for batch in group}
        self._model, self._feeds = model, feeds
        self.shared, self._trained = shared, trained
        self._optimizer, self._clip = optimizer, clip

    @property
    def tasks(self) -> Sequence[str]:
        return tuple(self._batches)

    def own(self, task: str) -> Sequence[nn.Parameter]:
        return self._model.own_parameters(task)

    def backward(self, task: str, scale: float = 1.0) -> Tensor:
        loss = self._loss(task)
        if loss.requires_grad:  # a frozen encoder under a head without weights has nothing to learn
            torch.autograd.backward(loss if scale == 1.0 else loss * scale)
        return loss.detach()

    def evaluate(self, task: str) -> Tensor:
        with torch.no_grad():
            return self._loss(task)

    def apply(self) -> None:
        densify_gradients(self._trained)  # an encoder may give its embeddings sparse gradients
        if self._clip is not None:
            nn.utils.clip_grad_norm_(self._trained, self._clip)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def _loss(self, task: str) -> Tensor:
        rows, feed = self._batches[task], self._feeds[task]
        prediction: Prediction = predict(
            self._model.encoder, self._model.head(task), feed.tokens(rows), torch.from_numpy(rows)
        )
        criterion = self._model.loss(task)
        loss: Tensor = criterion(prediction, feed.target(rows))
        if not torch.isfinite(loss):
            raise TrainingError(f"the loss {criterion.name!r} of task {task!r} is {loss.item()}")
        return loss
