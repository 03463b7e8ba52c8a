"""Cosine-embedding loss with a margin that moves."""

from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from taskloom.core import Labels, Prediction
from taskloom.plugins.losses.cosine_embedding import cosine_losses
from taskloom.plugins.losses.families import PairLoss
from taskloom.plugins.similarity import cosine_of


class DynamicMargin(PairLoss):
    """Cosine-embedding loss whose margin moves after every epoch, by less each time.

    L as in ``cosine_embedding``. After epoch e (counted from 1) the margin m becomes m − step/e if the task's dev
    metric is larger than after the epoch before (than 0 after the first), else m + step/e: stricter while that helps.
    With ``direction: "up"`` the signs are exchanged, and with ``follows: "overall"`` the metric is the overall dev
    score: the algorithm of the paper has one metric of one evaluation, and does not say whose. The margin is not kept
    within [−1, 1].

    ``per_sample`` gives every training pair a margin of its own, moved by the same rule with a metric of its own: its
    distance 1 − cos in the last training step that saw it in this epoch. That costs no further forward pass, and the
    first comparison is again with 0, the distance of equal texts. So a pair that moved apart since the epoch before
    is held to a lower margin, and one that moved together, as ambiguous ones do, is let go; a pair that an epoch left
    out keeps its margin. Margins of positive pairs are not used.

    Reads: the two vectors of a pair, as the head saw them; the score is not used.

    Options:
        margin: the margin of the first epoch
        step: how far the margin moves after the first epoch
        direction: "down" lowers the margin after an improvement and raises it otherwise, "up" does the opposite
        follows: the dev score that moves the margin: the "task"'s or the "overall" one; neither with ``per_sample``
        per_sample: a margin for each training pair

    Siblings: ``cosine_embedding`` keeps the margin.

    Reference: "Margin for Error: Exploration of a Dynamic Margin for Cosine-Similarity Embedding Loss and Gradient
    Surgery", Algorithm 1; ``per_sample`` is the future work it names, the rule is ours.

    Example:
        {"tasks": {"sts": {"head": "cosine", "loss": {"name": "dynamic_margin", "step": 0.1, "positive_from": 3}}}}
    """

    name = "dynamic_margin"
    separable = True
    margins: Tensor  # [], or [rows] with a margin for each pair
    previous: Tensor  # the metric after the epoch before, of the same shape
    current: Tensor  # this epoch's metric, NaN while unknown

    def __init__(
        self,
        *,
        margin: Annotated[float, Field(ge=-1, le=1)] = 0.0,
        step: Annotated[float, Field(ge=0)] = 0.05,
        direction: Literal["down", "up"] = "down",
        follows: Literal["task", "overall"] = "task",
        per_sample: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.step = step
        self.direction = direction
        self.follows = follows
        self.per_sample = per_sample
        for buffer, start in (("margins", margin), ("previous", 0.0), ("current", float("nan"))):
            self.register_buffer(buffer, torch.tensor(start, dtype=torch.float64))

    def prepare(self, *, labels: Labels, rows: int) -> None:
        super().prepare(labels=labels, rows=rows)
        if self.per_sample:
            for buffer in ("margins", "previous", "current"):
                start = getattr(self, buffer).flatten()[:1]
                setattr(self, buffer, start.expand(rows).clone())

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        cosine = cosine_of(*prediction.vectors)  # [B]
        margin = self.margins
        if self.per_sample:
            assert prediction.rows is not None, "a run's predictions know their rows"
            rows = prediction.rows.to(margin.device)
            margin = margin[rows]
            if self.training and torch.is_grad_enabled():  # in training steps only: the distance of each pair
                self.current[rows] = 1 - cosine.detach().to(margin.device).double()
        return cosine_losses(cosine, target >= self.positive_from, margin.to(cosine.dtype).to(cosine.device)).mean()

    def metrics(self) -> dict[str, float]:
        """The present margin; with a margin for each pair, their mean."""
        return {"margin": float(self.margins.mean())}

    def epoch_ended(self, *, epoch: int, score: float, overall: float) -> None:
        followed = overall if self.follows == "overall" else score
        metric = self.current if self.per_sample else self.current.new_tensor(followed)
        known = ~metric.isnan()
        lowers = (metric > self.previous) == (self.direction == "down")
        moved = torch.where(lowers, self.margins - self.step / epoch, self.margins + self.step / epoch)
        self.margins = torch.where(known, moved, self.margins)
        self.previous = torch.where(known, metric, self.previous)
        self.current = torch.full_like(self.current, float("nan"))
