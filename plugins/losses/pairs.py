"""What the losses that look at pairs have in common: the two vectors, and which pairs are positive."""

from torch import Tensor

from taskloom.core import Labels, Prediction, TrainingError


def pair_of(prediction: Prediction, loss: str) -> tuple[Tensor, Tensor]:
    """The vectors of first and second texts, [B, d] each; an error that names the loss if there are not two."""
    if len(prediction.vectors) != 2:
        raise TrainingError(
            f"loss {loss!r} should see two vectors per example. Found {len(prediction.vectors)}; "
            "use a head that reads pairs, such as 'cosine'."
        )
    return prediction.vectors[0], prediction.vectors[1]


def check_positive_from(loss: str, positive_from: float, labels: Labels) -> None:
    """Refuse a bound that no label reaches: nothing would ever be positive."""
    if labels.high < positive_from:
        raise TrainingError(
            f"loss {loss!r} should have labels that reach positive_from = {positive_from:g}. "
            f"Found labels from {labels.low:g} to {labels.high:g}; lower it, or use labelled data."
        )
