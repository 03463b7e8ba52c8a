"""Labels as losses compare with them."""

from torch import Tensor

from taskloom.core import Labels


def scaled_target(target: Tensor, labels: Labels) -> Tensor:
    """(y − low) / (high − low): the label's place in its range, 0 to 1."""
    return (target - labels.low) / ((labels.high - labels.low) or 1.0)
