"""A weighted sum of losses."""

from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from taskloom.core import Expects, Labels, Loss, Prediction


class Total(Loss):
    """Several losses on one task, as their weighted sum.

    L = Σₖ wₖ Lₖ. All parts see the same prediction and target, are told when an epoch ends, and keep their state.

    Reads: what its parts read. One that looks at vectors goes with any other; one that needs a logit per class and one
    that needs a single number do not go together, because a head has one score.

    Options:
        losses: the parts
        weights: one weight for each part; all 1 if left out

    Siblings: ``smart`` adds a regulariser to a loss; the combiner ``weighted`` weighs tasks.

    Reference: Bi et al., "MTRec", Findings of ACL 2022 (a sum of objectives).

    Example:
        {"tasks": {"para": {"head": {"name": "linear", "reads": "pair"},
                            "loss": {"name": "total", "losses": ["binary_cross_entropy", "mnr"], "weights": [1, 0.1]}}}}
    """

    name = "total"
    expects: Expects  # that of the parts

    def __init__(
        self,
        *,
        losses: Annotated[list[Loss], Field(min_length=1)],
        weights: list[Annotated[float, Field(ge=0)]] | None = None,
    ) -> None:
        super().__init__()
        if weights is not None and len(weights) != len(losses):
            raise ValueError(f"loss 'total' should have one weight for each of {len(losses)} losses. Found {weights}.")
        expected = {loss.expects: loss.name for loss in losses if loss.expects != "vectors"}
        if len(expected) > 1:
            raise ValueError(
                f"the parts of loss 'total' should agree on the score. Found {expected['classes']!r}, which needs one "
                f"logit per class, and {expected['score']!r}, which needs one number per example."
            )
        meanings = {loss.score_means: loss.name for loss in losses if loss.score_means is not None}
        if len(meanings) > 1:
            raise ValueError(
                f"the parts of loss 'total' should agree on the score. Found {meanings['logit']!r}, which takes it for "
                f"a logit, and {meanings['value']!r}, which takes it for a value in the units of the labels."
            )
        self.expects = next(iter(expected), "vectors")
        self.score_means = next(iter(meanings), None)
        counts = [set(loss.vectors) for loss in losses if loss.vectors is not None]
        self.vectors = tuple(sorted(set.intersection(*counts))) if counts else None
        self.separable = all(loss.separable for loss in losses)
        self.replays = any(loss.replays for loss in losses)
        self.parts = losses
        self.losses = nn.ModuleList(losses)  # their state is part of this one's
        self.weights = weights or [1.0] * len(losses)

    @property
    def stops_gradient(self) -> bool:  # type: ignore[override]
        return any(loss.stops_gradient for loss in self.parts)

    def prepare(self, *, labels: Labels, rows: int) -> None:
        for loss in self.parts:
            loss.prepare(labels=labels, rows=rows)

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        terms = [weight * loss(prediction, target) for weight, loss in zip(self.weights, self.parts, strict=True)]
        total: Tensor = sum(terms[1:], terms[0])
        return total

    def metrics(self) -> dict[str, float]:
        return {f"{loss.name}.{name}": value for loss in self.parts for name, value in loss.metrics().items()}

    def epoch_ended(self, *, epoch: int, score: float, overall: float) -> None:
        for loss in self.parts:
            loss.epoch_ended(epoch=epoch, score=score, overall=overall)
