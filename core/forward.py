"""The forward pass, tokens → encoder → head, which a loss can replay."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from taskloom.core.encoder import Encoder
from taskloom.core.head import Head
from taskloom.core.prediction import Prediction, Replay, Replayable
from taskloom.core.tokens import SEQUENCES, Tokens


def predict(encoder: Encoder, head: Head, tokens: Tokens, rows: Tensor | None = None) -> Prediction:
    """Run one forward pass that can be replayed; ``tokens`` are arranged as ``head.reads`` says (see ``arrange``)."""
    return Pass(encoder, head, tokens, rows).forward(None)


def autocast_to(precision: torch.dtype, device: torch.device) -> AbstractContextManager[Any]:
    """A block in which matrix products are computed in ``precision``."""
    return nullcontext() if precision == torch.float32 else torch.autocast(device.type, dtype=precision)


class Pass(Replayable):
    """Encoder and head as one module, so that a replay can replace the parameters of both.

    With ``precision`` bfloat16 the pass and its replays run under autocast, and their predictions are float32 again.
    """

    def __init__(
        self,
        encoder: Encoder,
        head: Head,
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
        """The input embeddings, [N, d]."""
        with autocast_to(self.precision, self.tokens.ids.device):
            return self.encoder.embed(self.tokens)

    def predict(self, embedded: Tensor, pooled: Tensor) -> Prediction:
        """The last step of the pass: the head's prediction from the pooled vectors [S·B, d]."""
        vectors = torch.unflatten(pooled, 0, (SEQUENCES[self.head.reads], -1))  # [S, B, d]
        with autocast_to(self.precision, pooled.device):
            prediction: Prediction = self.head(vectors)
        if self.precision != torch.float32:
            prediction = replace(prediction, score=prediction.score.float(), vectors=prediction.vectors.float())
        return replace(prediction, rows=self.rows, replay=Replay(embedded, self), part=self.part)
