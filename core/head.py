"""Interface 2 of 5: vectors → prediction."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from taskloom.core.component import Component
from taskloom.core.data import Labels
from taskloom.core.prediction import Prediction, ScoreMeans
from taskloom.core.random import derive_generator
from taskloom.core.tokens import Reads, SpecialTokens


class SharedModules(nn.ModuleDict):
    """Modules that several tasks' heads share, by name; their parameters count as shared in gradient combination.

    Example: ``self.layer = shared.share("shared_layer", lambda generator: new_linear(width, width, generator))``
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self._seed = seed

    def share(self, name: str, make: Callable[[torch.Generator], nn.Module]) -> nn.Module:
        """The module of that name, made by the first head that asks.

        Its generator depends on the seed and the name alone, so that it does not matter who is first.
        """
        if name not in self:
            self[name] = make(derive_generator(self._seed, "shared", name))
        return self[name]


class Head(nn.Module, Component, ABC):
    """Turns the encoder's vectors of a batch into a prediction.

    ``reads`` says what it needs of each example, so that the batch is built for it: ``single`` one text, ``pair``
    two texts encoded apart, ``triple`` three, ``joint`` two texts in one sequence, ``both_orders`` the joined pair
    (a, b) and (b, a). ``gives`` says what its score can be: ``classes`` (one logit per class), ``score`` (one
    number), ``either``, as the task's loss asks, or ``vectors`` for a head that only passes vectors on.

    ``labels`` and ``score_means``, what the task's loss takes one number for, are set before :meth:`build`; a head that
    wraps another hands them on. :meth:`decide` and :meth:`probabilities` follow from them.
    """

    kind: ClassVar[str] = "head"
    gives: Literal["classes", "score", "either", "vectors"] = "either"
    reads: Reads = "single"
    #: One of the encoder's ``poolings``, if its sequences should be pooled so and not as the encoder does by itself.
    pooling: str | None = None
    #: The number from which (≥) the second of two classes counts, where the head itself says so; else the loss does.
    cut: float | None = None
    labels: Labels
    score_means: ScoreMeans = None

    def frame(self, special_tokens: SpecialTokens) -> SpecialTokens:
        """The special tokens around the texts it reads: the encoder's, unless it lays them out otherwise."""
        return special_tokens

    def derive(self, vectors: Tensor) -> Tensor:
        """Vectors [S, B, d] → the same and those that it makes of them, [V, B, d]: what a layer in front of it sees.

        Behind such a layer ``forward`` is given V vectors per example; by default there are no more than S.
        """
        return vectors

    @abstractmethod
    def build(
        self, *, width: int, outputs: int, labels: Labels, generator: torch.Generator, shared: SharedModules
    ) -> None:
        """Make the parameters: ``width`` is d, ``outputs`` the size of the score (1 or the number of classes).

        ``shared`` belongs to the whole model: what a head gets from ``shared.share`` is the same module for every
        task that asks under that name.
        """

    @abstractmethod
    def forward(self, vectors: Tensor) -> Prediction:
        """Vectors [S, B, d] → prediction."""

    @property
    def is_logit(self) -> bool:
        """Whether a score of one number is the logit of the second of two classes."""
        return self.labels.classes == 2 and self.score_means == "logit" and self.cut is None

    def decide(self, score: Tensor) -> Tensor:
        """Scores → what is predicted, in the data's own units: a class number, or a value, [B].

        The class with the largest logit. One number is the value itself where labels are values. Of two classes it is
        the second from ``cut`` on, or without one above 0, unless the loss takes the number for a ``value``: that is
        rounded to the nearest class, as is every number where there are more than two.
        """
        classes = self.labels.classes
        if score.dim() > 1:
            return score.argmax(-1)
        if classes == 2 and self.cut is not None:
            return (score >= self.cut).long()
        if classes == 2 and self.score_means != "value":
            return (score > 0).long()
        return score.round().clamp(0, classes - 1).long() if classes > 1 else score

    def probabilities(self, score: Tensor) -> Tensor | None:
        """Scores → the probability of every class, [B, C], or None where a score says nothing of the kind.

        One logit per class becomes its softmax, and one logit of two classes (see :attr:`is_logit`) its sigmoid.
        """
        if score.dim() > 1:
            return score.softmax(-1)
        return torch.stack([(-score).sigmoid(), score.sigmoid()], -1) if self.is_logit else None

    def snippet(self, layer: Sequence[str] = ()) -> list[str]:
        """Lines of Python that do in evaluation what ``forward`` and ``decide`` do, for whoever has only its tensors.

        They find ``vectors`` [S, B, d] and ``w``, its tensors by name, use nothing but ``torch`` and its ``F``
        (``torch.nn.functional``), and leave ``score`` and ``predicted``. ``layer`` are the lines of a layer in front of
        it, which read and write ``vectors``: they come after what :meth:`derive` does, before all else. No lines: it
        has no short form.
        """
        return []
