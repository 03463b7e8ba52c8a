"""What the losses that look at pairs have in common: which pairs are positive."""

from taskloom.core import Labels, Loss, TrainingError


class PairLoss(Loss):
    """A loss that looks at the vectors of pairs, some of which are positive.

    Options:
        positive_from: the label from which (≥) a pair counts as positive: 1 for paraphrases, 3 for similarity 0 to 5
    """

    expects = "vectors"
    vectors: tuple[int, ...] = (2,)

    def __init__(self, *, positive_from: float = 1.0) -> None:
        super().__init__()
        self.positive_from = positive_from

    def prepare(self, *, labels: Labels, rows: int) -> None:
        """Refuse a bound that no label reaches: nothing would ever be positive."""
        if labels.high < self.positive_from:
            raise TrainingError(
                f"loss {self.name!r} should have labels that reach positive_from = {self.positive_from:g}. "
                f"Found labels from {labels.low:g} to {labels.high:g}; lower it, or use labelled data."
            )
