"""The base of combiners whose weights do not depend on the gradients."""

from abc import abstractmethod
from collections.abc import Sequence

from torch import Tensor

from taskloom.core import GradientCombiner, Step


class FixedWeights(GradientCombiner):
    """Σ wᵢ gᵢ with weights that do not depend on the gradients.

    Gradients accumulate in ``parameter.grad``, so none is kept per task. The heads' own parameters get the same weight
    as the shared ones: this is the gradient of the weighted sum of losses.
    """

    @abstractmethod
    def factors(self, tasks: Sequence[str]) -> list[float]:
        """The weight of each task of a step, in order."""

    def update(self, step: Step) -> dict[str, Tensor]:
        losses = step.add_up(self.factors(step.tasks))
        step.apply()
        return losses
