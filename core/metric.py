"""Metrics: predictions and labels → one number, larger is better."""

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from taskloom.core.component import Component


class Metric(Component, ABC):
    """Scores the predictions of a split.

    ``correlation`` marks a metric in [−1, 1], which ``overall: normalised`` maps to (r + 1)/2 first.
    """

    kind: ClassVar[str] = "metric"
    correlation: ClassVar[bool] = False
    #: Which labels it can judge: class numbers, values, or either.
    reads: ClassVar[Literal["classes", "values", "either"]] = "either"

    @abstractmethod
    def __call__(self, predicted: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
        """The score of predictions [n] (what ``Head.decide`` gave) against labels [n]."""
