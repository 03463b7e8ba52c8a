"""The conformance kit catches encoders, heads and losses that break a law."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from taskloom.core import Component, Prediction, Tokens
from taskloom.core.testing import check
from taskloom.plugins.encoders import MinBert
from taskloom.plugins.heads import Cosine, Linear
from taskloom.plugins.losses import MSE
from taskloom.plugins.metrics import Accuracy

TINY = {"layers": 2, "width": 16, "heads": 2, "vocabulary": 200}


class Unnamed(Accuracy):
    """Without a name."""

    name = "Not A Name"


class Undocumented(Accuracy):
    name = "undocumented"


class Positional(MSE):
    """Takes its option by position."""

    name = "positional"

    def __init__(self, target: str = "raw") -> None:
        super().__init__()


class Unannotated(MSE):
    """Does not say what its option is."""

    name = "unannotated"

    def __init__(self, *, target="raw") -> None:  # type: ignore[no-untyped-def]
        super().__init__()


class DrawsWhenMade(MSE):
    """Draws from the global state in its constructor."""

    name = "draws_when_made"

    def __init__(self) -> None:
        super().__init__()
        torch.rand(1)


class Unreduced(MSE):
    """Forgets to take the mean."""

    name = "unreduced"

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        return (prediction.score.float() - target).square()


class WrongGradient(MSE):
    """Its gradient is not that of its value."""

    name = "wrong_gradient"

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        value = super().forward(prediction, target)
        return value + value.detach() * value - value.detach() ** 2


class FirstCounts(MSE):
    """Weighs the first example more."""

    name = "first_counts"

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        return super().forward(prediction, target) + prediction.score[0].to(torch.float64) ** 2


class OnlyDouble(MSE):
    """Cannot work with less than float64."""

    name = "only_double"

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        return (prediction.score @ torch.ones(len(target), dtype=torch.float64)) ** 2


class Forgetful(MSE):
    """Has state that it does not keep in a buffer."""

    name = "forgetful"

    def __init__(self) -> None:
        super().__init__()
        self.margin = 0.0

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        return super().forward(prediction, target) + self.margin

    def epoch_ended(self, *, epoch: int, score: float) -> None:
        self.margin += score


class GlobalNoise(MSE):
    """Draws from torch's global state."""

    name = "global_noise"

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        torch.rand(1)
        return super().forward(prediction, target)


class TwoDimensional(Linear):
    """Leaves one number per example in a column."""

    name = "two_dimensional"

    def forward(self, vectors: Tensor) -> Prediction:
        score = super().forward(vectors).score
        return Prediction(score[:, None] if score.dim() == 1 else score, vectors)


class LooksAround(Linear):
    """Lets an example's score depend on its batch."""

    name = "looks_around"

    def forward(self, vectors: Tensor) -> Prediction:
        prediction = super().forward(vectors)
        return Prediction(prediction.score - prediction.score.mean(0), vectors)


class Undecided(Cosine):
    """Decides for a value where the labels are classes."""

    name = "undecided"

    def decide(self, score: Tensor) -> Tensor:
        return score


class Detached(Linear):
    """Cuts the gradient off."""

    name = "detached"

    def forward(self, vectors: Tensor) -> Prediction:
        return super().forward(vectors.detach())


class InitialisedGlobally(Linear):
    """Draws its weights from the global state."""

    name = "initialised_globally"

    def build(self, **given: Any) -> None:
        super().build(**given)
        self.last.reset_parameters()


class Unsaved(Linear):
    """Keeps a tensor out of its state."""

    name = "unsaved"

    def build(self, **given: Any) -> None:
        super().build(**given)
        self.extra = torch.randn(1, generator=given["generator"])

    def forward(self, vectors: Tensor) -> Prediction:
        prediction = super().forward(vectors)
        return Prediction(prediction.score + self.extra, vectors)


class Crosstalk(MinBert):
    """Lets a sequence's vector depend on its batch."""

    name = "crosstalk"

    def vectors(self, embedded: Tensor, tokens: Tokens) -> Tensor:
        vectors = super().vectors(embedded, tokens)
        return vectors - vectors.mean(0)


class Shortcut(MinBert):
    """Has a short cut that leads elsewhere."""

    name = "shortcut"

    def vectors(self, embedded: Tensor, tokens: Tokens) -> Tensor:
        return super().vectors(embedded, tokens) * 1.01


class Padded(MinBert):
    """Gives states for padding too."""

    name = "padded"

    def encode(self, embedded: Tensor, tokens: Tokens) -> Tensor:
        states = super().encode(embedded, tokens)
        return torch.cat([states, states[:1]])


class DrawsGlobally(MinBert):
    """Drops out with torch's global state."""

    name = "draws_globally"

    def embed(self, tokens: Tokens) -> Tensor:
        return nn.functional.dropout(super().embed(tokens), 0.1, self.training)


class CutsOff(MinBert):
    """Cuts the gradient to its embeddings."""

    name = "cuts_off"

    def vectors(self, embedded: Tensor, tokens: Tokens) -> Tensor:
        return super().vectors(embedded.detach(), tokens)


class Shouts(MinBert):
    """Tokenizes the first text of a batch in another way."""

    name = "shouts"

    def tokenize(self, texts: Any) -> Any:
        return super().tokenize([texts[0] + " !", *texts[1:]])


BROKEN: list[tuple[type[Component], str]] = [
    (Crosstalk, "a sequence does not depend on its batch"),
    (Shortcut, "tokens become one vector per sequence"),
    (Padded, "tokens become one vector per sequence"),
    (DrawsGlobally, "its randomness is the generators"),
    (CutsOff, "gradients reach its embeddings and parameters"),
    (Shouts, "tokenizing is stable"),
    (Unnamed, "it has a name that users can type"),
    (Undocumented, "it says what it does"),
    (Positional, "its options are annotated keyword arguments"),
    (Unannotated, "its options are annotated keyword arguments"),
    (DrawsWhenMade, "making one draws no random numbers"),
    (Unreduced, "it is one finite number"),
    (WrongGradient, "its gradient is that of finite differences"),
    (FirstCounts, "the order of examples does not matter"),
    (OnlyDouble, "it works in every precision"),
    (Forgetful, "its state survives saving"),
    (GlobalNoise, "its randomness is the generators"),
    (TwoDimensional, "it gives one score and its vectors per example"),
    (LooksAround, "each example is scored by itself"),
    (Undecided, "it decides in the units of the labels"),
    (Detached, "gradients reach its input and its parameters"),
    (InitialisedGlobally, "its randomness is the generators"),
    (Unsaved, "its state survives saving"),
]


@pytest.mark.parametrize(("component", "law"), BROKEN, ids=lambda x: getattr(x, "__name__", x))
def test_the_kit_catches_a_broken_component(component: type[Component], law: str) -> None:
    options = TINY if component.kind == "encoder" else {}
    with pytest.raises(AssertionError) as caught:
        check(component, **options)
    lines = str(caught.value).splitlines()
    name = f"{component.kind} {component.name!r}"
    assert any(line.startswith(name) and f"breaks the law {law!r}: " in line for line in lines), str(caught.value)
