"""Matthews' correlation coefficient."""

import numpy as np
from numpy.typing import NDArray

from taskloom.core import Metric


class MCC(Metric):
    """The correlation of predicted and expected classes, from −1 to 1 (Matthews 1975; Gorodkin 2004 for many classes).

    R = cov(Ŷ, Y) / √(cov(Ŷ, Ŷ) · cov(Y, Y)), where Ŷ and Y have a column of 0 and 1 for every class and cov is the sum
    over columns of their covariances. Of two classes it is Pearson's r of 0 and 1. Where all predictions (or all
    labels) are the same class, R is not defined; the score is then 0.0, as for ``pearson``.

    Reads: class numbers.

    Siblings: ``accuracy`` may be high for a model that always predicts the frequent class; R is then 0. ``overall:
    normalised`` maps it to (R + 1)/2, as it does any correlation.

    Reference: Gorodkin, "Comparing two K-category assignments by a K-category correlation coefficient", 2004.

    Example: ``{"tasks": {"cola": {"metric": "mcc"}}}``
    """

    name = "mcc"
    correlation = True
    reads = "classes"
    range = (-1.0, 1.0)

    def __call__(self, predicted: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
        both, of_predicted, of_expected = (parts.mean() for parts in _covariance_parts(predicted, expected))
        size = np.sqrt(of_predicted * of_expected)
        return float(np.clip(both / size, -1.0, 1.0)) if size else 0.0

    def influence(self, predicted: NDArray[np.float64], expected: NDArray[np.float64]) -> NDArray[np.float64]:
        """φ follows from R = A / √(B_x B_y): each example's part of A, B_x and B_y, less their means."""
        parts = _covariance_parts(predicted, expected)
        both, of_predicted, of_expected = (part.mean() for part in parts)
        size = np.sqrt(of_predicted * of_expected)
        if not size:
            return np.zeros(len(expected))
        changes = [part - part.mean() for part in parts]
        score = both / size
        influence: NDArray[np.float64] = changes[0] / size - score / 2 * (
            changes[1] / of_predicted + changes[2] / of_expected
        )
        return influence


def _covariance_parts(
    predicted: NDArray[np.float64], expected: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """What each example adds to cov(Ŷ, Y), cov(Ŷ, Ŷ) and cov(Y, Y), [n] each; their means are the covariances."""
    classes = np.union1d(predicted, expected)[:, None]
    columns = ((values == classes).astype(np.float64) for values in (predicted, expected))  # [C, n] each
    x, y = (column - column.mean(1, keepdims=True) for column in columns)
    return (x * y).sum(0), (x * x).sum(0), (y * y).sum(0)
