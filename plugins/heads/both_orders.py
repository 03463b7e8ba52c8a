"""A joined pair read in both orders."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from taskloom.core import Dropout, Prediction, init_linear, new_linear
from taskloom.plugins.heads.parts import ACTIVATIONS, Activation, DropoutShare, JoinedHead, activated, linear_line


class BothOrders(JoinedHead):
    """A logit for each order of a joined pair, optionally one for their difference, and a linear layer over them.

    With p = dropout(enc(a, b)) and q = dropout(enc(b, a)): score = w · act(w₁·p + b₁, w₂·q + b₂, w₃·(p − q) + b₃) + b,
    without the third where ``difference`` is false. The two orders have layers of their own, so swapping the texts
    changes the score unless these are equal; with equal ones only the difference distinguishes the orders. Behind
    ``shared_layer`` the difference is that of the two vectors in front of the shared layer, and goes through it as they
    do.

    The papers' heads are PH (the default), DPH (``difference``) and DPHA (``difference`` and ``activation: "tanh"``).

    Decides: the score itself, and of classes the nearest one; where the loss takes the score for the logit of two
    classes, the second counts above zero.

    Reads: two texts in one sequence, in both orders. Losses see enc(a, b) and enc(b, a), which are vectors of the pair
    and not of its texts: embedding losses have nothing to compare here.

    Options:
        difference: also look at the element-wise difference of the two vectors
        activation: what the logits go through before the last layer
        dropout: share of each vector that is dropped in training

    Siblings: ``linear`` with ``reads: "joint"`` reads one order; ``shared_layer`` puts a layer in front that all tasks
    share.

    Reference: "Robust Embeddings using Contrastive and Multiple Negatives on BERT", section 4 (PH, DPH, DPHA).

    Example:
        {"tasks": {"para": {"head": {"name": "both_orders", "difference": true, "activation": "tanh"}}}}
    """

    name = "both_orders"
    gives = "score"
    reads = "both_orders"

    def __init__(
        self,
        *,
        difference: bool = False,
        activation: Activation = "none",
        dropout: DropoutShare = 0.3,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.difference = difference
        self.activation = activation
        self.dropout = dropout

    def make_layers(self, width: int, generator: torch.Generator) -> None:
        views = 3 if self.difference else 2
        self.drop = Dropout(self.dropout)
        self.views = nn.ModuleList(new_linear(width, 1, generator) for _ in range(views))
        self.act = ACTIVATIONS[self.activation]()
        # As wide as torch's own default: with BERT's 0.02 on three inputs the encoder would get almost no gradient.
        self.last = init_linear(new_linear(views, 1, generator), generator, std=(3 * views) ** -0.5)

    def derive(self, vectors: Tensor) -> Tensor:
        return torch.cat([vectors, vectors[:1] - vectors[1:]]) if self.difference else vectors

    def forward(self, vectors: Tensor) -> Prediction:
        seen = self.drop(vectors)  # [2, B, d], or [3, B, d] behind a shared layer
        seen = self.derive(seen) if len(seen) < len(self.views) else seen
        logits = [view(x) for view, x in zip(self.views, seen, strict=True)]  # [B, 1] each
        score = self.last(self.act(torch.cat(logits, dim=-1)))  # [B, 1]
        return Prediction(score.squeeze(-1), vectors[:2])

    def snippet(self, layer: Sequence[str] = ()) -> list[str]:
        derived = ["vectors = torch.cat([vectors, vectors[:1] - vectors[1:]])"] if self.difference else []
        logit = 'F.linear(v, w[f"views.{n}.weight"], w[f"views.{n}.bias"])'
        logits = f"x = torch.cat([{logit} for n, v in enumerate(vectors)], -1)"
        return [*derived, *layer, logits, linear_line(activated(self.activation, "x"), 1), self.decision()]
