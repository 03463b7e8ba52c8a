"""Cross-entropy of one logit."""

from torch import Tensor
from torch.nn import functional

from taskloom.core import Labels, TrainingError
from taskloom.plugins.losses.families import ScoreLoss


class BinaryCrossEntropy(ScoreLoss):
    """Cross-entropy of a single logit.

    L = −1/B Σᵢ [tᵢ log σ(sᵢ) + (1 − tᵢ) log(1 − σ(sᵢ))], where t is the label y, or with
    ``target: "scaled"`` (y − low) / (high − low).

    Reads: one number per example, taken as a logit; labels of two classes, or values from 0 to 1, or with
    ``target: "scaled"`` any values. The head's prediction stays the logit: it correlates with such labels, and is not
    in their units.

    Siblings: ``cross_entropy`` for one logit per class.

    Reference: Devlin et al., "BERT", NAACL 2019, section 4 (classification from one vector).

    Example:
        {"tasks": {"para": {"head": {"name": "linear", "reads": "pair"}, "loss": "binary_cross_entropy"}}}
    """

    name = "binary_cross_entropy"
    score_means = "logit"

    def prepare(self, *, labels: Labels, rows: int) -> None:
        super().prepare(labels=labels, rows=rows)
        if labels.classes > 2 or (self.target == "raw" and (labels.low < 0 or labels.high > 1)):
            raise TrainingError(
                f"loss {self.name!r} should have labels from 0 to 1. Found {labels.low:g} to {labels.high:g}; "
                "use 'mse' or target 'scaled', or 'cross_entropy' for classes."
            )

    def compare(self, score: Tensor, goal: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(score, goal)
