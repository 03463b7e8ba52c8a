"""Laws of metrics."""

import math

import numpy as np
from numpy.typing import NDArray

from taskloom.core.metric import Metric
from taskloom.core.testing.law import Subject, given, require, untouched_randomness

ROWS = 40


def _draws() -> tuple[NDArray[np.float64], list[NDArray[np.float64]]]:
    """Labels, and predictions from good to useless; class numbers, which are also values."""
    random = np.random.Generator(np.random.Philox(0))
    expected = random.integers(0, 5, ROWS).astype(np.float64)
    noisy = [np.where(random.random(ROWS) < share, random.permutation(expected), expected) for share in (0.1, 0.5, 1)]
    return expected, [*noisy, 4 - expected, np.full(ROWS, 2.0)]


def a_score_is_a_finite_number(subject: Subject) -> None:
    metric: Metric = subject.make()
    expected, others = _draws()
    for place, predicted in enumerate([expected, *others]):
        with given(f"prediction {place} of {predicted[:4].tolist()}…"):
            score = metric(predicted, expected)
            require(type(score) is float, f"the score should be a float. Found {type(score).__name__}.")
            require(math.isfinite(score), f"the score is {score}")
            if metric.correlation:
                require(-1 <= score <= 1, f"a correlation should be from −1 to 1. Found {score}.")


def the_perfect_prediction_is_best(subject: Subject) -> None:
    metric: Metric = subject.make()
    expected, others = _draws()
    best = metric(expected, expected)
    for predicted in others:
        score = metric(predicted, expected)
        require(score < best, f"labels {expected[:5].tolist()}… as their own prediction score {best}, others {score}")


def the_order_of_examples_does_not_matter(subject: Subject) -> None:
    metric: Metric = subject.make()
    expected, others = _draws()
    order = np.random.Generator(np.random.Philox(1)).permutation(ROWS)
    for predicted in others:
        with untouched_randomness():
            gap = abs(metric(predicted[order], expected[order]) - metric(predicted, expected))
        require(gap < 1e-9, f"permuted predictions {predicted[:4].tolist()}… score differently by {gap}")


LAWS = (a_score_is_a_finite_number, the_perfect_prediction_is_best, the_order_of_examples_does_not_matter)
