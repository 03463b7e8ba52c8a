"""Bases and parts of the heads: learnable layers, joined pairs, and decisions in the units of the labels."""

from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import nn

from taskloom.core import Dropout, Head, Labels, SharedModules, SpecialTokens, new_linear

#: The share of a vector that is dropped in training.
DropoutShare = Annotated[float, Field(ge=0, lt=1)]
#: The function after a layer.
Activation = Literal["none", "tanh", "relu", "gelu"]
ACTIVATIONS: dict[Activation, type[nn.Module]] = {
    "none": nn.Identity,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
}


def learnable_layers(
    width: int, layers: int, dropout: float, generator: torch.Generator, activation: Activation = "relu"
) -> nn.Sequential:
    """Dropout, then ``layers`` times (linear width → width, activation, dropout)."""
    parts: list[nn.Module] = [Dropout(dropout)]
    for _ in range(layers):
        parts += [new_linear(width, width, generator), ACTIVATIONS[activation](), Dropout(dropout)]
    return nn.Sequential(*parts)


def layer_lines(layers: int, activation: Activation = "relu") -> list[str]:
    """The lines of a snippet that apply the learnable layers ``front`` to ``x``."""
    layer_output = activated(activation, 'F.linear(x, w[f"front.{n}.weight"], w[f"front.{n}.bias"])')
    return [f"for n in {[3 * layer + 1 for layer in range(layers)]}:", f"    x = {layer_output}"] if layers else []


def activated(activation: Activation, value: str) -> str:
    """The code of a value after an activation."""
    return value if activation == "none" else f"F.{activation}({value})"


class ScoreHead(Head):
    """A head whose score is one logit per class, or one number that is decided in the units of the labels.

    Options:
        pooling: how the encoder pools each sequence to one vector for this task ("pooler", "cls", "mean", "max"); by
            default as its own option states
    """

    def __init__(self, *, pooling: Literal["pooler", "cls", "mean", "max"] | None = None) -> None:
        super().__init__()
        self.pooling = pooling

    def build(
        self, *, width: int, outputs: int, labels: Labels, generator: torch.Generator, shared: SharedModules
    ) -> None:
        self.labels, self.outputs = labels, outputs
        self.make_layers(width, generator)

    def make_layers(self, width: int, generator: torch.Generator) -> None:
        """Create the parameters; the base has none."""

    def decision(self) -> str:
        """The line of a snippet that does what :meth:`decide` does."""
        if self.outputs > 1:
            return "predicted = score.argmax(-1)"
        last = self.labels.classes - 1
        if last == 1 and self.cut is not None:
            return f"predicted = (score >= {self.cut!r}).long()"
        if last == 1 and self.score_means != "value":
            return "predicted = (score > 0).long()"
        return f"predicted = score.round().clamp(0, {last}).long()" if last > 0 else "predicted = score"


def linear_line(inputs: str, outputs: int) -> str:
    """The last linear layer of a snippet."""
    return f'score = F.linear({inputs}, w["last.weight"], w["last.bias"])' + (".squeeze(-1)" if outputs == 1 else "")


class JoinedHead(ScoreHead):
    """A head that reads two texts in one sequence, or may do so.

    Options:
        layout: how two texts become one sequence: "bert" is [CLS] a [SEP] b [SEP], "concatenated" puts their separate
            sequences one after the other, [CLS] a [SEP] [CLS] b [SEP]
        segments: whether the second text is marked as a second segment; by default under "bert" only
    """

    def __init__(
        self,
        *,
        layout: Literal["bert", "concatenated"] = "bert",
        segments: bool | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.layout = layout
        self.segments = layout == "bert" if segments is None else segments

    def frame(self, special_tokens: SpecialTokens) -> SpecialTokens:
        if self.layout == "concatenated":
            special_tokens = replace(special_tokens, middle=special_tokens.end, second_start=special_tokens.start)
        return special_tokens if self.segments else replace(special_tokens, second_type=0)
