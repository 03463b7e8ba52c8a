"""What every metric asks of its input."""

import numpy as np
from numpy.typing import NDArray

from taskloom.core import TrainingError


def check_scorable(name: str, predicted: NDArray[np.float64], expected: NDArray[np.float64]) -> None:
    """Raise unless there are as many predictions as labels, at least one, and all predictions are finite."""
    if predicted.shape != expected.shape or predicted.ndim != 1 or not predicted.size:
        raise ValueError(
            f"metric {name!r} should get as many predictions as labels, [n] each with n ≥ 1. "
            f"Found {predicted.shape} and {expected.shape}."
        )
    broken = int((~np.isfinite(predicted)).sum())
    if broken:
        raise TrainingError(
            f"metric {name!r}: {broken} of {predicted.size} predictions are not finite; training has diverged: "
            f"a smaller learning rate or a bound on the gradient (clip) may help"
        )
