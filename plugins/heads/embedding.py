"""Sentence vectors as they are."""

from typing import Any, Literal

from torch import Tensor

from taskloom.core import Prediction
from taskloom.plugins.heads.parts import ScoreHead
from taskloom.plugins.similarity import cosine_of


class Embedding(ScoreHead):
    """Passes the sentence vectors on, for losses of vectors alone.

    There are no weights and nothing is dropped. Where there are two texts or three, the score is the cosine of the
    first two; of a single text nothing is predicted and the score is 0. A task with this head has no dev score: one
    that should be judged takes the head ``cosine``.

    Decides: the score itself; where there are two classes, 1 from a cosine of 0.5 on.

    Reads: one, two or three texts, each encoded apart. Losses see the encoder's vectors.

    Options:
        reads: "single" one text, "pair" two, "triple" three (anchor, positive, negative)

    Siblings: ``cosine`` with ``dropout: 0`` sees the same vectors and gives a scaled score to learn from.

    Reference: Gao et al., "SimCSE", EMNLP 2021.

    Example:
        {"tasks": {"nli": {"head": {"name": "embedding", "reads": "triple"}, "loss": "simcse"}}}
    """

    name = "embedding"
    gives = "vectors"
    cut = 0.5

    def __init__(self, *, reads: Literal["single", "pair", "triple"] = "pair", **options: Any) -> None:
        super().__init__(**options)
        self.reads = reads

    def forward(self, vectors: Tensor) -> Prediction:
        if len(vectors) == 1:
            return Prediction(vectors.new_zeros(vectors.shape[1]), vectors)
        return Prediction(cosine_of(vectors[0], vectors[1]), vectors)
