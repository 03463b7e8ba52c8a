"""Laws of metrics."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taskloom.core.metric import Metric
from taskloom.core.testing.law import REFUSALS, Subject, at_edges, given, require, untouched_randomness

ROWS = 40
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Draw:
    """Labels, and predictions from good to useless: the last is as wrong as can be."""

    words: str
    expected: Values
    predicted: tuple[tuple[str, Values], ...]


def _draws(metric: Metric) -> list[Draw]:
    """Labels of every kind that the metric reads."""
    classes, values = [_classes(5), _classes(2)], [_values(5.0), _values(1.0)]
    return {"classes": classes, "values": values}.get(metric.reads, classes + values)


def _classes(count: int) -> Draw:
    random = np.random.Generator(np.random.Philox(count))
    expected = random.permutation(np.arange(ROWS) % count).astype(np.float64)
    others = (expected + 1) % count
    noisy = [(f"{share:.0%} wrong", np.where(np.arange(ROWS) < share * ROWS, others, expected)) for share in (0.1, 0.5)]
    constant = np.full(ROWS, float(count // 2))
    return Draw(f"labels of {count} classes", expected, (*noisy, ("constant", constant), ("all wrong", others)))


def _values(high: float) -> Draw:
    random = np.random.Generator(np.random.Philox(7))
    expected = high * random.random(ROWS)
    noisy = [
        (f"noise of {share:.0%}", np.clip(expected + share * high * random.standard_normal(ROWS), 0, high))
        for share in (0.1, 0.5)
    ]
    constant = np.full(ROWS, high / 2)
    opposite = high - expected
    return Draw(f"labels from 0 to {high:g}", expected, (*noisy, ("constant", constant), ("opposite", opposite)))


def _taken(subject: Subject) -> list[tuple[Metric, Draw]]:
    """The labels that the metric takes; a message is a refusal, as long as it takes some."""
    metric: Metric = subject.make()
    kinds = ("classes", "values", "either")
    require(metric.reads in kinds, f"reads should be one of {', '.join(kinds)}. Found {metric.reads!r}.")
    taken, refused = [], []
    for draw in _draws(metric):
        with given(draw.words):
            try:
                metric(draw.expected.copy(), draw.expected.copy())
            except REFUSALS as error:
                refused.append(f"{draw.words} ({error})")
            else:
                taken.append((metric, draw))
    require(bool(taken) or subject.quick, f"it refuses every kind of labels: {'; '.join(refused)}")
    return taken


@at_edges
def a_score_is_a_finite_number(subject: Subject) -> None:
    for metric, draw in _taken(subject):
        for words, predicted in (("perfect", draw.expected), *draw.predicted):
            with given(f"{draw.words}, predictions: {words}"):
                _require_score(metric, predicted, draw.expected)


def extreme_predictions_have_a_finite_score(subject: Subject) -> None:
    """A value may be predicted far outside of the labels' range; a class may not."""
    for metric, draw in _taken(subject):
        if "classes" in draw.words:
            continue
        for factor in (1e4, -1e4):
            with given(f"{draw.words}, predictions times {factor:g}"):
                _require_score(metric, draw.predicted[0][1] * factor, draw.expected)


def one_example_is_scored_or_refused(subject: Subject) -> None:
    for metric, draw in _taken(subject):
        with given(f"{draw.words}, 1 example"):
            try:
                _require_score(metric, draw.expected[:1], draw.expected[:1])
            except REFUSALS as error:
                require(bool(str(error)), f"{type(error).__name__} says nothing")


def _require_score(metric: Metric, predicted: Values, expected: Values) -> None:
    score = metric(predicted.copy(), expected.copy())
    require(type(score) is float, f"the score should be a float. Found {type(score).__name__}.")
    require(math.isfinite(score), f"the score is {score}")
    if metric.correlation:
        require(-1 <= score <= 1, f"a correlation should be from −1 to 1. Found {score}.")


def the_perfect_prediction_is_best(subject: Subject) -> None:
    for metric, draw in _taken(subject):
        best = metric(draw.expected, draw.expected)
        for words, predicted in draw.predicted:
            score = metric(predicted, draw.expected)
            worse = score < best if words == draw.predicted[-1][0] else score <= best + 1e-12
            given_words = f"{draw.words} {draw.expected[:4].tolist()}…, predictions: {words}"
            require(worse, f"with {given_words}: they score {score}, the labels themselves {best}")


def the_order_of_examples_does_not_matter(subject: Subject) -> None:
    order = np.random.Generator(np.random.Philox(1)).permutation(ROWS)
    for metric, draw in _taken(subject):
        for words, predicted in draw.predicted:
            with given(f"{draw.words}, predictions: {words}"):
                scores = metric(predicted[order], draw.expected[order]), metric(predicted, draw.expected)
                require(abs(scores[0] - scores[1]) < 1e-9, f"permuted they score {scores[0]}, and not {scores[1]}")


@at_edges
def scoring_twice_gives_one_score(subject: Subject) -> None:
    """A metric remembers nothing."""
    for metric, draw in _taken(subject):
        for words, predicted in draw.predicted:
            with given(f"{draw.words}, predictions: {words}"):
                first, fresh = metric(predicted, draw.expected), subject.make()
                again = metric(predicted, draw.expected), fresh(predicted, draw.expected)
                require(again == (first, first), f"the score is {first}, then {again[0]}, from a new metric {again[1]}")


def it_touches_no_global_random_state(subject: Subject) -> None:
    for metric, draw in _taken(subject):
        with given(draw.words), untouched_randomness():
            metric(draw.predicted[0][1], draw.expected)


def it_leaves_predictions_and_labels_as_they_are(subject: Subject) -> None:
    for metric, draw in _taken(subject):
        for words, predicted in draw.predicted:
            with given(f"{draw.words}, predictions: {words}"):
                copies = predicted.copy(), draw.expected.copy()
                metric(*copies)
                same = np.array_equal(copies[0], predicted) and np.array_equal(copies[1], draw.expected)
                require(same, "an array was written to")


LAWS = (
    a_score_is_a_finite_number,
    extreme_predictions_have_a_finite_score,
    one_example_is_scored_or_refused,
    the_perfect_prediction_is_best,
    the_order_of_examples_does_not_matter,
    scoring_twice_gives_one_score,
    it_touches_no_global_random_state,
    it_leaves_predictions_and_labels_as_they_are,
)
