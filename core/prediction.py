"""What a head returns and a loss reads."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from taskloom.core.tokens import SEQUENCES, Tokens

if TYPE_CHECKING:
    from taskloom.core.encoder import Encoder
    from taskloom.core.head import Head

#: What a score of one number is: the logit of the second of two classes, or a value in the units of the labels.
ScoreMeans = Literal["logit", "value", None]


@dataclass(frozen=True, eq=False)
class Replay:
    """The forward pass that made a prediction, to be run again from changed embeddings or under new dropout.

    ``embedded`` are the input embeddings [N, d]. ``replay()`` repeats the whole pass (in training: with new
    dropout, as SimCSE and R-Drop need), ``replay(embedded + noise)`` starts from other embeddings (as SMART needs),
    and ``replay(parameters=…)`` puts other tensors in the place of :attr:`parameters`, all or some of them: an
    average of the model, or the same values detached.
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
        """The prediction of the pass, run again from ``embedded`` and with ``parameters`` where they are given."""
        if not parameters:
            return self.run(embedded)
        if isinstance(self.run, Pass):
            return self.run.replaced(parameters, embedded)
        assert isinstance(self.run, nn.Module)  # a plain function has no parameters to replace
        prediction: Prediction = functional_call(self.run, dict(parameters), (embedded,))
        return prediction


@dataclass(frozen=True, eq=False)
class Prediction:
    """A head's output for B examples.

    ``score`` is what the head predicts: one logit per class [B, C], or one number [B]. ``vectors`` are the
    sentence vectors it saw, [S, B, d] with S sequences per example (2 for a pair), because some losses look at
    them and not at the score. ``rows`` are the examples' places in the data set, for losses that remember
    something per example. ``replay`` repeats the forward pass. ``part`` counts from 0 the parts into which a batch is
    cut for a separable loss: state that moves once per batch moves with part 0.
    """

    score: Tensor  # [B, C] or [B]
    vectors: Tensor  # [S, B, d]
    rows: Tensor | None = None  # [B]
    replay: Replay | None = None
    part: int = 0


@dataclass(frozen=True, eq=False)
class Again:
    """What a loss asks for in its course: its pass once more, from other embeddings [N, d].

    The answer is the prediction, or with ``rise`` the gradient of that function of it with respect to the embeddings,
    [N, d], all parameters being held fixed. A run answers what all tasks ask at once by one pass.
    """

    embedded: Tensor  # [N, d]
    rise: Callable[[Prediction], Tensor] | None = None

    def answer(self, replay: Replay) -> "Prediction | Tensor":
        """The answer by a pass of its own."""
        if self.rise is None:
            return replay(self.embedded)
        # Detached parameters: nothing is kept for gradients of weights. All of it is gone when this returns.
        fixed = {name: parameter.detach() for name, parameter in replay.parameters.items()}
        with torch.enable_grad():  # also where a combiner only evaluates the loss
            start = self.embedded.detach().requires_grad_()
            rise = self.rise(replay(start, parameters=fixed))
        return torch.autograd.grad(rise, start)[0]


def predict(encoder: "Encoder", head: "Head", tokens: Tokens, rows: Tensor | None = None) -> Prediction:
    """One forward pass, tokens → encoder → head, that can be replayed.

    ``tokens`` hold the sequences in the order that ``head.reads`` asks for (see ``arrange``).
    """
    return Pass(encoder, head, tokens, rows).forward(None)


def autocast_to(precision: torch.dtype, device: torch.device) -> AbstractContextManager[Any]:
    """A block in which products are taken in ``precision``."""
    return nullcontext() if precision == torch.float32 else torch.autocast(device.type, dtype=precision)


class Pass(nn.Module):
    """Encoder and head as one module, so that a replay can exchange the parameters of both.

    With ``precision`` bfloat16 the pass and its replays run under autocast; what they give is float32 again.
    """

    def __init__(
        self,
        encoder: "Encoder",
        head: "Head",
        tokens: Tokens,
        rows: Tensor | None = None,
        *,
        part: int = 0,
        precision: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.tokens = tokens
        self.rows = rows
        self.part = part
        self.precision = precision

    def forward(self, embedded: Tensor | None) -> Prediction:
        start = self.embed() if embedded is None else embedded
        with autocast_to(self.precision, start.device):
            pooled = self.encoder.vectors(start, self.tokens)  # [S·B, d]
        return self.predict(start, pooled)

    def embed(self) -> Tensor:
        """The input embeddings that the pass starts from, [N, d]."""
        with autocast_to(self.precision, self.tokens.ids.device):
            return self.encoder.embed(self.tokens)

    def predict(self, embedded: Tensor, pooled: Tensor) -> Prediction:
        """The end of the pass: what the head makes of the vectors, [S·B, d], that came of the embeddings."""
        vectors = torch.unflatten(pooled, 0, (SEQUENCES[self.head.reads], -1))  # [S, B, d]
        with autocast_to(self.precision, pooled.device):
            found: Prediction = self.head(vectors)
        if self.precision != torch.float32:
            found = replace(found, score=found.score.float(), vectors=found.vectors.float())
        return replace(found, rows=self.rows, replay=Replay(embedded, self), part=self.part)

    def replaced(self, parameters: Mapping[str, Tensor], embedded: Tensor | None) -> Prediction:
        """The pass with other tensors in the place of parameters."""
        prediction: Prediction = functional_call(self, dict(parameters), (embedded,))
        return prediction
