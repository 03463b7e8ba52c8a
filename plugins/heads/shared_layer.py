"""A layer that all tasks share, in front of any head."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from taskloom.core import Dropout, Head, Labels, Prediction, SharedModules, SpecialTokens, TrainingError, new_linear
from taskloom.plugins.heads.parts import DropoutShare


class SharedLayer(Head):
    """One linear layer with tanh, the same for every task that has this head, in front of a head of the task's own.

    x = tanh(W·dropout(v) + b) for every vector v, then ``head`` on x. Where ``head`` derives a vector from others, as
    ``both_orders`` does with ``difference``, it is derived from dropout(v) and goes through the layer too. W and b
    exist once in a model: they learn from all these tasks, and count as shared parameters when gradients are combined.
    Their initial values come from the first of the tasks.

    Decides: as ``head`` does.

    Reads: what ``head`` reads. Losses see the vectors that ``head`` computes from x.

    Options:
        head: the task's own head, behind the shared layer
        dropout: share of a sentence vector that is dropped in training before the shared layer, the same in all tasks;
            dropout behind it is up to ``head``

    Siblings: ``layers`` of ``linear`` and ``cosine`` are layers of one task alone.

    Reference: "Robust Embeddings using Contrastive and Multiple Negatives on BERT", section 4 (CL); Caruana,
    "Multitask Learning", Machine Learning 1997 (hard sharing).

    Example:
        {"tasks": {"sst": {"head": {"name": "shared_layer", "head": "linear"}}}}
    """

    name = "shared_layer"

    def __init__(self, *, head: Head, dropout: DropoutShare = 0.0) -> None:
        super().__init__()
        if isinstance(head, SharedLayer):
            raise ValueError("head 'shared_layer' should not be inside another: a model has one shared layer")
        self.head = head
        self.reads = head.reads
        self.gives = head.gives
        self.pooling = head.pooling
        self.cut = head.cut
        self.dropout = dropout

    def build(
        self, *, width: int, outputs: int, labels: Labels, generator: torch.Generator, shared: SharedModules
    ) -> None:
        def make(layer_generator: torch.Generator) -> nn.Module:
            return nn.ModuleDict({"drop": Dropout(self.dropout), "linear": new_linear(width, width, layer_generator)})

        self.layer = shared.share(self.name, make)
        shared_dropout = cast(Dropout, self.layer.drop).p
        if shared_dropout != self.dropout:
            raise TrainingError(
                f"head {self.name!r} should have one dropout in all tasks, because they share the layer. "
                f"Found {shared_dropout:g} and {self.dropout:g}."
            )
        self.labels, self.head.labels, self.head.score_means = labels, labels, self.score_means
        self.head.build(width=width, outputs=outputs, labels=labels, generator=generator, shared=shared)

    def frame(self, special_tokens: SpecialTokens) -> SpecialTokens:
        return self.head.frame(special_tokens)

    def forward(self, vectors: Tensor) -> Prediction:
        layer = cast(nn.ModuleDict, self.layer)
        seen = self.head.derive(layer["drop"](vectors))  # [V, B, d]
        return cast(Prediction, self.head(layer["linear"](seen).tanh()))

    def decide(self, score: Tensor) -> Tensor:
        return self.head.decide(score)

    def probabilities(self, score: Tensor) -> Tensor | None:
        return self.head.probabilities(score)

    def snippet(self, layer: Sequence[str] = ()) -> list[str]:
        shared = 'vectors = torch.tanh(F.linear(vectors, w["layer.linear.weight"], w["layer.linear.bias"]))'
        own = 'w = {name.removeprefix("head."): tensor for name, tensor in w.items()}'
        return self.head.snippet([*layer, shared, own])
