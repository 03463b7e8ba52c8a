"""Data sets: texts with labels and their meaning; metrics: how well predictions match labels."""

import csv
import io
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from taskloom.core.component import Component

#: Number of blocks of examples that the jackknife leaves out one at a time.
JACKKNIFE = 1000
#: A part of the data: what is trained on, what chooses the best epoch, what is kept for the end.
Split = Literal["train", "dev", "test"]

#: Where to read what to do about data with more than one label per text.
SEVERAL_LABELS = 'several labels per text: see that section of the page "Use your own files" (how-to/data.md)'


@dataclass(frozen=True)
class Labels:
    """What a label is: a class number below ``classes``, or a value from ``low`` to ``high``.

    ``names`` are those of the classes in the order of their numbers, where they have any; they change no result.

    >>> Labels.of_classes(5), Labels.of_range(0, 5).classes
    (Labels(classes=5, low=0.0, high=4.0), 0)
    """

    classes: int
    low: float
    high: float
    names: tuple[str, ...] = field(default=(), repr=False, compare=False)

    @classmethod
    def of_classes(cls, count: int, names: Sequence[str] = ()) -> "Labels":
        """Class numbers from 0 to ``count`` − 1."""
        return cls(classes=count, low=0.0, high=count - 1.0, names=tuple(names))

    @classmethod
    def of_range(cls, low: float, high: float) -> "Labels":
        """Values from ``low`` to ``high``."""
        return cls(classes=0, low=float(low), high=float(high))

    def decode(self, predicted: NDArray[np.float64]) -> list[str] | list[int] | list[float]:
        """Convert predictions to labels: names of classes, class numbers, or values.

        >>> Labels.of_classes(2, ["low", "high"]).decode(np.array([1.0, 0.0]))
        ['high', 'low']
        """
        if not self.classes:
            return [float(value) for value in predicted]
        return [self.names[int(value)] for value in predicted] if self.names else [int(value) for value in predicted]


@dataclass(frozen=True, eq=False)
class Examples:
    """One split: columns of texts (one, two or three per example), labels where the file has them, ids.

    ``skipped`` names the rows that could not be read, one message each, for the log. ``unlabelled`` counts those that
    were left out because they have no label for this task; other tasks may have one.
    """

    columns: tuple[tuple[str, ...], ...]
    labels: NDArray[np.float64] | None
    ids: tuple[str, ...]
    skipped: tuple[str, ...] = field(default=())
    unlabelled: int = 0

    def __len__(self) -> int:
        return len(self.ids)


class DataSet(Component, ABC):
    """Gives the examples of a split.

    ``columns`` is the number of texts per example (1 to 3) and ``labels`` what a label means, or None for a data
    set without labels (embedding losses need none). Constructing one reads nothing; :meth:`load` raises
    ``DataError`` with file and line for what it cannot use.

    Some options mean the same in every data set that has them: ``limit`` and ``dev_limit`` are the most examples of
    train and dev: some of the split's, always the same, in their order. ``dir`` is the folder of its files, which
    ``--data`` replaces. ``text``, ``id`` and ``quotes`` say how ``predict --input`` reads a file of new texts: the
    names of its text columns and of the column of ids, and whether quotes may hold delimiters.
    """

    kind: ClassVar[str] = "data"
    columns: int = 1
    labels: Labels | None = None
    #: Data sets with the same options and labels: where ``--data`` has the files of one of these and not its own, a run
    #: reads that one.
    stand_ins: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def load(self, split: Split) -> Examples:
        """The examples of a split, always the same ones in the same order."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A fingerprint of what the train and dev splits hold: a hash of their files, or of the generated examples.

        It is part of a result's identity. A test split is left out: it decides nothing about a run.
        """

    @classmethod
    def smoke_options(cls, columns: int, labels: Labels | None) -> dict[str, Any] | None:
        """Options with which it gives a few examples, without files, that a smoke run can use for another data set.

        They have at least ``columns`` texts, and labels that losses for ``labels`` accept. None: it has no such.
        """
        return None

    def submission_name(self, task: str, split: Split) -> str:
        """The name of the file in which predictions for the data of ``task`` are handed in."""
        return f"{task}-{split}-output.csv"

    def submission(self, ids: Sequence[str], predicted: NDArray[np.float64]) -> str:
        """The content of that file: by default a table with the columns ``id`` and ``prediction``."""
        assert self.labels is not None, "data without labels have no predictions"
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow(["id", "prediction"])
        lines.writerows(zip(ids, self.labels.decode(predicted), strict=True))
        return text.getvalue()


class Metric(Component, ABC):
    """Scores the predictions of a split: one number, larger is better.

    ``correlation`` marks a metric in [−1, 1], which ``overall: normalised`` maps to (r + 1)/2 first. ``counts_right``
    marks one that is the share of right predictions, for which ``compare`` adds McNemar's test. ``range`` is the least
    and the largest score that it can give: intervals of differences end there.
    """

    kind: ClassVar[str] = "metric"
    correlation: ClassVar[bool] = False
    counts_right: ClassVar[bool] = False
    range: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    #: Which labels it can judge: class numbers, values, or either.
    reads: ClassVar[Literal["classes", "values", "either"]] = "either"

    @abstractmethod
    def __call__(self, predicted: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
        """The score of predictions [n] (what ``Head.decide`` gave) against labels [n]."""

    def best_constant(self, expected: NDArray[np.float64], classes: int) -> tuple[float, float]:
        """The prediction that scores best on labels [n] if it is the same for every example, and its score.

        Of classes every one that occurs is tried, the most frequent first; of values (``classes`` 0) only the median. A
        model that has learned something scores better.
        """
        values, counts = np.unique(expected, return_counts=True)
        tried = values[np.argsort(-counts, kind="stable")] if classes else [np.median(expected)]
        scores = [float(self(np.full(len(expected), value), expected)) for value in tried]
        best = int(np.argmax(scores))
        return float(tried[best]), scores[best]

    def influence(self, predicted: NDArray[np.float64], expected: NDArray[np.float64]) -> NDArray[np.float64]:
        """How much each example moves the score, [n]: φ, centred, so that the score's variance is Σ φ² / n².

        By default this is the jackknife: φᵢ = (n − 1)(score − score without i). With many examples a block is left out
        at a time, and its influence is assigned to its first member.
        """
        rows, score = len(expected), self(predicted, expected)
        influences = np.zeros(rows)
        blocks = [np.arange(first, rows, JACKKNIFE) for first in range(min(rows, JACKKNIFE))]
        for block in blocks if rows > 1 else ():
            without = self(np.delete(predicted, block), np.delete(expected, block))
            influences[block[0]] = (rows - len(block)) * (score - without)
        mean = influences.mean()
        for block in blocks:
            influences[block[0]] -= len(block) * mean
        return influences
