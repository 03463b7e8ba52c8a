"""F1 of one class, or of several taken together."""

import numpy as np
from numpy.typing import NDArray

from taskloom.core import Metric


class F1(Metric):
    """The harmonic mean of precision and recall of one class, or of several as if they were one (micro average).

    F1 = 2·hits / (predicted as one of them + expected as one of them), where a hit is predicted as its own class. 0 if
    none of them is ever predicted or expected.

    Reads: class numbers.

    Options:
        classes: the number of the class, or a list of numbers; by default 1, the second class, which is the positive
            one where a label says whether something is so

    Siblings: ``macro_f1`` is the mean over all classes, rare ones as heavy as frequent ones; with all classes listed
    this is ``accuracy``.

    Example: ``{"tasks": {"para": {"metric": {"name": "f1", "classes": 1}}}}``
    """

    name = "f1"
    reads = "classes"
    range = (0.0, 1.0)

    def __init__(self, *, classes: int | list[int] = 1) -> None:
        self.classes = classes if isinstance(classes, list) else [classes]
        if not self.classes or min(self.classes) < 0:
            raise ValueError(f"classes should be numbers of classes, from 0 on. Found {classes}.")

    def __call__(self, predicted: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
        hits, guessed, real = self._counts(predicted, expected)
        size = guessed.sum() + real.sum()
        return float(2 * hits.sum() / size) if size else 0.0

    def influence(self, predicted: NDArray[np.float64], expected: NDArray[np.float64]) -> NDArray[np.float64]:
        hits, guessed, real = self._counts(predicted, expected)
        size = float(guessed.mean() + real.mean())
        if not size:
            return np.zeros(len(expected))
        influence: NDArray[np.float64] = (2 * hits - self(predicted, expected) * (guessed + real)) / size
        centred: NDArray[np.float64] = influence - influence.mean()
        return centred

    def _counts(
        self, predicted: NDArray[np.float64], expected: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Which examples are hits, are predicted as one of the classes, and are labelled as one, [n] each."""
        guessed, real = (np.isin(values, self.classes) for values in (predicted, expected))
        hits = guessed & (predicted == expected)
        return hits.astype(np.float64), guessed.astype(np.float64), real.astype(np.float64)
