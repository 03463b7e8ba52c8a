"""Accuracy."""

import numpy as np
from numpy.typing import NDArray

from taskloom.core import Metric


class Accuracy(Metric):
    """The share of examples whose predicted class is the expected one.

    accuracy = 1/n Σ [ŷᵢ = yᵢ]

    Reads: class numbers.

    Siblings: ``macro_f1`` gives rare classes the same weight as frequent ones.

    Example: ``{"tasks": {"sst": {"metric": "accuracy"}}}``
    """

    name = "accuracy"
    counts_right = True
    reads = "classes"
    range = (0.0, 1.0)

    def __call__(self, predicted: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
        return float(np.mean(predicted == expected))

    def influence(self, predicted: NDArray[np.float64], expected: NDArray[np.float64]) -> NDArray[np.float64]:
        hits: NDArray[np.float64] = (predicted == expected).astype(np.float64)
        return hits - float(hits.mean())
