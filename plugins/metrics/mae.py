"""Mean absolute error."""

import math

import numpy as np
from numpy.typing import NDArray

from taskloom.core import Metric


class MAE(Metric):
    """How far predictions are from the labels on average, negative, so that larger is better and 0 is best.

    score = −1/n Σ |ŷᵢ − yᵢ|, in the unit of the labels.

    Reads: values.

    Siblings: ``pearson`` and ``spearman`` do not see a shift or a scale. A model whose score is trained in another unit
    than the labels' (a plain cosine against 0 to 5) is far off here.

    Example: ``{"tasks": {"sts": {"metric": "mae"}}}``
    """

    name = "mae"
    reads = "values"
    range = (-math.inf, 0.0)

    def __call__(self, predicted: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
        return -float(np.mean(np.abs(predicted - expected)))

    def influence(self, predicted: NDArray[np.float64], expected: NDArray[np.float64]) -> NDArray[np.float64]:
        distances: NDArray[np.float64] = np.abs(predicted - expected)
        return float(distances.mean()) - distances
