"""Errors of a cell, or of the seeds of a row: the worst examples, the confusion matrix, scores per class."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from taskloom.core.data import Split
from taskloom.runs.analysis.contrasts import Values
from taskloom.runs.analysis.predictions import Predictions, Subject, Texts, texts_of

#: Number of bins of equal width for labels that are values.
BINS = 5


@dataclass(frozen=True)
class Example:
    """An example with its texts (None if they cannot be read), its label and what was predicted for it.

    ``predicted`` and ``confidence``, the mean probability that models gave to their predictions, have an entry for the
    models of each subject. ``seeds`` counts the models that got it wrong, or that differ. ``size`` is the
    mean over models that examples are ordered by: their confidence, their error, or the change of error.
    """

    id: str
    texts: tuple[str, ...] | None
    label: float
    predicted: tuple[tuple[float, ...], ...]
    confidence: tuple[float | None, ...]
    seeds: int
    size: float


@dataclass(frozen=True)
class ClassScores:
    """Means over models; None where undefined, because no example has or is predicted as that class."""

    precision: float | None
    recall: float | None
    f1: float | None
    support: int


@dataclass(frozen=True, eq=False)
class Confusion:
    """A confusion matrix: ``counts`` [labels, predictions] over all models; values are binned."""

    task: str
    names: tuple[str, ...]
    counts: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TaskErrors:
    """The errors of one task. ``scores`` has each model's score; for values ``by_class`` is empty."""

    of: Predictions
    texts: Texts
    scores: tuple[float, ...]
    worst: tuple[Example, ...]
    confusion: Confusion
    by_class: tuple[ClassScores, ...]


def errors_of(
    subject: Subject, registry: Path, *, limit: int = 10, folder: Path | None = None, split: Split = "dev"
) -> list[TaskErrors]:
    """The errors of a subject by task, with the ``limit`` worst examples and their texts."""
    errors = []
    for task in subject.tasks(registry, split):
        of = Predictions.load(registry, task, [cell.cell for cell in subject.cells], split)
        texts = texts_of(task, subject.spec["tasks"][task]["data"], of.examples, folder, split)
        recorded = [cell.cell.scores if split == "dev" else cell.cell.test for cell in subject.cells]
        scores = tuple(scores.get(task, float("nan")) for scores in recorded)
        worst = tuple(_worst(of, texts, limit))
        errors.append(TaskErrors(of, texts, scores, worst, confusion_of(of), tuple(class_scores(of))))
    return errors


def _worst(of: Predictions, texts: Texts, limit: int) -> Iterator[Example]:
    """The worst examples: for classes, by models that got them wrong, then by confidence; for values, by error."""
    size = (of.wrongness if of.confidence is None else of.confidence).mean(0)
    seeds = (~of.right).sum(0) if of.facts.classes else np.full(len(size), len(of.predicted))
    order = np.lexsort((-size, -seeds))
    for index in order[seeds[order] > 0][:limit].tolist():
        yield example_at(index, texts, (of,), int(seeds[index]), float(size[index]))


def example_at(index: int, texts: Texts, by: Sequence[Predictions], seeds: int, size: float) -> Example:
    """The example at an index, with its predictions by each subject."""
    examples = by[0].examples
    return Example(
        id=examples.ids[index],
        texts=None if texts.rows is None else texts.rows[index],
        label=float(examples.expected[index]),
        predicted=tuple(tuple(subject.predicted[:, index].tolist()) for subject in by),
        confidence=tuple(
            None if subject.confidence is None else float(subject.confidence[:, index].mean()) for subject in by
        ),
        seeds=seeds,
        size=size,
    )


def confusion_of(of: Predictions) -> Confusion:
    """Count how often each class, or bin of values, was predicted for each label."""
    if of.facts.classes:
        names = [of.facts.called(number) for number in range(of.facts.classes)]
        labels, predicted = of.expected.astype(int), of.predicted.astype(int)
    else:
        edges = bin_edges(of.expected)
        names = [f"{low:.2g}–{high:.2g}" for low, high in pairwise(edges)]
        labels, predicted = (np.digitize(values, edges[1:-1]) for values in (of.expected, of.predicted))
    size = len(names)
    counts = np.bincount((labels * size + predicted).ravel(), minlength=size * size).reshape(size, size)
    return Confusion(of.task, tuple(names), counts)


def bin_edges(expected: Values) -> Values:
    """The edges of bins of equal width that cover all labels."""
    return np.linspace(expected.min(), expected.max(), BINS + 1)


def class_scores(of: Predictions) -> Iterator[ClassScores]:
    """Precision, recall and F1 of every class."""
    for label in range(of.facts.classes):
        called, real = of.predicted == label, of.expected == label
        hits = (called & real).sum(1)
        support = int(real.sum())
        yield ClassScores(
            _mean_share(hits, called.sum(1)),
            _mean_share(hits, np.full(len(hits), support)),
            _mean_share(2 * hits, called.sum(1) + support),
            support,
        )


def _mean_share(part: NDArray[np.int64], whole: NDArray[np.int64]) -> float | None:
    """The mean of part / whole over models; None if undefined for any."""
    return float((part / whole).mean()) if whole.all() else None
