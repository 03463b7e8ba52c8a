"""Spearman's rank correlation."""

import numpy as np
from numpy.typing import NDArray

from taskloom.core import Metric
from taskloom.plugins.metrics.pearson import correlation_of


def ranks_of(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 1; equal values share the mean of their ranks.

    >>> ranks_of(np.array([3.0, 1.0, 3.0])).tolist()
    [2.5, 1.0, 2.5]
    """
    _, indices, counts = np.unique(values, return_inverse=True, return_counts=True)
    mean_ranks: NDArray[np.float64] = np.cumsum(counts) - (counts - 1) / 2
    return mean_ranks[indices]


class Spearman(Metric):
    """Pearson's correlation of the ranks: how well the order of the predictions fits, from −1 to 1.

    Equal values share the mean of their ranks. Where all predictions (or all labels) are the same, the score is
    0.0, as for ``pearson``.

    Reads: values.

    Siblings: ``pearson`` looks at the values themselves.

    Example: ``{"tasks": {"sts": {"metric": "spearman"}}}``
    """

    name = "spearman"
    correlation = True
    range = (-1.0, 1.0)

    def __call__(self, predicted: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
        return correlation_of(ranks_of(predicted), ranks_of(expected))

    def influence(self, predicted: NDArray[np.float64], expected: NDArray[np.float64]) -> NDArray[np.float64]:
        """The influence on r = A / √(B_x B_y), where A, B_x and B_y are the (co)variances of the ranks divided by n.

        An example changes them by its own rank and by those of all examples above it. Without ties B_x = B_y = 1/12,
        and φ = 12 (F_x F_y + mean of F_y over x′ ≥ x + mean of F_x over y′ ≥ y), less its mean.
        """
        rows = len(expected)
        if np.ptp(predicted) == 0 or np.ptp(expected) == 0:
            return np.zeros(rows)
        x, y = ((ranks_of(values) - (rows + 1) / 2) / rows for values in (predicted, expected))
        size_x, size_y = (x * x).mean(), (y * y).mean()
        score = (x * y).mean() / np.sqrt(size_x * size_y)
        both = x * y + _mean_above(predicted, y) + _mean_above(expected, x)
        own_x, own_y = x * x + 2 * _mean_above(predicted, x), y * y + 2 * _mean_above(expected, y)
        influence = both / np.sqrt(size_x * size_y) - score / 2 * (own_x / size_x + own_y / size_y)
        centred: NDArray[np.float64] = influence - influence.mean()
        return centred


def _mean_above(values: NDArray[np.float64], summed: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each example, 1/n times Σ ``summed`` over examples with a larger value plus half of it over equal ones.

    >>> _mean_above(np.array([1.0, 2.0]), np.array([4.0, 8.0])).tolist()
    [5.0, 2.0]
    """
    _, indices = np.unique(values, return_inverse=True)
    sums = np.bincount(indices, summed)
    above: NDArray[np.float64] = sums[::-1].cumsum()[::-1] - sums / 2
    return above[indices] / len(values)
