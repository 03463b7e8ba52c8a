"""For every law of losses, a loss that breaks it and is caught."""

import random
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from taskloom.core import Loss, Prediction, TrainingError
from taskloom.core.testing import broken_laws, check, general, laws
from taskloom.plugins.losses import MNR, MSE, CrossEntropy

LAWS = {law.name: law for law in laws("loss")}
MUTANTS: list[tuple[type[Loss], str]] = []


def breaks(*names: str) -> Callable[[type[Loss]], type[Loss]]:
    def mark(mutant: type[Loss]) -> type[Loss]:
        MUTANTS.extend((mutant, name) for name in names)
        return mutant

    return mark


_COUNT = count()


@breaks("it says what it expects")
class Misspelt(CrossEntropy):
    """Says that it expects what nobody knows."""

    expects = "class"  # type: ignore[assignment]


@breaks("it is one finite number")
class Unreduced(MSE):
    """Forgets to take the mean."""

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        return (prediction.score - target).square()


@breaks("it is one finite number", "one seed gives one loss")
class AtTheEdge(MSE):
    """Fails at one choice of an option only."""

    def __init__(self, *, share: Annotated[float, Field(ge=0, lt=1)] = 0.5, moody: bool = False) -> None:
        super().__init__()
        self.share, self.moody = share, moody

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        noise = next(_COUNT) if self.moody else 0
        return super().forward(prediction, target) + (1 / self.share if self.share else float("nan")) + noise


@breaks("a batch of one has a finite loss and gradient")
class Standardised(MSE):
    """Divides by a deviation that one example does not have."""

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        return ((prediction.score - target) / (prediction.score - target).std()).square().mean()


@breaks("extreme scores have a finite loss and gradient")
class Exponential(MSE):
    """Takes the exponential of a score."""

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        return (prediction.score - target).abs().exp().mean()


@breaks("extreme scores have a finite loss and gradient")
class Root(MSE):
    """Has no slope at zero."""

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        return prediction.score.abs().sqrt().mean()


@breaks("extreme scores have a finite loss and gradient")
class Power(CrossEntropy):
    """Weighs an example by a power of what is missed, which has no slope at zero where the power is below 1."""

    def __init__(self, *, gamma: Annotated[float, Field(ge=0)] = 2.0) -> None:
        super().__init__()
        self.gamma = gamma

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        nll = cross_entropy(prediction.score, target, reduction="none")
        return ((1 - torch.exp(-nll)) ** self.gamma * nll).mean()


@breaks("its gradient is that of finite differences")
class WrongGradient(MSE):
    """Its gradient is not that of its value."""

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        value = super().forward(prediction, target)
        return value + value.detach() * value - value.detach() ** 2


@breaks("its gradient is that of finite differences")
class Halved(MSE):
    """Half the gradient, where an option says so."""

    def __init__(self, *, way: Literal["whole", "half"] = "whole") -> None:
        super().__init__()
        self.way = way

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        value = super().forward(prediction, target)
        return value if self.way == "whole" else (value + value.detach()) / 2


@breaks("its gradient is that of finite differences")
class ShortInFloat32(CrossEntropy):
    """Nine tenths of the gradient, computed in float32."""

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        value = cross_entropy(prediction.score.float(), target)
        return 0.9 * value + 0.1 * value.detach()


@breaks("the order of examples does not matter")
class FirstCounts(MSE):
    """Weighs the first example more."""

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        return super().forward(prediction, target) + prediction.score[0] ** 2


@breaks("the order of examples does not matter")
class NoisyFirst(MSE):
    """Weighs the first example more, under noise."""

    def __init__(self) -> None:
        super().__init__()
        self.generator: torch.Generator | None = None

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        noise = torch.randn(len(target), generator=self.generator)
        return (prediction.score + 0.1 * noise - target).square().mean() + prediction.score[0] ** 2


class Noisy(NoisyFirst):
    """Noise on each score, and nothing wrong with it."""

    name = "noisy"

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        noise = torch.randn(len(target), generator=self.generator).to(prediction.score)
        return super(NoisyFirst, self).forward(replace(prediction, score=prediction.score + 0.1 * noise), target)


@breaks("the loss of a batch is no sum")
class Summed(MSE):
    """The sum over the examples, and says that it looks across them."""

    separable = False

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        return (prediction.score.float() - target).square().sum()


@breaks("a separable loss is the mean over its examples")
class CountsParts(MSE):
    """Counts the parts of a batch where it should count batches, which changes nothing else yet."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        self.steps += 1
        return super().forward(prediction, target)


@breaks("a separable loss is the mean over its examples")
class WarmsUpByParts(CountsParts):
    """Grows from part to part."""

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        return super().forward(prediction, target) * (1 - 0.5**self.steps)


@breaks("a separable loss is the mean over its examples")
class SaysSeparable(MNR):
    """Looks across the batch, and says that it does not."""

    separable = True


@breaks("a separable loss is the mean over its examples")
class SummedSeparably(Summed):
    """The sum over the examples, called their mean."""

    separable = True


@breaks("it works in every precision")
class OnlyDouble(MSE):
    """Cannot work with less than float64."""

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        return (prediction.score @ torch.ones(len(target), dtype=torch.float64)) ** 2


@breaks("it works in every precision")
class NoHalf(MSE):
    """Cannot work with half precision."""

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        worst = int(prediction.score.detach().numpy().argmax())  # numpy has no bfloat16
        return super().forward(prediction, target) + 0 * worst


@breaks("it touches no global random state")
class GlobalNoise(MSE):
    """Draws from torch's global state."""

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        torch.rand(1)
        return super().forward(prediction, target)


@breaks("it touches no global random state")
class Seeds(MSE):
    """Sets torch's global state to the same number each time, and draws from it."""

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        torch.manual_seed(0)
        return super().forward(prediction, target) + 0 * torch.randn(())


@breaks("it touches no global random state")
class SeedsBefore(MSE):
    """Sets Python's global state before training."""

    def prepare(self, *, labels: Any, rows: int) -> None:
        random.seed(rows)
        super().prepare(labels=labels, rows=rows)


@breaks("it touches no global random state")
class DrawsBetween(MSE):
    """Draws from numpy's global state after an epoch."""

    def epoch_ended(self, *, epoch: int, score: float) -> None:
        np.random.rand()


@breaks("it leaves prediction and target as they are")
class InPlace(MSE):
    """Smooths the target where it is."""

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        target.mul_(2)
        return super().forward(prediction, target)


@breaks("one step of training follows another")
class KeepsTheGraph(MSE):
    """Follows the mean of its own losses, with all steps that led there."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.ones(()))

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        self.mean = (self.mean + super().forward(prediction, target)) / 2
        return self.mean


@breaks("one step of training follows another")
class KeepsThePrediction(MSE):
    """Pulls the scores to those of the step before, which it keeps with their graph."""

    before: Tensor | None = None

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        value = super().forward(prediction, target)
        if self.before is not None:
            value = value + (prediction.score - self.before).square().mean()
        self.before = prediction.score
        return value


@breaks("its state survives saving")
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


@breaks("its state survives saving")
class RunningMean(MSE):
    """Divides by the mean of all losses so far, in two plain numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.total, self.steps = 0.0, 0

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        value = super().forward(prediction, target)
        self.total, self.steps = self.total + float(value), self.steps + 1
        return value * self.steps / self.total


@breaks("its state survives saving")
class LosesTheEpoch(MSE):
    """Moves by what it added up in the epoch, which is lost with a checkpoint in its middle."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0.0
        self.register_buffer("margin", torch.zeros(()))

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        value = super().forward(prediction, target)
        self.total += float(value)
        return value + self.margin

    def epoch_ended(self, *, epoch: int, score: float) -> None:
        self.margin.fill_(self.total)
        self.total = 0.0


@breaks("its state is tensors")
class Pickled(MSE):
    """Saves an object."""

    def get_extra_state(self) -> Any:
        return {"labels": self.labels}

    def set_extra_state(self, state: Any) -> None:
        self.labels = state["labels"]


@breaks("its figures are finite numbers")
class Wordy(MSE):
    """Reports words."""

    def figures(self) -> dict[str, float]:
        return {"target": self.target}  # type: ignore[dict-item]


@pytest.mark.parametrize(("mutant", "law"), MUTANTS, ids=lambda x: getattr(x, "__name__", x))
def test_a_mutant_is_caught(mutant: type[Loss], law: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(f"breaks the law {law!r}: ")):
        LAWS[law](mutant)


def test_every_law_has_a_mutant() -> None:
    own = [name for name, law in LAWS.items() if law.holds not in general.LAWS]
    assert set(own) == {law for _, law in MUTANTS}


class Weighted(CrossEntropy):
    """Classes have weights, in a buffer of float32."""

    name = "weighted"
    separable = False
    weight: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.tensor([1.0, 2.0, 0.5]))

    def prepare(self, *, labels: Any, rows: int) -> None:
        if labels.classes != 3:
            raise TrainingError(f"there are weights for 3 classes. Found {labels.classes}.")

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        return cross_entropy(prediction.score, target, weight=self.weight)


class Wrapped(Loss):
    """Twice another loss.

    Options:
        loss: what is doubled
    """

    name = "wrapped"

    def __init__(self, *, loss: Loss) -> None:
        super().__init__()
        self.loss = loss
        self.expects, self.vectors = loss.expects, loss.vectors

    def prepare(self, *, labels: Any, rows: int) -> None:
        self.loss.prepare(labels=labels, rows=rows)

    def epoch_ended(self, *, epoch: int, score: float) -> None:
        self.loss.epoch_ended(epoch=epoch, score=score)

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        doubled: Tensor = 2 * self.loss(prediction, target)
        return doubled


class OnlyTriples(Loss):
    """Works with three vectors and no other number, and says so beforehand."""

    name = "only_triples"
    expects = "vectors"
    vectors = (3,)

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        anchor, positive, negative = (
            prediction.vectors.float() if prediction.vectors.dtype is torch.bfloat16 else prediction.vectors
        )
        return (1 + (anchor - positive).square().mean(1) - (anchor - negative).square().mean(1)).relu().mean()


@pytest.mark.parametrize("sound", [Weighted, Wrapped, OnlyTriples, Noisy])
def test_a_sound_loss_passes(sound: type[Loss]) -> None:
    check(sound)


def test_a_loss_that_wraps_another_is_held_with_the_one_given() -> None:
    check(Wrapped, loss=CrossEntropy())
    assert "its state survives saving" in broken_laws(Wrapped, loss=Forgetful())


def test_one_reason_is_told_once_with_every_law_and_its_input() -> None:
    class Layered(MSE):
        """Puts a layer of its own precision on the score."""

        name = "layered"
        separable = False

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(7))

        def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
            return super().forward(prediction, target) + (prediction.score @ self.weight[: len(target)].half())

    with pytest.raises(AssertionError) as caught:
        check(Layered)
    message = str(caught.value)
    head, *rest = message.splitlines()
    assert re.match(r"loss 'layered': \d+ laws break for one reason: RuntimeError: .*line \d+\)$", head)
    grouped = [line for line in rest if line.startswith("  '")]
    assert len(grouped) == int(re.findall(r"(\d+) laws", head)[0]) >= 5
    assert all("with labels of 2 classes, 2 vectors per example" in line for line in grouped)


def test_the_precision_is_named() -> None:
    with pytest.raises(AssertionError, match=r"'it works in every precision': with .*, in float32: RuntimeError: "):
        LAWS["it works in every precision"](OnlyDouble)
    with pytest.raises(AssertionError, match=r"'it works in every precision': with .*, in bfloat16: TypeError: "):
        LAWS["it works in every precision"](NoHalf)


def test_the_option_at_whose_edge_a_law_breaks_is_named() -> None:
    with pytest.raises(AssertionError, match=r"\(share=0\.0\) breaks .* with labels .*: the loss is not finite: nan"):
        LAWS["it is one finite number"](AtTheEdge)
    with pytest.raises(AssertionError, match=r"\(way='half'\) breaks .*moved by a little it rises by"):
        LAWS["its gradient is that of finite differences"](Halved)
