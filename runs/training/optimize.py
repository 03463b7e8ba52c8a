"""One optimizer step as combiners see it."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cached_property, reduce

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from taskloom.core import Gradients, Group, Step, densify_gradients, place_arrays
from taskloom.core.errors import NotFiniteError
from taskloom.runs.training.cell import Run
from taskloom.runs.training.machine import annotate_oom
from taskloom.runs.training.microbatch import PartedPass, parts_of
from taskloom.runs.training.stage import StageState
from taskloom.runs.training.together import Together


class GroupStep(Step):
    """One optimizer step over a group of task batches, as combiners use it.

    It counts the ``examples`` of the group and the tasks' backward passes, ``backwards``.
    """

    def __init__(self, group: Group, run: Run, state: StageState) -> None:
        self._batches = {batch.task: batch.rows for batch in group}
        self.tasks = tuple(self._batches)
        self._model, self._feeds, self._state, self._device = run.model, run.train, state, run.device
        self.shared, self._most = state.shared, state.micro_batch
        self.examples, self.backwards = sum(map(len, self._batches.values())), 0

    @cached_property
    def _together(self) -> Together:
        """The batches of all tasks, prepared once for all passes of the step."""
        return Together(self._model, self._batches, self._feeds)

    def own(self, task: str) -> Sequence[nn.Parameter]:
        return self._model.own_parameters(task)

    def observe(self, gramian: Tensor, weights: Tensor) -> None:
        self._state.diagnostics.add_gramian(self.tasks, gramian, weights)

    def backward(self, task: str, scale: float = 1.0) -> Tensor:
        self.backwards += 1
        loss = self._run(task, scale)
        self._check_gradients([task])
        return loss

    def add_up(self, factors: Sequence[float]) -> dict[str, Tensor]:
        if self._most is not None:  # one task, and a part of its batch, at a time
            return super().add_up(factors)
        self.backwards += len(self.tasks)
        losses = self._together.losses()
        self._check_losses(losses)
        learning = [(loss, factor) for loss, factor in zip(losses.values(), factors, strict=True) if loss.requires_grad]
        if learning:  # a frozen encoder under a head without weights has nothing to learn
            roots, weights = zip(*learning, strict=True)
            torch.autograd.backward(roots, [torch.full_like(root, w) for root, w in zip(roots, weights, strict=True)])
        densify_gradients(self.shared)
        self._check_gradients(self.tasks, self.shared)
        return {task: loss.detach() for task, loss in losses.items()}

    def gradients(self) -> tuple[dict[str, Tensor], list[Gradients]]:
        replays = any(self._model.loss(task).replays for task in self.tasks)
        if self._most is not None or len(self.tasks) == 1 or replays or not self._model.encoder.takes_copies:
            return super().gradients()
        self.backwards += len(self.tasks)
        losses, task_gradients = self._together.gradients(self.shared)
        self._check_losses(losses)
        self._check_gradients(self.tasks)
        return losses, task_gradients

    @torch.no_grad()
    def evaluate(self, task: str) -> Tensor:
        return self._run(task)

    def apply(self) -> None:
        trained, optimizer, clip = self._state.trained, self._state.optimizer, self._state.stage["clip"]
        densify_gradients(trained)  # an encoder may give its embeddings sparse gradients
        norm = None if clip is None else nn.utils.clip_grad_norm_(trained, clip)
        gradients = [parameter.grad for parameter in trained if parameter.grad is not None]
        if self._state.diagnostics.due and gradients:
            norm = torch.stack(torch._foreach_norm(gradients)).norm() if norm is None else norm
            self._state.read(norm[None], lambda values: self._state.diagnostics.add_norm(values[0]))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def annotate_oom(self) -> AbstractContextManager[None]:
        """Attribute an error for lack of memory outside a single task's pass to the largest batch."""
        return self._naming(max(self._batches, key=lambda task: len(self._batches[task])))

    @property
    def micro_batch(self) -> int:
        """The largest number of examples of a task in memory at a time."""
        return max(map(self._size, self.tasks), default=0)

    def _size(self, task: str) -> int:
        """The number of examples of a task in memory at a time."""
        count = len(self._batches[task])
        return count if self._most is None else min(count, self._most)

    def _naming(self, task: str) -> AbstractContextManager[None]:
        return annotate_oom(task, micro_batch=self._size(task), batch=len(self._batches[task]))

    def _parts(self, task: str) -> list[tuple[float, NDArray[np.int64]]]:
        """The rows that a loss sees at a time, each part with its share of the batch."""
        rows, size = self._batches[task], self._size(task)
        if len(rows) <= size or not self._model.loss(task).separable:
            return [(1.0, rows)]
        return [(len(part) / len(rows), part) for part in parts_of(rows, size)]

    def _run(self, task: str, scale: float = 1.0) -> Tensor:
        """The loss of a task's batch, with a backward pass for each part where gradients are recorded."""
        losses = []
        with self._naming(task):
            for part, (share, rows) in enumerate(self._parts(task)):
                loss = self._loss(task, rows, part)
                if loss.requires_grad:  # a frozen encoder under a head without weights has nothing to learn
                    torch.autograd.backward(loss if share * scale == 1.0 else loss * (share * scale))
                losses.append(share * loss.detach())
        return reduce(torch.add, losses)

    def _loss(self, task: str, rows: NDArray[np.int64], part: int) -> Tensor:
        """The loss of these rows; with more rows than fit in memory at a time, it is computed on cached vectors."""
        criterion, feed, size = self._model.loss(task), self._feeds[task], self._size(task)
        passes = []
        for part_rows in parts_of(rows, size):
            tokens, (device_rows,) = feed.host_tokens(part_rows).sent(self._device, part_rows)
            passes.append(self._model.forward_pass(task, tokens, device_rows, part=part))
        whole = passes[0] if len(passes) == 1 else PartedPass(passes, loss=criterion.name)
        loss: Tensor = criterion(whole(None), place_arrays([feed.host_target(rows)], self._device)[0])
        if isinstance(whole, PartedPass):
            whole.final = True
        self._check_losses({task: loss})
        return loss

    def _check_losses(self, losses: dict[str, Tensor]) -> None:
        """Raise ``NotFiniteError`` for a loss that is not finite."""
        tasks = tuple(losses)

        def judge(values: list[float]) -> None:
            for task, value in zip(tasks, values, strict=True):
                if not math.isfinite(value):
                    raise NotFiniteError(f"the loss {self._model.loss(task).name!r} of task {task!r} is {value}")

        self._state.read(torch.stack([loss.detach().float() for loss in losses.values()]), judge)

    def _check_gradients(self, tasks: Sequence[str], shared: Sequence[nn.Parameter] = ()) -> None:
        """Raise ``NotFiniteError`` for a gradient of a head, a loss or ``shared`` that is not finite."""
        # Combiners check the per-task gradients of shared parameters themselves.
        owners = [(parameter, task) for task in tasks for parameter in self.own(task)]
        owners += [(parameter, "") for parameter in shared]
        known = [(p.grad, task) for p, task in owners if p.grad is not None and not p.grad.is_sparse]
        if not known:
            return
        gradients, names = zip(*known, strict=True)

        def judge(values: list[float]) -> None:
            for task, value in zip(names, values, strict=True):
                if not math.isfinite(value) and task:
                    head, loss = self._model.head(task).name, self._model.loss(task).name
                    raise NotFiniteError(f"the gradient of task {task!r} is not finite (head {head!r}, loss {loss!r})")
            if not all(map(math.isfinite, values)):
                self.blame(again=self._device.type == "cpu")

        self._state.read(torch.stack(torch._foreach_norm(gradients)), judge)
