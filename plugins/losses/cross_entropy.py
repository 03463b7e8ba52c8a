"""Cross-entropy over classes."""

from typing import Annotated

from pydantic import Field
from torch import Tensor
from torch.nn import functional

from taskloom.core import Loss, Prediction
from taskloom.plugins.similarity import at_least_float32


class CrossEntropy(Loss):
    """The negative log-probability of the right class.

    L = −1/B Σᵢ log softmax(sᵢ)[yᵢ]; with smoothing ε the target is 1 − ε on the right class and ε spread evenly
    over all C classes.

    Reads: one logit per class; class numbers as labels.

    Options:
        label_smoothing: share of the target spread over all classes

    Siblings: ``binary_cross_entropy`` for a single logit.

    Reference: Szegedy et al., "Rethinking the Inception Architecture", CVPR 2016, section 7 (smoothing).

    Example:
        {"tasks": {"sst": {"loss": {"name": "cross_entropy", "label_smoothing": 0.1}}}}
    """

    name = "cross_entropy"
    expects = "classes"
    separable = True

    def __init__(self, *, label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0) -> None:
        super().__init__()
        self.label_smoothing = label_smoothing

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        score = at_least_float32(prediction.score)  # [B, C]
        return functional.cross_entropy(score, target.long(), label_smoothing=self.label_smoothing)
