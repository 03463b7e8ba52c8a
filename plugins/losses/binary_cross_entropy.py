"""Cross-entropy of one logit."""

from torch import Tensor
from torch.nn import functional

from taskloom.core import Labels, Loss, Prediction, TrainingError
from taskloom.plugins.similarity import at_least_float32


class BinaryCrossEntropy(Loss):
    """Cross-entropy of a single logit.

    L = −1/B Σᵢ [yᵢ log σ(sᵢ) + (1 − yᵢ) log(1 − σ(sᵢ))].

    Reads: one number per example, taken as a logit; labels of two classes, or values from 0 to 1.

    Siblings: ``cross_entropy`` for one logit per class.

    Reference: Devlin et al., "BERT", NAACL 2019, section 4 (classification from one vector).

    Example:
        {"tasks": {"para": {"head": {"name": "linear", "reads": "pair"}, "loss": "binary_cross_entropy"}}}
    """

    name = "binary_cross_entropy"
    expects = "score"

    def prepare(self, *, labels: Labels, rows: int) -> None:
        if labels.low < 0 or labels.high > 1:
            raise TrainingError(
                f"loss {self.name!r} should have labels from 0 to 1. Found {labels.low:g} to {labels.high:g}; "
                "use 'mse', or 'cross_entropy' for classes."
            )

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        score = at_least_float32(prediction.score)  # [B]
        return functional.binary_cross_entropy_with_logits(score, target.to(score.dtype))
