"""For every law of heads, one that breaks it and is caught."""

import re
from collections.abc import Callable
from typing import Annotated, Any

import pytest
import torch
from pydantic import Field
from torch import Tensor

from taskloom.core import Component, Prediction
from taskloom.core.testing import general, laws
from taskloom.plugins.heads import Cosine, Linear

LAWS = {law.name: law for law in laws("head")}
MUTANTS: list[tuple[type[Component], str]] = []


def breaks(*names: str) -> Callable[[type[Component]], type[Component]]:
    def mark(mutant: type[Component]) -> type[Component]:
        MUTANTS.extend((mutant, name) for name in names)
        return mutant

    return mark


@breaks("it says what it reads and gives")
class Misread(Linear):
    """Reads what no batch can be built for."""

    def __init__(self) -> None:
        super().__init__()
        self.gives = "logits"  # type: ignore[assignment]


@breaks("it gives one score and its vectors per example")
class TwoDimensional(Linear):
    """Leaves one number per example in a column."""

    def forward(self, vectors: Tensor) -> Prediction:
        score = super().forward(vectors).score
        return Prediction(score[:, None] if score.dim() == 1 else score, vectors)


@breaks("it gives one score and its vectors per example")
class UpToTheEdge(Linear):
    """Divides by what it keeps of a vector."""

    def __init__(self, *, dropped: Annotated[float, Field(ge=0, le=1)] = 0.5) -> None:
        super().__init__()
        self.dropped = dropped

    def forward(self, vectors: Tensor) -> Prediction:
        return Prediction(super().forward(vectors).score / torch.tensor(1 - self.dropped), vectors)


@breaks("it works on a batch of one")
class Squeezes(Linear):
    """Squeezes more than it should."""

    def forward(self, vectors: Tensor) -> Prediction:
        return Prediction(super().forward(vectors).score.squeeze(), vectors)


@breaks("each example is scored by itself")
class LooksAround(Linear):
    """Lets an example's score depend on its batch."""

    def forward(self, vectors: Tensor) -> Prediction:
        prediction = super().forward(vectors)
        return Prediction(prediction.score - prediction.score.mean(0), vectors)


@breaks("it decides in the units of the labels")
class Undecided(Cosine):
    """Decides for a value where the labels are classes."""

    def decide(self, score: Tensor) -> Tensor:
        return score


@breaks("gradients reach its input and its parameters")
class Detached(Linear):
    """Cuts the gradient off."""

    def forward(self, vectors: Tensor) -> Prediction:
        return super().forward(vectors.detach())


@breaks("its gradients are those of finite differences")
class StraightThrough(Linear):
    """Rounds its score and passes the gradient on."""

    def forward(self, vectors: Tensor) -> Prediction:
        score = super().forward(vectors).score
        return Prediction(score + (score.round() - score).detach(), vectors)


@breaks("extreme vectors give finite scores and gradients")
class Normalised(Linear):
    """Divides by a length that may be zero."""

    def forward(self, vectors: Tensor) -> Prediction:
        return super().forward(vectors / vectors.norm(dim=-1, keepdim=True))


@breaks("it leaves its vectors as they are")
class InPlace(Linear):
    """Works where the encoder's vectors are."""

    def forward(self, vectors: Tensor) -> Prediction:
        return super().forward(vectors.mul_(2) if not vectors.requires_grad else vectors)


@breaks("it works in bfloat16")
class ThroughNumpy(Linear):
    """Goes through numpy, which has no bfloat16."""

    def forward(self, vectors: Tensor) -> Prediction:
        vectors.detach().numpy()
        return super().forward(vectors)


@breaks("one seed gives one head and one pass")
class Counts(Linear):
    """Counts how many were made."""

    made = 0

    def build(self, **given: Any) -> None:
        super().build(**given)
        Counts.made += 1

    def forward(self, vectors: Tensor) -> Prediction:
        return Prediction(super().forward(vectors).score + Counts.made, vectors)


@breaks("it touches no global random state")
class InitialisedGlobally(Linear):
    """Draws its weights from the global state."""

    def build(self, **given: Any) -> None:
        super().build(**given)
        self.last.reset_parameters()


@breaks("its state survives saving")
class Unsaved(Linear):
    """Keeps a tensor out of its state."""

    def build(self, **given: Any) -> None:
        super().build(**given)
        self.extra = torch.randn(1, generator=given["generator"])

    def forward(self, vectors: Tensor) -> Prediction:
        return Prediction(super().forward(vectors).score + self.extra, vectors)


@breaks("its state survives saving")
class CountsItsSteps(Linear):
    """Keeps the number of its steps where no checkpoint finds it."""

    steps = 0

    def forward(self, vectors: Tensor) -> Prediction:
        self.steps += self.training
        return super().forward(vectors * (1 + 0.1 * self.steps))


@breaks("its state survives saving")
class WarmsUp(Linear):
    """Is another one in its first steps, which it counts where no checkpoint finds them."""

    steps = 0

    def forward(self, vectors: Tensor) -> Prediction:
        self.steps += self.training
        return super().forward(vectors / 2 if self.training and self.steps < 3 else vectors)


class Centred(Linear):
    """Takes away the mean of what it saw in training."""

    name = "centred"

    def build(self, **given: Any) -> None:
        super().build(**given)
        self.register_buffer("mean", torch.zeros(given["width"]))

    def forward(self, vectors: Tensor) -> Prediction:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * self.seen(vectors).mean((0, 1))
        return super().forward(vectors - self.mean)

    def seen(self, vectors: Tensor) -> Tensor:
        return vectors.detach()


@breaks("one step of training follows another")
class KeepsTheGraph(Centred):
    """Keeps with the mean how it came about."""

    def seen(self, vectors: Tensor) -> Tensor:
        return vectors


class _Extra:
    """Saves an object."""

    def get_extra_state(self) -> Any:
        return {1, 2}

    def set_extra_state(self, state: Any) -> None:
        pass


@breaks("its state is tensors")
class PickledHead(_Extra, Linear):
    """A head that saves an object."""


@pytest.mark.parametrize(("mutant", "law"), MUTANTS, ids=lambda x: getattr(x, "__name__", x))
def test_a_mutant_is_caught(mutant: type[Component], law: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(f"breaks the law {law!r}: ")):
        LAWS[law](mutant)


def test_every_law_has_a_mutant() -> None:
    own = {name for name, law in LAWS.items() if law.holds not in general.LAWS}
    assert own == {law for _, law in MUTANTS}


def test_a_head_that_keeps_a_mean_as_it_should_passes() -> None:
    for name in ("one step of training follows another", "its state survives saving"):
        LAWS[name](Centred)
