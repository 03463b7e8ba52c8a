"""A task's batch in parts: the update of the whole batch, the activations of one part at a time.

A separable loss is the mean over examples, so the gradient of a batch is Σ (n_part / n) ∇L(part): parts are worked off
one after another. Any other loss has to see all vectors at once. Then every part first runs without keeping anything
but its vectors, the loss is taken on all of them, and on the way back each part runs once more, under the same
dropout, to carry the gradient of its vectors to the weights: the gradient cache of Gao, Zhang, Han and Callan,
"Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", RepL4NLP 2021, at the price of a second
forward pass. Replays (SimCSE's second view, SMART's perturbed pass) are cached in the same way.
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
from taskloom.core.prediction import Pass
from taskloom.runs.training.machine import uses_gpu


def parts_of(rows: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    """Rows in parts of at most ``size``, as even as can be.

    >>> [len(part) for part in parts_of(np.arange(10), 4)]
    [4, 3, 3]
    """
    return np.array_split(rows, -(-len(rows) // size))


class PartedPass(Pass):
    """Several passes that look like one: of each, only what it gives is kept until the way back.

    ``final`` should be set once the loss is known: until then a gradient that a loss asks for itself, such as SMART's
    with respect to the embeddings, leaves the weights' gradients alone.
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
            ours = {name: value for name, value in parameters.items() if name.startswith("encoder.")}
            embedded = torch.cat([self._cached(_Embed(part), ours)[0] for part in self._parts])  # [N, d]
        starts = torch.split(embedded, [len(part.tokens.ids) for part in self._parts])
        found = [self._cached(part, parameters, start) for part, start in zip(self._parts, starts, strict=True)]
        scores, vectors = zip(*found, strict=True)
        return Prediction(torch.cat(scores), torch.cat(vectors, 1), self.rows, Replay(embedded, self))

    def _cached(self, module: nn.Module, parameters: Mapping[str, Tensor], *start: Tensor) -> tuple[Tensor, ...]:
        # Something that requires a gradient, or autograd would not come back to a pass that starts from token ids.
        anchor = torch.empty(0, requires_grad=True)
        names = tuple(parameters)
        found: tuple[Tensor, ...] = _Cached.apply(  # type: ignore[no-untyped-call]
            module, self, names, anchor, *parameters.values(), *start
        )
        return found


class _Embed(nn.Module):
    """The beginning of a pass: token ids → input embeddings, [N, d]."""

    def __init__(self, part: Pass) -> None:
        super().__init__()
        self.encoder = part.encoder
        self._part = (part,)  # in a tuple, so that its parameters have one name here

    def forward(self) -> Tensor:
        return self._part[0].embed()


class Randomness:
    """Every generator that a forward pass may draw from: those bound to its modules, and torch's own."""

    def __init__(self, module: nn.Module) -> None:
        found = [torch.default_generator]
        if uses_gpu():
            found.append(torch.cuda.default_generators[torch.cuda.current_device()])
        found += [one for part in module.modules() if isinstance(one := vars(part).get("generator"), torch.Generator)]
        self.generators = list({id(one): one for one in found}.values())

    def states(self) -> list[Tensor]:
        """Where the generators stand."""
        return [generator.get_state() for generator in self.generators]

    @contextmanager
    def at(self, states: Sequence[Tensor]) -> Iterator[None]:
        """Go back to where the generators stood; afterwards they are where they were before."""
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
    """A step of a :class:`PartedPass`: what it gives now, its graph only on the way back."""

    @staticmethod
    def forward(ctx: Any, module: nn.Module, owner: PartedPass, names: tuple[str, ...], *tensors: Tensor) -> Any:
        ctx.module, ctx.owner, ctx.names = module, owner, names
        ctx.states = owner.random.states()
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors[1:])
        return _outputs(module, names, tensors[1:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        if torch.is_grad_enabled():  # create_graph: what is computed here would count as a constant
            raise TrainingError(
                f"loss {ctx.owner.loss!r} differentiates a gradient, which micro-batches allow only for a loss that is "
                "separable; leave micro_batch out"
            )
        wanted = ctx.needs_input_grad[4:]
        given = [tensor.detach().requires_grad_(wants) for tensor, wants in zip(ctx.saved_tensors, wanted, strict=True)]
        with ctx.owner.random.at(ctx.states), torch.enable_grad():
            outputs = _outputs(ctx.module, ctx.names, given)
        known = [
            (output, gradient)
            for output, gradient in zip(outputs, gradients, strict=True)
            if gradient is not None and output.requires_grad
        ]
        leaves = [tensor for tensor, wants in zip(given, wanted, strict=True) if wants]
        found: Sequence[Tensor | None] = [None] * len(leaves)
        if known:
            reached, slopes = zip(*known, strict=True)
            if ctx.owner.final:
                torch.autograd.backward(reached, slopes)  # straight into the weights' .grad
                found = [leaf.grad for leaf in leaves]
            elif leaves:
                found = torch.autograd.grad(reached, leaves, slopes, allow_unused=True)
        results = iter(found)
        return None, None, None, None, *(next(results) if wants else None for wants in wanted)


def _outputs(module: nn.Module, names: tuple[str, ...], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """What a step gives with other parameters by name, from embeddings where it takes some."""
    parameters, start = dict(zip(names, tensors, strict=False)), tuple(tensors[len(names) :])
    found = functional_call(module, parameters, start) if parameters else module(*start)
    return (found.score, found.vectors) if isinstance(found, Prediction) else (found,)
