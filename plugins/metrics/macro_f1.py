"""Macro-averaged F1."""

import numpy as np
from numpy.typing import NDArray

from taskloom.core import Metric


class MacroF1(Metric):
    """The mean over classes of the harmonic mean of precision and recall.

    F1(c) = 2·hits / (predicted as c + expected as c), averaged over the classes that occur among the labels or
    the predictions. A class that is predicted but never right, or never predicted, counts as 0.

    Reads: class numbers.

    Siblings: ``accuracy`` weighs every example the same.

    Example: ``{"tasks": {"sst": {"metric": "macro_f1"}}}``
    """

    name = "macro_f1"
    reads = "classes"
    range = (0.0, 1.0)

    def __call__(self, predicted: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
        guessed, real = _by_class(predicted, expected)  # [C, n]
        hits = (guessed & real).sum(1)  # [C]
        return float(np.mean(2 * hits / (guessed.sum(1) + real.sum(1))))

    def influence(self, predicted: NDArray[np.float64], expected: NDArray[np.float64]) -> NDArray[np.float64]:
        guessed, real = _by_class(predicted, expected)
        hits = guessed & real
        a, b, d = (flags - flags.mean(1, keepdims=True) for flags in (hits, guessed, real))  # [C, n]
        size = guessed.mean(1, keepdims=True) + real.mean(1, keepdims=True)
        f1 = 2 * hits.mean(1, keepdims=True) / size  # [C, 1]
        influence: NDArray[np.float64] = ((2 * a - f1 * (b + d)) / size).mean(0)
        return influence


def _by_class(
    predicted: NDArray[np.float64], expected: NDArray[np.float64]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which examples are predicted as, and which are labelled as, each class that occurs, [C, n]."""
    classes = np.union1d(predicted, expected)[:, None]
    return predicted == classes, expected == classes
