"""Micro-batches: the update of the whole batch with the activations of one part at a time.

A separable loss is the mean over examples, so the gradient of a batch is Σ (n_part / n) ∇L(part): the batch is
processed in micro-batches whose activations are freed. Any other loss has to see all vectors at once. Then every part
first runs forward and keeps only its vectors, the loss is computed on all of them, and in the backward pass each part
runs forward once more, with the same dropout, to propagate the gradient of its vectors to the weights: the gradient
cache of Gao, Zhang, Han and Callan, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", RepL4NLP
2021, at the price of a second forward pass. Replays (SimCSE's second view, SMART's perturbed pass) are cached in the
same way.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from taskloom.core import Prediction, Replay, TrainingError
from taskloom.core.forward import Pass
from taskloom.runs.training.machine import gpu_generator, gpu_module


def parts_of(rows: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    """Split rows into parts of at most ``size``, as evenly as possible.

    >>> [len(part) for part in parts_of(np.arange(10), 4)]
    [4, 3, 3]
    """
    return np.array_split(rows, -(-len(rows) // size))


class PartedPass(Pass):
    """Several passes that act as one; of each, only the outputs are kept until the backward pass.

    Set ``final`` once the loss is known: until then a gradient that a loss computes itself, such as SMART's with
    respect to the embeddings, does not change the weights' gradients.
    """

    def __init__(self, parts: Sequence[Pass], *, loss: str) -> None:
        first = parts[0]
        super().__init__(first.encoder, first.head, first.tokens, precision=first.precision)
        self._parts = tuple(parts)
        self.rows = (
            torch.cat([part.rows for part in parts if part.rows is not None]) if first.rows is not None else None
        )
        self.random = Randomness(self)
        self.loss = loss
        self.final = False

    def forward(self, embedded: Tensor | None) -> Prediction:
        return self.replaced({}, embedded)

    def replaced(self, parameters: Mapping[str, Tensor], embedded: Tensor | None) -> Prediction:
        if embedded is None:
            encoder_parameters = {
                name: parameter for name, parameter in parameters.items() if name.startswith("encoder.")
            }
            embedded = torch.cat([self._cached(_Embed(part), encoder_parameters)[0] for part in self._parts])  # [N, d]
        starts = torch.split(embedded, [len(part.tokens.ids) for part in self._parts])
        outputs = [self._cached(part, parameters, start) for part, start in zip(self._parts, starts, strict=True)]
        scores, vectors = zip(*outputs, strict=True)
        return Prediction(torch.cat(scores), torch.cat(vectors, 1), self.rows, Replay(embedded, self))

    def _cached(self, module: nn.Module, parameters: Mapping[str, Tensor], *start: Tensor) -> tuple[Tensor, ...]:
        # An input that requires a gradient, without which autograd skips the backward pass of a step from token ids.
        anchor = torch.empty(0, requires_grad=True)
        names = tuple(parameters)
        outputs: tuple[Tensor, ...] = _Cached.apply(  # type: ignore[no-untyped-call]
            module, self, names, anchor, *parameters.values(), *start
        )
        return outputs


class _Embed(nn.Module):
    """The first step of a pass: token ids → input embeddings, [N, d]."""

    def __init__(self, part: Pass) -> None:
        super().__init__()
        self.encoder = part.encoder
        self._part = (part,)  # in a tuple, so that its parameters have one name here

    def forward(self) -> Tensor:
        return self._part[0].embed()


class Randomness:
    """Every generator that a forward pass may draw from: those bound to its modules, and torch's own."""

    def __init__(self, module: nn.Module) -> None:
        generators = [torch.default_generator]
        if gpu := gpu_module():
            generators.append(gpu_generator(gpu))
        bound = [vars(part).get("generator") for part in module.modules()]
        generators += [generator for generator in bound if isinstance(generator, torch.Generator)]
        self.generators = list({id(generator): generator for generator in generators}.values())

    def states(self) -> list[Tensor]:
        """The states of the generators."""
        return [generator.get_state() for generator in self.generators]

    @contextmanager
    def at(self, states: Sequence[Tensor]) -> Iterator[None]:
        """Set the generators to earlier states, and back to the present ones when the block ends."""
        present = self.states()
        self._set(states)
        try:
            yield
        finally:
            self._set(present)

    def _set(self, states: Sequence[Tensor]) -> None:
        for generator, state in zip(self.generators, states, strict=True):
            generator.set_state(state)


class _Cached(torch.autograd.Function):
    """A step of a :class:`PartedPass`: computes its outputs now and its graph only in the backward pass."""

    @staticmethod
    def forward(ctx: Any, module: nn.Module, owner: PartedPass, names: tuple[str, ...], *tensors: Tensor) -> Any:
        ctx.module, ctx.owner, ctx.names = module, owner, names
        ctx.states = owner.random.states()
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors[1:])
        return _outputs(module, names, tensors[1:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        if torch.is_grad_enabled():  # create_graph: the gradients computed here would be constants
            raise TrainingError(
                f"loss {ctx.owner.loss!r} differentiates a gradient, which micro-batches allow only for a loss that is "
                "separable; leave micro_batch out"
            )
        needs_gradient = ctx.needs_input_grad[4:]
        inputs = [
            tensor.detach().requires_grad_(needed)
            for tensor, needed in zip(ctx.saved_tensors, needs_gradient, strict=True)
        ]
        with ctx.owner.random.at(ctx.states), torch.enable_grad():
            outputs = _outputs(ctx.module, ctx.names, inputs)
        known = [
            (output, gradient)
            for output, gradient in zip(outputs, gradients, strict=True)
            if gradient is not None and output.requires_grad
        ]
        leaves = [tensor for tensor, needed in zip(inputs, needs_gradient, strict=True) if needed]
        leaf_gradients: Sequence[Tensor | None] = [None] * len(leaves)
        if known:
            reached, output_gradients = zip(*known, strict=True)
            if ctx.owner.final:
                torch.autograd.backward(reached, output_gradients)  # straight into the weights' .grad
                leaf_gradients = [leaf.grad for leaf in leaves]
            elif leaves:
                leaf_gradients = torch.autograd.grad(reached, leaves, output_gradients, allow_unused=True)
        remaining = iter(leaf_gradients)
        return None, None, None, None, *(next(remaining) if needed else None for needed in needs_gradient)


def _outputs(module: nn.Module, names: tuple[str, ...], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Run a step with the parameters ``names`` replaced, from input embeddings if it takes any."""
    parameters, start = dict(zip(names, tensors, strict=False)), tuple(tensors[len(names) :])
    output = functional_call(module, parameters, start) if parameters else module(*start)
    return (output.score, output.vectors) if isinstance(output, Prediction) else (output,)
