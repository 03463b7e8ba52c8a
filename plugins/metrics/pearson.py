"""Pearson's correlation."""

import numpy as np
from numpy.typing import NDArray

from taskloom.core import Metric


def correlation_of(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Pearson's r of two rows of numbers [n]; 0 where one of them is constant and r is not defined."""
    if (a == a[0]).all() or (b == b[0]).all():
        return 0.0
    # Scaled to a largest value of 1, so that squares neither overflow nor underflow.
    a, b = (x / np.abs(x).max() for x in (a, b))
    a, b = a - a.mean(), b - b.mean()
    a, b = (x / np.abs(x).max() for x in (a, b))
    return float(np.clip(a @ b / np.sqrt((a @ a) * (b @ b)), -1.0, 1.0))


class Pearson(Metric):
    """How well a straight line maps the predictions to the labels, from −1 to 1.

    r = Σ (ŷᵢ − mean ŷ)(yᵢ − mean y) / √(Σ (ŷᵢ − mean ŷ)² · Σ (yᵢ − mean y)²)

    Where all predictions (or all labels) are the same, r is not defined; the score is then 0.0, so that a model
    with a constant prediction ranks as one that guesses.

    Reads: values.

    Siblings: ``spearman`` looks only at the order.

    Example: ``{"tasks": {"sts": {"metric": "pearson"}}}``
    """

    name = "pearson"
    correlation = True
    range = (-1.0, 1.0)

    def __call__(self, predicted: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
        return correlation_of(predicted, expected)

    def influence(self, predicted: NDArray[np.float64], expected: NDArray[np.float64]) -> NDArray[np.float64]:
        """φ = z_x z_y − r (z_x² + z_y²) / 2 with standardised predictions and labels; 0 where one is constant."""
        if np.ptp(predicted) == 0 or np.ptp(expected) == 0:
            return np.zeros(len(expected))
        x, y = ((values - values.mean()) / values.std() for values in (predicted, expected))
        influence: NDArray[np.float64] = x * y - (x * y).mean() * (x * x + y * y) / 2
        return influence
