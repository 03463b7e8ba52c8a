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

    def __call__(self, predicted: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
        classes = np.union1d(predicted, expected)[:, None]  # [C, 1]
        guessed, real = predicted == classes, expected == classes  # [C, n]
        hits = (guessed & real).sum(1)  # [C]
        return float(np.mean(2 * hits / (guessed.sum(1) + real.sum(1))))
