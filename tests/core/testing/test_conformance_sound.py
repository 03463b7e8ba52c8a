"""Losses that do something unusual for a good reason keep every law; the same done wrongly is caught."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy, multi_margin_loss, normalize

from taskloom.core import Loss, Prediction, TrainingError
from taskloom.core.testing import broken_laws, check
from taskloom.plugins.losses import MSE, Smart, Total

GRADIENT = "its gradient is that of finite differences"
SUM = "the loss of a batch is no sum"


class Upcast(Loss):
    """Cross-entropy in float32, whatever the score is in."""

    name = "upcast"
    expects = "classes"
    separable = True

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        return cross_entropy(prediction.score.float(), target)


class UpcastAndBack(Loss):
    """A margin between classes in float32, in the precision of the score again."""

    name = "upcast_and_back"
    expects = "classes"

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        return multi_margin_loss(prediction.score.float(), target).to(prediction.score.dtype)


class UpcastInPart(Upcast):
    """Float32 for one of two terms only."""

    name = "upcast_in_part"

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        return super().forward(prediction, target) + prediction.score.square().mean()


class BatchHard(Loss):
    """Each example against the farthest of its class and the nearest of another."""

    name = "batch_hard"
    expects = "vectors"

    def prepare(self, *, labels: Any, rows: int) -> None:
        if not labels.classes:
            raise TrainingError("batch_hard needs classes")

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        vectors = normalize(prediction.vectors[0].float(), dim=-1)
        apart = (vectors[:, None] - vectors[None]).square().sum(-1)  # [B, B]
        same = target[:, None] == target[None]
        farthest, nearest = (apart * same).amax(1), apart.masked_fill(same, 4.0).amin(1)
        return (0.3 + farthest - nearest).relu().mean()


class BatchHardSummed(BatchHard):
    """The sum over the examples."""

    name = "batch_hard_summed"

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        return super().forward(prediction, target) * len(target)


class SimSiam(Loss):
    """Each of two vectors should be near the other as it stands."""

    name = "simsiam"
    expects = "vectors"
    vectors = (2,)
    separable = True
    stops_gradient = True

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        a, b = prediction.vectors if prediction.vectors.dtype is torch.float64 else prediction.vectors.float()
        return -(cosine_similarity(a, b.detach()) + cosine_similarity(b, a.detach())).mean() / 2


class ByItsMean(Loss):
    """Cross-entropy as a share of what it has been of late."""

    name = "by_its_mean"
    expects = "classes"
    stops_gradient = True
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.ones(()))

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        value = cross_entropy(prediction.score, target)
        self.mean.lerp_(value.detach().to(self.mean.dtype), 0.1)
        return value / self.mean.clone()


class ByItself(Loss):
    """Weighs each example by its loss."""

    name = "by_itself"
    expects = "classes"
    stops_gradient = True

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        losses = cross_entropy(prediction.score, target, reduction="none")
        return (losses.detach().softmax(0) * losses).sum()


class CountsBatches(MSE):
    """Grows from batch to batch, however many parts a batch has."""

    name = "counts_batches"
    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        if prediction.part == 0:
            self.steps += 1
        return super().forward(prediction, target) * (1 - 0.5 ** self.steps.item())


STOPPING: list[type[Loss]] = [SimSiam, ByItsMean, ByItself]


@pytest.mark.parametrize("sound", [Upcast, UpcastAndBack, UpcastInPart, BatchHard, CountsBatches, *STOPPING])
def test_a_sound_loss_passes(sound: type[Loss]) -> None:
    check(sound)


@pytest.mark.parametrize("sound", STOPPING)
def test_a_gradient_that_is_stopped_has_to_be_announced(sound: type[Loss]) -> None:
    class Silent(sound):  # type: ignore[misc, valid-type]
        """Does not say so."""

        stops_gradient = False

    assert broken_laws(Silent) == [GRADIENT]
    with pytest.raises(AssertionError, match=r"detached on purpose, say stops_gradient = True$"):
        check(Silent)


def test_what_is_announced_frees_from_no_other_law_nor_from_having_a_gradient() -> None:
    class Gone(ByItself):
        """Nothing of it can be learnt from, and the first example counts more."""

        def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
            return (super().forward(prediction, target) + prediction.score[0, 0]).detach()

    assert broken_laws(Gone) == [GRADIENT, "the order of examples does not matter"]


def test_what_wraps_a_loss_that_stops_its_gradient_says_so_too() -> None:
    for inner in (MSE(), SimSiam()):
        assert Total(losses=[MSE(), inner]).stops_gradient == inner.stops_gradient
        assert Smart(loss=inner).stops_gradient == inner.stops_gradient


def test_a_sum_is_told_from_a_mean_over_the_hardest() -> None:
    assert broken_laws(BatchHardSummed) == [SUM]
