"""Runs all tasks of a step in one pass: one kernel call for all of them keeps the cores busy.

The sequences of every task go through the encoder as one batch; then each task's head and loss see their own vectors.
Replays that losses request are batched in the same way, if all tasks request one at once. Where a combiner needs
per-task gradients, the encoder's parameters are replaced by per-task copies (see ``Encoder.takes_copies``), each of
which gets the gradient of its task's sequences: one forward and one backward pass, as for the sum.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from taskloom.core import (
    Gradients,
    Prediction,
    Replay,
    ReplayRequest,
    TaskGradients,
    Tokens,
    products_of,
    take_gradients,
)
from taskloom.core.forward import autocast_to
from taskloom.core.gradients import SMALL
from taskloom.runs.training.feed import Feed
from taskloom.runs.training.model import Model

Copies = dict[str, Tensor]


class Together:
    """The batches of several tasks on the device, and the forward and backward passes over them."""

    def __init__(self, model: Model, batches: Mapping[str, NDArray[np.int64]], feeds: Mapping[str, Feed]) -> None:
        self._model, self._names = model, tuple(batches)
        feeds_and_rows = [(feeds[task], rows) for task, rows in batches.items()]
        host = Tokens.join([feed.host_tokens(rows) for feed, rows in feeds_and_rows])
        arrays = [array for feed, rows in feeds_and_rows for array in (feed.host_target(rows), rows)]
        self._tokens, sent = host.sent(feeds_and_rows[0][0].device, *arrays)
        self.targets, self._rows = dict(zip(batches, sent[::2], strict=True)), sent[1::2]

    def losses(self) -> dict[str, Tensor]:
        """The loss of each task, with a graph that reaches all parameters."""
        weights = self._cast()
        predictions = dict(self._predictions(*self._encode(weights)))
        programs = {
            task: self._model.loss(task).program(prediction, self.targets[task])
            for task, prediction in predictions.items()
        }
        losses: dict[str, Tensor] = {}
        answers: Mapping[str, Any] = {}
        while len(losses) < len(programs):
            requests: dict[str, ReplayRequest] = {}
            for task, program in programs.items():
                if task not in losses:
                    try:
                        requests[task] = program.send(answers.get(task))
                    except StopIteration as end:
                        losses[task] = end.value
            answers = self._answers(requests, predictions, weights)
        return {task: losses[task] for task in self._names}

    def _answers(
        self, requests: Mapping[str, ReplayRequest], predictions: Mapping[str, Prediction], weights: Copies
    ) -> dict[str, Any]:
        """Answer the replay requests of all tasks in one pass, or of a part of the tasks in one pass each."""
        rises = [request.rise for request in requests.values() if request.rise is not None]
        if len(requests) < len(self._names) or 0 < len(rises) < len(requests):
            return {task: request.answer(cast(Replay, predictions[task].replay)) for task, request in requests.items()}
        starts = [request.embedded for request in requests.values()]
        if not rises:
            return dict(self._predictions(*self._encode(weights, torch.cat(starts))))
        fixed = {name: weight.detach() for name, weight in {**self._parameters(), **weights}.items()}
        with torch.enable_grad():
            embedded = torch.cat(starts).detach().requires_grad_()
            replayed = self._predictions(*self._encode(fixed, embedded))
            totals = [rise(prediction) for rise, (_, prediction) in zip(rises, replayed, strict=True)]
        (gradient,) = torch.autograd.grad(totals, embedded)
        return dict(zip(requests, torch.split(gradient, list(self._tokens.rows)), strict=True))

    def gradients(self, shared: Sequence[nn.Parameter]) -> tuple[dict[str, Tensor], list[Gradients]]:
        """The loss of each task, detached, and its gradients of the shared parameters; ``.grad`` has those of its own.

        First the backward pass of each task's loss ends at its vectors (and, where it replays, at the weights and
        embeddings); then one backward pass through the encoder serves all tasks.
        """
        copies = self._copies()
        embeddings, vectors = self._encode(copies)
        embedding_leaves = [embedding.detach().requires_grad_() for embedding in embeddings]
        vector_leaves = vectors.detach().requires_grad_()
        losses: dict[str, Tensor] = {}
        gradients = TaskGradients([], {})
        for task, prediction in self._predictions(embedding_leaves, vector_leaves):
            loss = self._model.loss(task)(prediction, self.targets[task])
            if loss.requires_grad:
                torch.autograd.backward(loss)
            losses[task] = loss.detach()
            gradients.append(take_gradients(shared))
        reached = [
            (output, leaf.grad)
            for output, leaf in ((vectors, vector_leaves), *zip(embeddings, embedding_leaves, strict=True))
        ]
        reached = [(output, output_gradient) for output, output_gradient in reached if output_gradient is not None]
        trained = {name: parameter for name, parameter in self._parameters().items() if parameter.requires_grad}
        if reached and trained:
            outputs, output_gradients = zip(*reached, strict=True)
            index_of = {id(parameter): index for index, parameter in enumerate(shared)}
            indices = [index_of[id(parameter)] for parameter in trained.values()]
            for name, index in zip(trained, indices, strict=True):
                untouched = all(task_gradients[index] is None for task_gradients in gradients)
                if shared[index].numel() >= SMALL and untouched:
                    copies[name].register_hook(  # type: ignore[no-untyped-call]
                        partial(_multiply, gradients.products, index)
                    )
            stacks = torch.autograd.grad(
                outputs, [copies[name] for name in trained], output_gradients, allow_unused=True
            )
            for parameter, index, stack in zip(trained.values(), indices, stacks, strict=True):
                if stack is not None:
                    for task_gradients, gradient in zip(gradients, _unstacked(stack), strict=True):
                        task_gradients[index] = _sum_of(gradient.to(parameter.dtype), task_gradients[index])
        return losses, gradients

    def _encode(self, copies: Copies, start: Tensor | None = None) -> tuple[Sequence[Tensor], Tensor]:
        """The input embeddings of each task, [n, d], taken from ``start`` if set, and the vectors of all, [S, d]."""
        inputs = (self._tokens, start)
        with autocast_to(self._model.precision, self._tokens.ids.device):
            encoded: tuple[Sequence[Tensor], Tensor] = (
                functional_call(_Encode(self._model.encoder), copies, inputs)
                if copies
                else _Encode(self._model.encoder)(*inputs)
            )
        return encoded

    def _predictions(self, starts: Sequence[Tensor], vectors: Tensor) -> Iterator[tuple[str, Prediction]]:
        ends = torch.split(vectors, list(self._tokens.parts))
        for task, tokens, rows, start, end in zip(
            self._names, self._tokens.split(), self._rows, starts, ends, strict=True
        ):
            yield task, self._model.forward_pass(task, tokens, rows).predict(start, end)

    def _parameters(self) -> dict[str, nn.Parameter]:
        return {f"encoder.{name}": parameter for name, parameter in self._model.encoder.named_parameters()}

    def _cast(self) -> Copies:
        """The parameters of linear layers, cast to the precision of the pass in one call instead of autocast's many."""
        if self._model.precision == torch.float32 or not self._model.encoder.takes_copies:
            return {}
        linear = _linear_parameters(self._model.encoder)
        if not linear:
            return {}
        cast: Sequence[Tensor] = _Cast.apply(self._model.precision, *linear.values())  # type: ignore[no-untyped-call]
        return dict(zip(linear, cast, strict=True))

    def _copies(self) -> Copies:
        """Per-task copies of every parameter, [T, …]; they are expanded views and take no memory."""
        with torch.no_grad():
            cast = self._cast()
        count = len(self._names)
        return {
            name: cast.get(name, parameter)
            .detach()
            .expand(count, *parameter.shape)
            .requires_grad_(parameter.requires_grad)
            for name, parameter in self._parameters().items()
        }


def _linear_parameters(encoder: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of linear layers, shared ones once."""
    linear = [module for module in encoder.modules() if isinstance(module, nn.Linear)]
    linear_ids = {id(parameter) for module in linear for parameter in module.parameters(recurse=False)}
    return {
        f"encoder.{name}": parameter for name, parameter in encoder.named_parameters() if id(parameter) in linear_ids
    }


def _multiply(products: dict[int, Tensor], index: int, gradients: Tensor) -> None:
    """Store the inner products of a parameter's per-task gradients, [T, …], as they arise; a GPU batches them later."""
    if gradients.device.type == "cpu" and gradients.dtype == torch.float32 and not gradients.is_sparse:
        products[index] = products_of(gradients.unbind())


def _unstacked(stack: Tensor) -> list[Tensor]:
    """Split stacked gradients, [T, …], by task; sparse ones of an embedding table stay sparse."""
    if not stack.is_sparse:
        return list(stack.unbind())
    stack = stack.coalesce()
    tasks, rows = stack.indices()
    counts = torch.bincount(tasks, minlength=len(stack)).tolist()
    return [
        torch.sparse_coo_tensor(task_rows[None], values, stack.shape[1:], is_coalesced=True, check_invariants=False)
        for task_rows, values in zip(torch.split(rows, counts), torch.split(stack.values(), counts), strict=True)
    ]


def _sum_of(gradient: Tensor, other: Tensor | None) -> Tensor:
    """The sum of two gradients of a parameter, either of which may be sparse."""
    if other is None:
        return gradient
    total = other + gradient if gradient.is_sparse else gradient + other
    return total.coalesce() if total.is_sparse else total


class _Encode(nn.Module):
    """The encoder as a module that returns both its input embeddings, by task, and its vectors."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder: Any = encoder

    def forward(self, tokens: Tokens, start: Tensor | None) -> tuple[Sequence[Tensor], Tensor]:
        # Split and joined again, so that the graph of a task's score reaches the embeddings that its loss sees.
        starts = torch.split(self.encoder.embed(tokens) if start is None else start, list(tokens.rows))
        whole = starts[0] if len(starts) == 1 else torch.cat(starts)
        return starts, self.encoder.vectors(whole, tokens)


class _Cast(torch.autograd.Function):
    """Cast many tensors in one call, and their gradients back in another."""

    @staticmethod
    def forward(ctx: Any, precision: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.precision = tensors[0].dtype
        ctx.set_materialize_grads(False)
        return _cast(tensors, precision)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        cast = iter(_cast([gradient for gradient in gradients if gradient is not None], ctx.precision))
        return None, *(None if gradient is None else next(cast) for gradient in gradients)


def _cast(tensors: Sequence[Tensor], precision: torch.dtype) -> tuple[Tensor, ...]:
    cast = [torch.empty_like(tensor, dtype=precision) for tensor in tensors]
    torch._foreach_copy_(cast, list(tensors))
    return tuple(cast)
