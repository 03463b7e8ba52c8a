"""Losses that break a law, and losses that do something unusual for a good reason."""

from itertools import count
from typing import Annotated, Any, Literal

import numpy as np
import torch
from mutants.base import SquaredError, mutant
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy, normalize

from taskloom.core import Expects, Loss, Prediction, TrainingError

_COUNT = count()


def squared(prediction: Prediction, target: Tensor) -> Tensor:
    return SquaredError.forward(None, prediction, target)  # type: ignore[arg-type]


def unbiased(self: Any, prediction: Prediction, target: Tensor) -> Tensor:
    count = torch.tensor(len(target))
    return squared(prediction, target) * count / (count - 1)


class AtAnEdge(SquaredError):  # noqa: N818 - a loss
    """Is wrong at one choice of an option only.

    Options:
        way: how
    """

    name = "at_an_edge"

    def __init__(self, *, way: Literal["right", "column", "half", "counted"] = "right") -> None:
        super().__init__()
        self.way, self.made = way, next(_COUNT)

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        value = super().forward(prediction, target)
        ways = {"column": value[None], "half": (value + value.detach()) / 2, "counted": value + self.made}
        return ways[self.way] if self.way == self.wrong else value

    wrong = ""


class Stateful(SquaredError):  # noqa: N818 - a loss
    """Has a buffer."""

    name = "stateful"
    separable = False
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.ones(()))
        self.total = 0.0


def counting_parts(self: Any, prediction: Prediction, target: Tensor) -> Tensor:
    self.mean += 1
    return squared(prediction, target)


def losing_the_epoch(self: Any, prediction: Prediction, target: Tensor) -> Tensor:
    value = squared(prediction, target)
    self.total += value.item()
    return value + self.mean


def after_the_epoch(self: Any, *, epoch: int, score: float, overall: float) -> None:
    self.mean.fill_(self.total)
    self.total = 0.0


def adding_the_score(self: Any, *, epoch: int, score: float, overall: float) -> None:
    self.total += score


def keeping_the_graph(self: Any, prediction: Prediction, target: Tensor) -> Tensor:
    self.mean = (self.mean + squared(prediction, target)) / 2
    return self.mean


class Noisy(SquaredError):  # noqa: N818 - a loss
    """Noise on each score, from its generator."""

    name = "noisy"
    separable = False

    def __init__(self) -> None:
        super().__init__()
        self.generator: torch.Generator | None = None

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        noise = torch.randn(len(target), generator=self.generator, device=target.device)
        return (prediction.score + 0.1 * noise - target).square().mean()


def drawing_on_the_host(self: Any, prediction: Prediction, target: Tensor) -> Tensor:
    noise = torch.randn(len(target), generator=self.generator).to(target.device)
    return (prediction.score + 0.1 * noise - target).square().mean()


class Contrast(Loss):
    """Each left text should be nearest to its right one."""

    name = "contrast"
    expects = "vectors"
    vectors = (2,)
    reduction = "mean"

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        vectors = prediction.vectors
        left, right = vectors if vectors.dtype is torch.float64 else vectors.float()
        near = cosine_similarity(left[:, None], right[None], dim=-1, eps=1e-6)
        return cross_entropy(2 * near, self.places(near), reduction=self.reduction)

    def places(self, near: Tensor) -> Tensor:
        return torch.arange(len(near), device=near.device)


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


class UpcastInPart(Loss):
    """Cross-entropy in float32, and a second term in the precision of the score."""

    name = "upcast_in_part"
    expects = "classes"

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        return cross_entropy(prediction.score.float(), target) + prediction.score.square().mean()


class SimSiam(Loss):
    """Each of two vectors should be near the other as it is."""

    name = "simsiam"
    expects = "vectors"
    vectors = (2,)
    separable = True
    stops_gradient = True

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        a, b = prediction.vectors if prediction.vectors.dtype is torch.float64 else prediction.vectors.float()
        return -(cosine_similarity(a, b.detach()) + cosine_similarity(b, a.detach())).mean() / 2


class CountsBatches(Stateful):
    """Grows from batch to batch, however many parts a batch has."""

    name = "counts_batches"
    separable = True

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        if prediction.part == 0:
            self.mean += 1
        return super().forward(prediction, target) * (1 - 0.5 ** self.mean.item())


class Wrapped(Loss):
    """Twice another loss.

    Options:
        loss: what is doubled
        factor: how much more
    """

    name = "wrapped"
    expects: Expects

    def __init__(self, *, loss: Loss, factor: Annotated[float, Field(gt=0, le=4)] = 2.0) -> None:
        super().__init__()
        self.loss, self.factor = loss, factor
        self.expects, self.score_means, self.vectors = loss.expects, loss.score_means, loss.vectors

    def epoch_ended(self, *, epoch: int, score: float, overall: float) -> None:
        self.loss.epoch_ended(epoch=epoch, score=score, overall=overall)

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        return self.factor * self.loss(prediction, target)  # type: ignore[no-any-return]


#: What makes a module save an object, which would have to be unpickled.
PICKLED: dict[str, Any] = {"get_extra_state": lambda self: {1, 2}, "set_extra_state": lambda self, state: None}
FORGETFUL = mutant(
    Stateful,
    "adds scores up in a plain number",
    forward=lambda self, p, t: squared(p, t) + self.total,
    epoch_ended=adding_the_score,
)
SOUND: list[tuple[type, dict[str, Any]]] = [
    *((one, {}) for one in (SquaredError, AtAnEdge, Noisy, Contrast, BatchHard, UpcastInPart, SimSiam)),
    (CountsBatches, {}),
    (Wrapped, {"loss": SquaredError()}),
    (Wrapped, {"loss": UpcastInPart()}),
]
MUTANTS = {
    "it says what it looks at": [
        mutant(SquaredError, "expects what nobody knows", expects="scores"),
        mutant(Loss, "does not say what it expects", forward=SquaredError.forward),
        mutant(SquaredError, "does not say what its score means", score_means=None),
    ],
    "it is one finite number with a finite gradient": [
        mutant(SquaredError, "keeps a dimension", forward=lambda self, p, t: squared(p, t)[None]),
        mutant(AtAnEdge, AtAnEdge.__doc__, wrong="column"),
        mutant(SquaredError, "divides by n − 1", separable=False, forward=unbiased),
        mutant(SquaredError, "overflows", forward=lambda self, p, t: (p.score.float() / 10).exp().mean()),
        mutant(SquaredError, "has no slope at zero", forward=lambda self, p, t: p.score.abs().sqrt().mean()),
    ],
    "its gradient is that of finite differences": [
        mutant(SquaredError, "is detached", forward=lambda self, p, t: squared(p, t).detach()),
        mutant(AtAnEdge, AtAnEdge.__doc__, wrong="half"),
        mutant(
            SquaredError,
            "has nine tenths of the gradient, in float32",
            forward=lambda self, p, t: 0.9 * (v := (p.score.float() - t).square().mean()) + 0.1 * v.detach(),
        ),
        mutant(SimSiam, "does not say that it stops the gradient", stops_gradient=False),
        mutant(SimSiam, "stops all of the gradient", forward=lambda self, p, t: SimSiam.forward(self, p, t).detach()),
    ],
    "the order of examples does not matter": [
        mutant(
            SquaredError, "weighs the first", separable=False, forward=lambda self, p, t: squared(p, t) + p.score[0]
        ),
        mutant(Noisy, "weighs the first", forward=lambda self, p, t: Noisy.forward(self, p, t) + p.score[0] ** 2),
    ],
    "the loss of a batch is not a sum": [
        mutant(SquaredError, "sums", separable=False, forward=lambda self, p, t: squared(p, t) * len(t)),
        mutant(Contrast, "sums over the batch", reduction="sum"),
    ],
    "a separable loss is the mean over its examples": [
        mutant(Stateful, "counts parts for batches", separable=True, forward=counting_parts),
        mutant(Contrast, "looks across the batch", separable=True),
    ],
    "it works in half precision": [
        mutant(
            SquaredError,
            "uses numpy",
            forward=lambda self, p, t: squared(p, t) + 0 * p.score.detach().cpu().numpy().max(),
        ),
    ],
    "it works on a gpu": [
        mutant(Contrast, "counts on the host", places=lambda self, near: torch.arange(len(near))),
        mutant(Noisy, "draws on the host", forward=drawing_on_the_host),
        mutant(
            SquaredError,
            "is another one there",
            forward=lambda self, p, t: squared(p, t) * (1 + (p.score.device.type != "cpu")),
        ),
    ],
    "its randomness comes from its generator": [
        mutant(SquaredError, "draws", forward=lambda self, p, t: squared(p, t) + 0 * torch.rand(1)[0]),
        mutant(SquaredError, "seeds before training", prepare=lambda self, **given: torch.manual_seed(0)),
        mutant(SquaredError, "draws after an epoch", epoch_ended=lambda self, **given: np.random.rand()),
        mutant(AtAnEdge, AtAnEdge.__doc__, wrong="counted"),
    ],
    "it leaves prediction and target as they are": [
        mutant(SquaredError, "doubles the target in place", forward=lambda self, p, t: squared(p, t.mul_(2))),
    ],
    "its state survives saving": [
        FORGETFUL,
        mutant(Stateful, "loses the sum", forward=losing_the_epoch, epoch_ended=after_the_epoch),
        mutant(Stateful, "keeps the graph in a buffer", forward=keeping_the_graph),
        mutant(SquaredError, "saves an object", **PICKLED),
        mutant(SquaredError, "reports words", metrics=lambda self: {"of": "it"}),
    ],
}
