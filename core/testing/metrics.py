"""Laws of metrics."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taskloom.core.data import Metric
from taskloom.core.testing.law import accepted, given, law, require, untouched_randomness
from taskloom.core.testing.specimens import REFUSALS, Specimen

ROWS = 40
READS = ("classes", "values", "either")
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """Labels, and predictions from good to useless; the last is as wrong as possible."""

    name: str
    expected: Values
    predicted: dict[str, Values]


def _classes(count: int) -> Case:
    random = np.random.Generator(np.random.Philox(count))
    expected = random.permutation(np.arange(ROWS) % count).astype(np.float64)
    wrong = (expected + 1) % count
    partly = {f"{share:.0%} wrong": np.where(np.arange(ROWS) < share * ROWS, wrong, expected) for share in (0.1, 0.5)}
    constant = np.full(ROWS, float(count // 2))
    return Case(f"labels of {count} classes", expected, {**partly, "constant": constant, "all wrong": wrong})


def _values(high: float) -> Case:
    random = np.random.Generator(np.random.Philox(7))
    expected = high * random.random(ROWS)
    noise = high * random.standard_normal(ROWS)
    noisy = {f"noise of {share:.0%}": np.clip(expected + share * noise, 0, high) for share in (0.1, 0.5)}
    others = {"constant": np.full(ROWS, high / 2), "opposite": high - expected}
    return Case(f"labels from 0 to {high:g}", expected, {**noisy, **others})


def _cases(specimen: Specimen) -> Iterator[tuple[str, Case]]:
    """The labels that the metric accepts."""
    metric: Metric = specimen.make()
    require(metric.reads in READS, f"reads should be one of {', '.join(READS)}. Found {metric.reads!r}.")
    classes, values = [_classes(5), _classes(2)], [_values(5.0), _values(1.0)]
    cases = {"classes": classes, "values": values}.get(metric.reads, classes + values)
    pairs = ((case.name, case) for case in cases)
    return accepted(specimen, pairs, lambda case: metric(case.expected.copy(), case.expected.copy()), REFUSALS)


@law("metric", cases=_cases, at_edges=True)
def a_score_is_a_finite_number(specimen: Specimen, case: Case) -> None:
    """Also of values far outside of the labels' range, and of one example, which it may refuse."""
    metric: Metric = specimen.make()
    first = next(iter(case.predicted.values()))
    far = {} if "classes" in case.name else {f"times {factor:g}": factor * first for factor in (1e4, -1e4)}
    for words, predicted in {"perfect": case.expected, **case.predicted, **far}.items():
        with given(f"predictions: {words}"):
            _require_score(metric, predicted, case.expected)
    with given("1 example"):
        try:
            _require_score(metric, case.expected[:1], case.expected[:1])
        except REFUSALS as error:
            require(bool(str(error)), f"{type(error).__name__} has no message")


def _require_score(metric: Metric, predicted: Values, expected: Values) -> None:
    score = metric(predicted.copy(), expected.copy())
    require(type(score) is float, f"the score should be a float. Found {type(score).__name__}.")
    require(math.isfinite(score), f"the score is {score}")
    if metric.correlation:
        require(-1 <= score <= 1, f"a correlation should be from −1 to 1. Found {score}.")


@law("metric", cases=_cases)
def the_perfect_prediction_is_best(specimen: Specimen, case: Case) -> None:
    metric: Metric = specimen.make()
    best = metric(case.expected, case.expected)
    *_, worst = case.predicted
    for words, predicted in case.predicted.items():
        with given(f"predictions: {words}"):
            score = metric(predicted, case.expected)
            worse = score < best if words == worst else score <= best + 1e-12
            require(worse, f"they score {score}, the labels themselves {best}")


@law("metric", cases=_cases)
def the_order_of_examples_does_not_matter(specimen: Specimen, case: Case) -> None:
    order = np.random.Generator(np.random.Philox(1)).permutation(ROWS)
    metric: Metric = specimen.make()
    for words, predicted in case.predicted.items():
        with given(f"predictions: {words}"):
            scores = metric(predicted[order], case.expected[order]), metric(predicted, case.expected)
            require(abs(scores[0] - scores[1]) < 1e-9, f"permuted they score {scores[0]}, not {scores[1]}")


@law("metric", cases=_cases, at_edges=True)
def influence_is_one_finite_number_per_example(specimen: Specimen, case: Case) -> None:
    """And centred: the noise of a score is computed from the sum of squares."""
    metric: Metric = specimen.make()
    for words, predicted in {"perfect": case.expected, **case.predicted}.items():
        with given(f"predictions: {words}"):
            influence = np.asarray(metric.influence(predicted.copy(), case.expected.copy()))
            require(influence.shape == (ROWS,), f"influence should be [{ROWS}]. Found {list(influence.shape)}.")
            require(bool(np.isfinite(influence).all()), "an influence is not finite")
            mean = abs(float(influence.mean()))
            require(mean <= 1e-6 * max(1.0, float(np.abs(influence).max())), f"its mean should be 0. Found {mean:g}.")


@law("metric", cases=_cases, at_edges=True)
def scoring_twice_gives_one_score(specimen: Specimen, case: Case) -> None:
    """A metric remembers nothing, draws nothing, and writes to nothing."""
    for words, predicted in case.predicted.items():
        with given(f"predictions: {words}"):
            copies = predicted.copy(), case.expected.copy()
            with untouched_randomness():
                metric: Metric = specimen.make()
                first = metric(*copies)
            same = np.array_equal(copies[0], predicted) and np.array_equal(copies[1], case.expected)
            require(same, "an array was written to")
            again = metric(predicted, case.expected), specimen.make()(predicted, case.expected)
            require(again == (first, first), f"the score is {first}, then {again[0]}, from a new metric {again[1]}")
