"""What a head returns and a loss reads."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from taskloom.core.tokens import SEQUENCES, Tokens

if TYPE_CHECKING:
    from taskloom.core.encoder import Encoder
    from taskloom.core.head import Head


@dataclass(frozen=True, eq=False)
class Replay:
    """The forward pass that made a prediction, to be run again from changed embeddings or under new dropout.

    ``embedded`` are the input embeddings [N, d]. ``replay()`` repeats the whole pass (in training: with new
    dropout, as SimCSE and R-Drop need), ``replay(embedded + noise)`` starts from other embeddings (as SMART needs).
    """

    embedded: Tensor  # [N, d]
    run: Callable[[Tensor | None], "Prediction"]

    def __call__(self, embedded: Tensor | None = None) -> "Prediction":
        return self.run(embedded)


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

    def run(embedded: Tensor | None) -> Prediction:
        start = encoder.embed(tokens) if embedded is None else embedded
        pooled = encoder.vectors(start, tokens)  # [S·B, d]
        vectors = torch.unflatten(pooled, 0, (SEQUENCES[head.reads], -1))  # [S, B, d]
        prediction: Prediction = head(vectors)
        return replace(prediction, rows=rows, replay=Replay(start, run))

    return run(None)
