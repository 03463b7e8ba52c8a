"""Interface 2 of 5: vectors → prediction."""

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from taskloom.core.component import Component
from taskloom.core.data import Labels
from taskloom.core.prediction import Prediction
from taskloom.core.tokens import Reads


class Head(nn.Module, Component, ABC):
    """Turns the encoder's vectors of a batch into a prediction.

    ``reads`` says what it needs of each example, so that the batch is built for it: ``single`` one text, ``pair``
    two texts encoded apart, ``triple`` three, ``joint`` two texts in one sequence, ``both_orders`` the joined pair
    (a, b) and (b, a). ``gives`` says what its score can be: ``classes`` (one logit per class), ``score`` (one
    number), ``either``, as the task's loss asks, or ``vectors`` for a head that only passes vectors on.
    """

    kind: ClassVar[str] = "head"
    gives: Literal["classes", "score", "either", "vectors"] = "either"
    reads: Reads = "single"

    @abstractmethod
    def build(
        self, *, width: int, outputs: int, labels: Labels, generator: torch.Generator, shared: nn.ModuleDict
    ) -> None:
        """Make the parameters: ``width`` is d, ``outputs`` the size of the score (1 or the number of classes).

        ``shared`` belongs to the whole model: a module that a head puts there under a name is the same for every
        task, and its parameters count as shared when gradients are combined.
        """

    @abstractmethod
    def forward(self, vectors: Tensor) -> Prediction:
        """Vectors [S, B, d] → prediction."""

    @abstractmethod
    def decide(self, score: Tensor) -> Tensor:
        """Scores → what is predicted, in the data's own units: a class number, or a value, [B]."""
