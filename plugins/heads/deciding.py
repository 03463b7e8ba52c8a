"""What a head's number means in the units of the labels."""

from torch import Tensor

from taskloom.core import Labels


def decide_number(score: Tensor, positive: Tensor, labels: Labels) -> Tensor:
    """One number per example → what is predicted, [B].

    ``positive`` says which of two classes it is; of more classes it is the nearest; a value is the number itself.
    """
    if labels.classes == 2:
        return positive.long()
    if labels.classes > 2:
        return score.round().clamp(0, labels.classes - 1).long()
    return score
