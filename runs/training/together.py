"""All tasks of a step in one pass: what is packed together costs one call of each kernel, and fills the cores.

The sequences of every task go through the encoder as one batch; then each task's head and loss see their own vectors.
What losses that replay ask for is answered in the same way, where all tasks ask at once. Where a combiner wants the
tasks' gradients apart, the encoder's parameters are replaced by copies, one for each task (see
``Encoder.takes_copies``), and each gets the gradient of its own rows: one forward pass and one way back, as for the
sum.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from taskloom.core import Again, Gradients, Prediction, Replay, TaskGradients, Tokens, products_of, take_gradients
from taskloom.core.gradients import SMALL
from taskloom.core.prediction import autocast_to
from taskloom.runs.training.feed import Feed
from taskloom.runs.training.model import Model

Copies = dict[str, Tensor]


class Together:
    """The batches of several tasks on the device, and the passes over them."""

    def __init__(self, model: Model, batches: Mapping[str, NDArray[np.int64]], feeds: Mapping[str, Feed]) -> None:
        self._model, self._names = model, tuple(batches)
        chosen = [(feeds[task], rows) for task, rows in batches.items()]
        host = Tokens.join([feed.host_tokens(rows) for feed, rows in chosen])
        beside = [array for feed, rows in chosen for array in (feed.host_target(rows), rows)]
        self._tokens, placed = host.sent(chosen[0][0].device, *beside)
        self.targets, self._rows = dict(zip(batches, placed[::2], strict=True)), placed[1::2]

    def losses(self) -> dict[str, Tensor]:
        """The loss of each task, with a graph that reaches everything."""
        weights = self._cast()
        predictions = dict(self._predictions(*self._encode(weights)))
        courses = {task: self._model.loss(task).course(each, self.targets[task]) for task, each in predictions.items()}
        found: dict[str, Tensor] = {}
        answers: Mapping[str, Any] = {}
        while len(found) < len(courses):
            asked: dict[str, Again] = {}
            for task, course in courses.items():
                if task not in found:
                    try:
                        asked[task] = course.send(answers.get(task))
                    except StopIteration as end:
                        found[task] = end.value
            answers = self._answers(asked, predictions, weights)
        return {task: found[task] for task in self._names}

    def _answers(
        self, asked: Mapping[str, Again], predictions: Mapping[str, Prediction], weights: Copies
    ) -> dict[str, Any]:
        """Of what all tasks ask at once by one pass, else of each by its own."""
        rises = [ask.rise for ask in asked.values() if ask.rise is not None]
        if len(asked) < len(self._names) or 0 < len(rises) < len(asked):
            return {task: ask.answer(cast(Replay, predictions[task].replay)) for task, ask in asked.items()}
        starts = [ask.embedded for ask in asked.values()]
        if not rises:
            return dict(self._predictions(*self._encode(weights, torch.cat(starts))))
        fixed = {name: each.detach() for name, each in {**self._parameters(), **weights}.items()}
        with torch.enable_grad():
            whole = torch.cat(starts).detach().requires_grad_()
            changed = self._predictions(*self._encode(fixed, whole))
            totals = [rise(each) for rise, (_, each) in zip(rises, changed, strict=True)]
        (gradient,) = torch.autograd.grad(totals, whole)
        return dict(zip(asked, torch.split(gradient, list(self._tokens.rows)), strict=True))

    def gradients(self, shared: Sequence[nn.Parameter]) -> tuple[dict[str, Tensor], list[Gradients]]:
        """The loss of each task, detached, and its gradients of the shared parameters; ``.grad`` has its own ones.

        First every task's loss goes back to its vectors (and, where it replays, to the weights and embeddings), one
        after another; then all of them go back through the encoder at once.
        """
        copies = self._copies()
        begun, vectors = self._encode(copies)
        starts = [start.detach().requires_grad_() for start in begun]
        ends = vectors.detach().requires_grad_()
        losses: dict[str, Tensor] = {}
        taken = TaskGradients([], {})
        for task, prediction in self._predictions(starts, ends):
            loss = self._model.loss(task)(prediction, self.targets[task])
            if loss.requires_grad:
                torch.autograd.backward(loss)
            losses[task] = loss.detach()
            taken.append(take_gradients(shared))
        reached = [(one, end.grad) for one, end in ((vectors, ends), *zip(begun, starts, strict=True))]
        reached = [(one, slope) for one, slope in reached if slope is not None]
        learning = {name: each for name, each in self._parameters().items() if each.requires_grad}
        if reached and learning:
            outputs, slopes = zip(*reached, strict=True)
            numbers = {id(parameter): place for place, parameter in enumerate(shared)}
            places = [numbers[id(parameter)] for parameter in learning.values()]
            for name, place in zip(learning, places, strict=True):
                if shared[place].numel() >= SMALL and all(own[place] is None for own in taken):
                    copies[name].register_hook(  # type: ignore[no-untyped-call]
                        partial(_multiply, taken.products, place)
                    )
            stacks = torch.autograd.grad(outputs, [copies[name] for name in learning], slopes, allow_unused=True)
            for parameter, place, stack in zip(learning.values(), places, stacks, strict=True):
                if stack is not None:
                    for own, part in zip(taken, _unstacked(stack), strict=True):
                        own[place] = _sum_of(part.to(parameter.dtype), own[place])
        return losses, taken

    def _encode(self, copies: Copies, start: Tensor | None = None) -> tuple[Sequence[Tensor], Tensor]:
        """The input embeddings of each task, [n, d], or those that are given, and the vectors of all, [S, d]."""
        given = (self._tokens, start)
        with autocast_to(self._model.precision, self._tokens.ids.device):
            found: tuple[Sequence[Tensor], Tensor] = (
                functional_call(_Encode(self._model.encoder), copies, given)
                if copies
                else _Encode(self._model.encoder)(*given)
            )
        return found

    def _predictions(self, starts: Sequence[Tensor], vectors: Tensor) -> Iterator[tuple[str, Prediction]]:
        ends = torch.split(vectors, list(self._tokens.parts))
        for task, tokens, rows, start, end in zip(
            self._names, self._tokens.split(), self._rows, starts, ends, strict=True
        ):
            yield task, self._model.forward_pass(task, tokens, rows).predict(start, end)

    def _parameters(self) -> dict[str, nn.Parameter]:
        return {f"encoder.{name}": each for name, each in self._model.encoder.named_parameters()}

    def _cast(self) -> Copies:
        """The weights of linear layers in the precision of the pass, cast in one call; else autocast casts each."""
        if self._model.precision == torch.float32 or not self._model.encoder.takes_copies:
            return {}
        linear = _linear_parameters(self._model.encoder)
        if not linear:
            return {}
        cast: Sequence[Tensor] = _Cast.apply(self._model.precision, *linear.values())  # type: ignore[no-untyped-call]
        return dict(zip(linear, cast, strict=True))

    def _copies(self) -> Copies:
        """A stack of copies of every parameter; it takes no memory, for all copies are one."""
        with torch.no_grad():
            cast = self._cast()
        count = len(self._names)
        return {
            name: cast.get(name, each).detach().expand(count, *each.shape).requires_grad_(each.requires_grad)
            for name, each in self._parameters().items()
        }


def _linear_parameters(encoder: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of linear layers; what two of them share, once."""
    linear = [module for module in encoder.modules() if isinstance(module, nn.Linear)]
    wanted = {id(parameter) for module in linear for parameter in module.parameters(recurse=False)}
    return {f"encoder.{name}": each for name, each in encoder.named_parameters() if id(each) in wanted}


def _multiply(products: dict[int, Tensor], place: int, stack: Tensor) -> None:
    """Form the inner products of a parameter's gradients, [T, …], when they arise; a GPU does it for many at once."""
    if stack.device.type == "cpu" and stack.dtype == torch.float32 and not stack.is_sparse:
        products[place] = products_of(stack.unbind())


def _unstacked(stack: Tensor) -> list[Tensor]:
    """The gradient of each task: those of a table of embeddings as the rows that it used."""
    if not stack.is_sparse:
        return list(stack.unbind())
    stack = stack.coalesce()
    tasks, rows = stack.indices()
    counts = torch.bincount(tasks, minlength=len(stack)).tolist()
    return [
        torch.sparse_coo_tensor(some[None], values, stack.shape[1:], is_coalesced=True, check_invariants=False)
        for some, values in zip(torch.split(rows, counts), torch.split(stack.values(), counts), strict=True)
    ]


def _sum_of(one: Tensor, other: Tensor | None) -> Tensor:
    """Two gradients of one parameter, of which either may be some rows of a table."""
    if other is None:
        return one
    total = other + one if one.is_sparse else one + other
    return total.coalesce() if total.is_sparse else total


class _Encode(nn.Module):
    """The encoder as a module that gives both its input embeddings, task by task, and its vectors."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder: Any = encoder

    def forward(self, tokens: Tokens, start: Tensor | None) -> tuple[Sequence[Tensor], Tensor]:
        # Taken apart and put together again, so that what a loss is shown of its own task leads to its score.
        starts = torch.split(self.encoder.embed(tokens) if start is None else start, list(tokens.rows))
        whole = starts[0] if len(starts) == 1 else torch.cat(starts)
        return starts, self.encoder.vectors(whole, tokens)


class _Cast(torch.autograd.Function):
    """Many tensors in another precision, and their gradients back, in one call each."""

    @staticmethod
    def forward(ctx: Any, precision: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.precision = tensors[0].dtype
        ctx.set_materialize_grads(False)
        return _cast(tensors, precision)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor | None) -> Any:
        found = iter(_cast([slope for slope in slopes if slope is not None], ctx.precision))
        return None, *(None if slope is None else next(found) for slope in slopes)


def _cast(tensors: Sequence[Tensor], precision: torch.dtype) -> tuple[Tensor, ...]:
    cast = [torch.empty_like(tensor, dtype=precision) for tensor in tensors]
    torch._foreach_copy_(cast, list(tensors))
    return tuple(cast)
