"""Spearman's rank correlation."""

import numpy as np
from numpy.typing import NDArray

from taskloom.core import Metric
from taskloom.plugins.metrics.pearson import correlation_of


def ranks_of(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 1, equal values sharing the mean of theirs.

    >>> ranks_of(np.array([3.0, 1.0, 3.0])).tolist()
    [2.5, 1.0, 2.5]
    """
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    mean_ranks: NDArray[np.float64] = np.cumsum(counts) - (counts - 1) / 2
    return mean_ranks[places]


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

    def __call__(self, predicted: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
        return correlation_of(ranks_of(predicted), ranks_of(expected))
