"""Metrics that break a law, and metrics that are choosy."""

from typing import Any

import numpy as np
import torch
from mutants.base import Cosine, mutant, then

from taskloom.core import Metric, TaskloomError


class Nearness(Metric):
    """One less the mean distance; it takes labels up to 1 only."""

    name = "nearness"
    reads = "values"

    def __call__(self, predicted: Any, expected: Any) -> float:
        if expected.max() > 1:
            raise ValueError("metric 'nearness' should have labels from 0 to 1")
        return 1 - float(np.abs(predicted - expected).mean())


class OnlyBinary(Metric):
    """The share of right answers to yes-or-no questions."""

    name = "only_binary"
    reads = "classes"

    def __call__(self, predicted: Any, expected: Any) -> float:
        if not set(np.unique([*predicted, *expected])) <= {0.0, 1.0}:
            raise TaskloomError("metric 'only_binary' should have labels of two classes")
        return float((predicted == expected).mean())


def scored(change: Any, base: type[Metric] = Nearness) -> Any:
    """A score that is changed."""
    return then(base.__call__, change)


def overflowing(self: Any, score: float, predicted: Any, expected: Any) -> float:
    with np.errstate(over="ignore"):
        return -float(np.exp(np.abs(predicted - expected)).sum())


def remembering(self: Any, score: float, predicted: Any, expected: Any) -> float:
    self.seen = getattr(self, "seen", 0) + 1
    return score + self.seen * 1e-10


def reversing(self: Any, score: float, predicted: Any, expected: Any) -> float:
    for array in (predicted, expected):
        array[:] = array[::-1].copy()
    return score


SOUND: list[tuple[type, dict[str, Any]]] = [(Cosine, {}), (Nearness, {}), (OnlyBinary, {})]
MUTANTS = {
    "a score is a finite number": [
        mutant(Nearness, "overflows", __call__=scored(overflowing)),
        mutant(
            OnlyBinary,
            "divides by one less than there are",
            __call__=scored(lambda self, score, p, _: score if len(p) > 1 else float("nan"), OnlyBinary),
        ),
        mutant(Nearness, "calls itself a correlation", correlation=True),
        mutant(Nearness, "gives a number of numpy", __call__=scored(lambda self, score, p, e: np.float64(score))),
    ],
    "the perfect prediction is best": [
        mutant(Nearness, "is better when smaller", __call__=scored(lambda self, score, p, e: -score)),
    ],
    "the order of examples does not matter": [
        mutant(
            Nearness,
            "looks at the first half twice",
            __call__=scored(lambda self, score, p, e: score - float(np.abs(p - e)[:20].sum())),
        ),
    ],
    "influence is one finite number per example": [
        mutant(Nearness, "is not centred", influence=lambda self, p, e: -np.abs(p - e)),
        mutant(Nearness, "gives the variance", influence=lambda self, p, e: np.abs(p - e).var()),
        mutant(OnlyBinary, "divides by nothing", influence=lambda self, p, e: np.where(p == e, 0.0, np.nan)),
    ],
    "scoring twice gives one score": [
        mutant(Nearness, "remembers", __call__=scored(remembering)),
        mutant(OnlyBinary, "turns arrays round", __call__=scored(reversing, OnlyBinary)),
        mutant(Cosine, "makes a layer", __init__=lambda self: setattr(self, "layer", torch.nn.Linear(2, 2))),
        mutant(Nearness, "draws", __call__=scored(lambda self, score, p, e: score + 0 * np.random.rand())),
    ],
}
