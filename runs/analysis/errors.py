"""What a cell, or the seeds of a row, got wrong: the worst errors, which classes are confused, scores per class."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from taskloom.runs.analysis.contrasts import Values
from taskloom.runs.analysis.predictions import Predictions, Subject, Texts, texts_of

#: Intervals of equal width that the labels of values are divided into.
BINS = 5
RESCALED = "predictions are on another scale than labels, so errors are of the straight line of them that fits best"


@dataclass(frozen=True)
class Guess:
    """What models predicted for one example, each of them; ``confidence`` is the mean probability that they gave it."""

    predicted: tuple[float, ...]
    confidence: float | None

    @classmethod
    def at(cls, place: int, predictions: Predictions) -> "Guess":
        confidence = predictions.confidence
        mean = None if confidence is None else float(confidence[:, place].mean())
        return cls(tuple(predictions.predicted[:, place].tolist()), mean)


@dataclass(frozen=True)
class Example:
    """An example with its texts (None if they cannot be read), its label and what was predicted for it.

    ``seeds`` counts the models that got it wrong, or that differ. ``size`` is what such examples are ordered by, the
    mean over models: how sure or how wrong they were, or how much less wrong others are.
    """

    id: str
    texts: tuple[str, ...] | None
    expected: float
    guesses: tuple[Guess, ...]
    seeds: int
    size: float


@dataclass(frozen=True)
class ClassScores:
    """Means over models; None where one is not defined, because nothing is or is called that class."""

    precision: float | None
    recall: float | None
    f1: float | None
    support: int


@dataclass(frozen=True)
class Bin:
    """Examples with labels from ``low`` to ``high``: how far predictions are off, with sign and without."""

    low: float
    high: float
    examples: int
    residual: float
    error: float


@dataclass(frozen=True, eq=False)
class TaskErrors:
    """The errors of one task. ``scores`` has the metric of each model, ``wrong`` the number of wrong classes (mean).

    ``confusion`` [C, C] counts labels by predictions (mean over models), ``by_class`` is in the order of the classes;
    of values there are ``bins`` instead.
    """

    task: str
    metric: str
    names: tuple[str, ...]
    classes: int
    examples: int
    scores: tuple[float, ...]
    wrong: float
    worst: tuple[Example, ...]
    confusion: Values
    by_class: tuple[ClassScores, ...]
    bins: tuple[Bin, ...]
    notes: tuple[str, ...]


def errors_of(
    subject: Subject, registry: Path, *, only: Sequence[str] = (), limit: int = 10, folder: Path | None = None
) -> list[TaskErrors]:
    """The errors of a subject, task by task, the ``limit`` worst with their texts."""
    return [_errors(subject, registry, task, limit, folder) for task in subject.tasks(registry, only)]


def _errors(subject: Subject, registry: Path, task: str, limit: int, folder: Path | None) -> TaskErrors:
    predictions = Predictions.load(registry, task, [place.cell for place in subject.cells])
    texts = texts_of(task, subject.spec["tasks"][task]["data"], predictions.examples, folder)
    notes = [texts.note] if texts.note else []
    if predictions.on_another_scale:
        predictions = predictions.fitted()
        notes.append(f"{task}: {RESCALED}")
    classes = predictions.facts.classes
    return TaskErrors(
        task,
        predictions.facts.metric,
        texts.names,
        classes,
        len(predictions.expected),
        tuple(place.cell.scores.get(task, float("nan")) for place in subject.cells),
        float((~predictions.right).sum(1).mean()),
        tuple(_worst(predictions, texts, limit)),
        confusion_of(predictions),
        tuple(class_scores(predictions)),
        tuple(_bins(predictions)) if not classes else (),
        tuple(notes),
    )


def _worst(predictions: Predictions, texts: Texts, limit: int) -> Iterator[Example]:
    """Of classes first what most models got wrong, then what they were surest of; of values the largest errors."""
    size = (predictions.wrongness if predictions.confidence is None else predictions.confidence).mean(0)
    seeds = (~predictions.right).sum(0)
    if predictions.facts.classes:
        order, wrong = np.lexsort((-size, -seeds)), seeds > len(predictions.predicted) / 2
    else:
        order, wrong = np.argsort(-size, kind="stable"), size > 0
    for place in order[wrong[order]][:limit].tolist():
        yield example_at(place, texts, (predictions,), int(seeds[place]), float(size[place]))


def example_at(place: int, texts: Texts, by: Sequence[Predictions], seeds: int, size: float) -> Example:
    """The example at a place, and what each of several predicted for it."""
    examples = by[0].examples
    guesses = tuple(Guess.at(place, each) for each in by)
    return Example(examples.ids[place], texts.rows[place], float(examples.expected[place]), guesses, seeds, size)


def confusion_of(predictions: Predictions) -> Values:
    """How often each class was called which, the mean over models: [C, C], labels by predictions."""
    classes = predictions.facts.classes
    if not classes:
        return np.zeros((0, 0))
    cells = (predictions.expected * classes + predictions.predicted).astype(int)  # [S, n]
    counts = np.stack([np.bincount(each, minlength=classes * classes) for each in cells])
    found: Values = counts.mean(0).reshape(classes, classes)
    return found


def class_scores(predictions: Predictions) -> Iterator[ClassScores]:
    """Precision, recall and F1 of every class."""
    for label in range(predictions.facts.classes):
        called, real = predictions.predicted == label, predictions.expected == label
        hits = (called & real).sum(1)
        support = int(real.sum())
        yield ClassScores(
            _mean_share(hits, called.sum(1)),
            _mean_share(hits, np.full(len(hits), support)),
            _mean_share(2 * hits, called.sum(1) + support),
            support,
        )


def _mean_share(part: NDArray[np.int64], whole: NDArray[np.int64]) -> float | None:
    """The mean of part / whole over models; None if it is not defined for all of them."""
    return float((part / whole).mean()) if whole.all() else None


def bins_of(expected: Values) -> Iterator[tuple[float, float, NDArray[np.bool_]]]:
    """Intervals of equal width with the examples whose labels are in them, [n]; empty ones are left out."""
    edges = np.linspace(expected.min(), expected.max(), BINS + 1)
    numbers = np.searchsorted(edges[1:-1], expected, side="right")
    for number in range(BINS):
        inside = numbers == number
        if inside.any():
            yield float(edges[number]), float(edges[number + 1]), inside


def _bins(predictions: Predictions) -> Iterator[Bin]:
    residual = predictions.predicted - predictions.expected
    for low, high, inside in bins_of(predictions.expected):
        part = residual[:, inside]
        yield Bin(low, high, int(inside.sum()), float(part.mean()), float(np.abs(part).mean()))
