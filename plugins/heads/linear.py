"""A linear layer over sentence vectors."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from pydantic import NonNegativeInt
from torch import Tensor

from taskloom.core import Prediction, new_linear
from taskloom.plugins.heads.parts import (
    ACTIVATIONS,
    Activation,
    DropoutShare,
    JoinedHead,
    activated,
    layer_lines,
    learnable_layers,
    linear_line,
)


class Linear(JoinedHead):
    """A linear layer over one sentence vector, two of them, or the vector of a joined pair.

    x = dropout(v), then ``layers`` × (linear, ``activation``, dropout) at the width of x, then a linear layer to one
    logit per class or one number, then ``last_activation``. For a pair x is u ⊕ v, of width 2d.

    Decides: the class with the largest logit. One number is the value itself where labels are values, and else rounded
    to the nearest class; where the loss takes it for the logit of two classes, the second counts above zero.

    Reads: one text, two texts encoded apart, or two texts in one sequence.

    Options:
        reads: "single" one text, "pair" two texts encoded apart, "joint" two texts in one sequence
        layers: learnable layers before the last one
        activation: what follows each of them
        last_activation: what follows the last layer; "tanh" keeps scores between −1 and 1
        dropout: share of a vector that is dropped in training, before the first layer and after each learnable one

    Siblings: ``cosine`` compares two vectors and has no weights of its own unless given layers; ``cosine_features``
    adds their cosine to a pair; ``both_orders`` reads a joined pair in both orders.

    Reference: Devlin et al., "BERT", NAACL 2019, section 4.

    Example:
        {"tasks": {"para": {"head": {"name": "linear", "reads": "pair", "layers": 1}}}}
    """

    name = "linear"
    gives = "either"

    def __init__(
        self,
        *,
        reads: Literal["single", "pair", "joint"] = "single",
        layers: NonNegativeInt = 0,
        activation: Activation = "relu",
        last_activation: Literal["none", "tanh"] = "none",
        dropout: DropoutShare = 0.3,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        about_pairs = [key for key in ("layout", "segments") if options.get(key) not in (None, "bert")]
        if about_pairs and reads != "joint":
            words = f"{' and '.join(about_pairs)} of head 'linear' should be left out unless it reads 'joint'"
            raise ValueError(f"{words}: there is no joined pair to lay out. Found reads {reads!r}.")
        self.reads = reads
        self.layers = layers
        self.activation = activation
        self.last_activation = last_activation
        self.after_last = ACTIVATIONS[last_activation]()
        self.dropout = dropout

    def make_layers(self, width: int, generator: torch.Generator) -> None:
        inputs = 2 * width if self.reads == "pair" else width
        self.front = learnable_layers(inputs, self.layers, self.dropout, generator, self.activation)
        self.last = new_linear(inputs, self.outputs, generator)

    def forward(self, vectors: Tensor) -> Prediction:
        joined = torch.cat(tuple(vectors), dim=-1)  # [B, S·d]
        score = self.after_last(self.last(self.front(joined)))  # [B, outputs]
        return Prediction(score.squeeze(-1) if self.outputs == 1 else score, vectors)

    def snippet(self, layer: Sequence[str] = ()) -> list[str]:
        front = layer_lines(self.layers, self.activation)
        score = [linear_line("x", self.outputs)]
        if self.last_activation != "none":
            score.append(f"score = {activated(self.last_activation, 'score')}")
        return [*layer, "x = torch.cat(tuple(vectors), -1)", *front, *score, self.decision()]
