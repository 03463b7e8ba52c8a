"""What a head returns and a loss reads."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.func import functional_call

from taskloom.core.tokens import SEQUENCES, Tokens

if TYPE_CHECKING:
    from taskloom.core.encoder import Encoder
    from taskloom.core.head import Head


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
        if not parameters:
            return self.run(embedded)
        assert isinstance(self.run, nn.Module)  # a plain function has no parameters to replace
        prediction: Prediction = functional_call(self.run, dict(parameters), (embedded,))
        return prediction


@dataclass(frozen=True, eq=False)
class Prediction:
    """A head's output for B examples.

    ``score`` is what the head predicts: one logit per class [B, C], or one number [B]. ``vectors`` are the
    sentence vectors it saw, [S, B, d] with S sequences per example (2 for a pair), because some losses look at
    them and not at the score. ``rows`` are the examples' places in the data set, for losses that remember
    something per example. ``replay`` repeats the forward pass.
    """

    score: Tensor  # [B, C] or [B]
    vectors: Tensor  # [S, B, d]
    rows: Tensor | None = None  # [B]
    replay: Replay | None = None


def predict(encoder: "Encoder", head: "Head", tokens: Tokens, rows: Tensor | None = None) -> Prediction:
    """One forward pass, tokens → encoder → head, that can be replayed.

    ``tokens`` hold the sequences in the order that ``head.reads`` asks for (see ``arrange``).
    """
    return _Pass(encoder, head, tokens, rows).forward(None)


class _Pass(nn.Module):
    """Encoder and head as one module, so that a replay can exchange the parameters of both."""

    def __init__(self, encoder: "Encoder", head: "Head", tokens: Tokens, rows: Tensor | None) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.tokens = tokens
        self.rows = rows

    def forward(self, embedded: Tensor | None) -> Prediction:
        start = self.encoder.embed(self.tokens) if embedded is None else embedded
        pooled = self.encoder.vectors(start, self.tokens)  # [S·B, d]
        vectors = torch.unflatten(pooled, 0, (SEQUENCES[self.head.reads], -1))  # [S, B, d]
        prediction: Prediction = self.head(vectors)
        return replace(prediction, rows=self.rows, replay=Replay(start, self))
