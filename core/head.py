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
        """The module of that name, made for the first head that requests it.

        Its generator depends on the seed and the name alone, so the order of requests does not matter.
        """
        if name not in self:
            self[name] = make(derive_generator(self._seed, "shared", name))
        return self[name]


class Head(nn.Module, Component, ABC):
    """Turns the encoder's vectors of a batch into a prediction.

    ``reads`` says what it needs of each example, so that the batch is built for it: ``single`` one text, ``pair``
    two texts encoded apart, ``triple`` three, ``joint`` two texts in one sequence, ``both_orders`` the joined pair
    (a, b) and (b, a). ``gives`` says what its score can be: ``classes`` (one logit per class), ``score`` (one
    number), ``either``, as the task's loss requires, or ``vectors`` for a head that only passes vectors on.

    ``labels`` and ``score_means`` (the loss's meaning of a single number) are set before :meth:`build`; a head that
    wraps another passes them on. :meth:`decide` and :meth:`probabilities` follow from them.
    """

    kind: ClassVar[str] = "head"
    gives: Literal["classes", "score", "either", "vectors"] = "either"
    reads: Reads = "single"
    #: One of the encoder's ``poolings``, if not its default.
    pooling: str | None = None
    #: The smallest number (≥) that counts as the second of two classes, where the head sets it; else the loss does.
    cut: float | None = None
    labels: Labels
    score_means: ScoreMeans = None

    def frame(self, special_tokens: SpecialTokens) -> SpecialTokens:
        """The special tokens around the texts it reads; by default the encoder's."""
        return special_tokens

    def derive(self, vectors: Tensor) -> Tensor:
        """Vectors [S, B, d] → the input vectors plus derived ones, [V, B, d]: the input of a layer before the head.

        After such a layer ``forward`` gets V vectors per example; by default there are no derived ones.
        """
        return vectors

    @abstractmethod
    def build(
        self, *, width: int, outputs: int, labels: Labels, generator: torch.Generator, shared: SharedModules
    ) -> None:
        """Make the parameters: ``width`` is d, ``outputs`` the size of the score (1 or the number of classes).

        ``shared`` belongs to the whole model: ``shared.share`` returns the same module to every task that requests that
        name.
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
        """Scores → the probability of every class, [B, C]; None where a score is not a probability.

        One logit per class becomes its softmax, and one logit of two classes (see :attr:`is_logit`) its sigmoid.
        """
        if score.dim() > 1:
            return score.softmax(-1)
        return torch.stack([(-score).sigmoid(), score.sigmoid()], -1) if self.is_logit else None

    def snippet(self, layer: Sequence[str] = ()) -> list[str]:
        """Python code that computes ``forward`` and ``decide`` in evaluation from the head's tensors alone, by line.

        It reads ``vectors`` [S, B, d] and ``w``, the tensors by name, uses only ``torch`` and ``F``
        (``torch.nn.functional``), and sets ``score`` and ``predicted``. ``layer`` holds the code of a layer in front of
        the head, which reads and writes ``vectors``: it goes right after the code of :meth:`derive`. No lines: the head
        has no short form.
        """
        return []
