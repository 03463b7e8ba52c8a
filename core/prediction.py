"""What a head returns and a loss reads, and how a loss has the forward pass repeated."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

#: What a single-number score is: the logit of the second of two classes, or a value in the units of the labels.
ScoreMeans = Literal["logit", "value", None]


class Replayable(nn.Module):
    """A forward pass as a module: input embeddings [N, d] (None: those of its tokens) → prediction."""

    def replaced(self, parameters: Mapping[str, Tensor], embedded: Tensor | None) -> "Prediction":
        """Run the pass with other tensors in place of its parameters."""
        return cast(Prediction, functional_call(self, dict(parameters), (embedded,)))


@dataclass(frozen=True, eq=False)
class Replay:
    """The forward pass that made a prediction, to be run again from changed embeddings or under new dropout.

    ``embedded`` are the input embeddings [N, d]. ``replay()`` repeats the whole pass (in training: with new
    dropout, as SimCSE and R-Drop need), ``replay(embedded + noise)`` starts from other embeddings (as SMART needs),
    and ``replay(parameters=…)`` puts other tensors in place of some or all :attr:`parameters`: an average of the model,
    or the same values detached.
    """

    embedded: Tensor  # [N, d]
    run: Callable[[Tensor | None], "Prediction"]

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The parameters of encoder and head by name; none where the pass is a plain function."""
        return dict(self.run.named_parameters()) if isinstance(self.run, nn.Module) else {}

    def __call__(
        self, embedded: Tensor | None = None, *, parameters: Mapping[str, Tensor] | None = None
    ) -> "Prediction":
        """Run the pass again, from ``embedded`` and with ``parameters`` where they are given."""
        if not parameters:
            return self.run(embedded)
        assert isinstance(self.run, Replayable), "a plain function has no parameters to replace"
        return self.run.replaced(parameters, embedded)


@dataclass(frozen=True, eq=False)
class Prediction:
    """A head's output for B examples.

    ``score`` is what the head predicts: one logit per class [B, C], or one number [B]. ``vectors`` are the
    sentence vectors it saw, [S, B, d] with S sequences per example (2 for a pair), because some losses look at
    them and not at the score. ``rows`` are the examples' row numbers in the data set, for losses that remember
    something per example. ``replay`` repeats the forward pass. ``part`` counts from 0 the micro-batches into which a
    batch is split for a separable loss: state that changes once per batch changes with part 0.
    """

    score: Tensor  # [B, C] or [B]
    vectors: Tensor  # [S, B, d]
    rows: Tensor | None = None  # [B]
    replay: Replay | None = None
    part: int = 0


@dataclass(frozen=True, eq=False)
class ReplayRequest:
    """Yielded by a loss program to have its forward pass repeated from other embeddings [N, d].

    The answer is the prediction or, with ``rise``, the gradient of ``rise(prediction)`` with respect to the embeddings,
    [N, d], with all parameters held fixed. Where all tasks of a step request a replay, a run answers them in one pass.
    """

    embedded: Tensor  # [N, d]
    rise: Callable[[Prediction], Tensor] | None = None

    def answer(self, replay: Replay) -> "Prediction | Tensor":
        """Answer with a forward pass of this task alone."""
        if self.rise is None:
            return replay(self.embedded)
        # With detached parameters nothing is kept for gradients of weights; the graph is freed when this returns.
        fixed = {name: parameter.detach() for name, parameter in replay.parameters.items()}
        with torch.enable_grad():  # also where a combiner only evaluates the loss
            start = self.embedded.detach().requires_grad_()
            height = self.rise(replay(start, parameters=fixed))
        return torch.autograd.grad(height, start)[0]
