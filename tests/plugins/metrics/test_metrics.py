"""Metrics: laws, outside witnesses, numbers worked by hand."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from taskloom.core import Metric
from taskloom.plugins.metrics.accuracy import Accuracy
from taskloom.plugins.metrics.f1 import F1
from taskloom.plugins.metrics.macro_f1 import MacroF1
from taskloom.plugins.metrics.mae import MAE
from taskloom.plugins.metrics.mcc import MCC
from taskloom.plugins.metrics.pearson import Pearson
from taskloom.plugins.metrics.spearman import Spearman

CORRELATIONS = [Pearson(), Spearman()]
METRICS = [Accuracy(), F1(), F1(classes=[0, 2]), MacroF1(), MCC(), MAE(), *CORRELATIONS]
correlation = pytest.mark.parametrize("metric", CORRELATIONS, ids=lambda metric: metric.name)


def row(*values: float) -> np.ndarray:
    return np.array(values, np.float64)


@st.composite
def classes(draw):
    n = draw(st.integers(1, 40))
    some = arrays(np.float64, n, elements=st.integers(0, 4).map(float))
    return draw(some), draw(some)


@st.composite
def values(draw):
    n = draw(st.integers(3, 40))
    some = arrays(np.float64, n, elements=st.integers(-1000, 1000).map(lambda x: x / 100))
    a, b = draw(some), draw(some)
    assume(np.ptp(a) and np.ptp(b))
    return a, b


def test_metrics_that_ask_for_equality_are_not_for_values():
    """No prediction of a value is exactly right: hits would be 0, however near it is."""
    expected = row(0, 1, 2)
    near = expected + 1e-9
    for metric in METRICS:
        lost = metric(expected, expected) - metric(near, expected)
        assert (lost > 0.5) == (metric.reads == "classes")


@given(classes())
def test_accuracy_is_the_share_of_hits(pair):
    predicted, expected = pair
    assert Accuracy()(predicted, expected) == sum(map(float.__eq__, predicted, expected)) / len(expected)


def test_macro_f1_equals_sklearn():
    sklearn = pytest.importorskip("sklearn.metrics")
    draw = np.random.default_rng(0)
    for n in (1, 7, 200):
        predicted, expected = draw.integers(0, 5, (2, n)).astype(float)
        theirs = sklearn.f1_score(expected, predicted, average="macro", zero_division=0)
        assert MacroF1()(predicted, expected) == pytest.approx(theirs, abs=1e-12)


def test_f1_and_mcc_equal_sklearn():
    sklearn = pytest.importorskip("sklearn.metrics")
    draw = np.random.default_rng(1)
    for n in (7, 200):
        for classes in (2, 5):
            predicted, expected = draw.integers(0, classes, (2, n)).astype(float)
            theirs = sklearn.matthews_corrcoef(expected, predicted)
            assert MCC()(predicted, expected) == pytest.approx(theirs, abs=1e-12)
            for labels in ([1], [0], list(range(classes))):
                theirs = sklearn.f1_score(expected, predicted, labels=labels, average="micro", zero_division=0)
                assert F1(classes=labels)(predicted, expected) == pytest.approx(theirs, abs=1e-12)


@given(values())
def test_mae_equals_sklearn(pair):
    sklearn = pytest.importorskip("sklearn.metrics")
    assert MAE()(*pair) == pytest.approx(-sklearn.mean_absolute_error(*pair), abs=1e-12)


def test_mcc_of_two_classes_is_pearson_and_0_for_a_constant_prediction():
    predicted, expected = row(0, 1, 1, 0, 1, 1), row(0, 1, 0, 0, 1, 0)
    assert MCC()(predicted, expected) == pytest.approx(Pearson()(predicted, expected))
    assert MCC()(np.ones(6), expected) == MCC()(predicted, np.ones(6)) == 0.0


@given(values())
def test_correlations_equal_scipy(pair):
    assert Pearson()(*pair) == pytest.approx(scipy.stats.pearsonr(*pair).statistic, abs=1e-9)
    assert Spearman()(*pair) == pytest.approx(scipy.stats.spearmanr(*pair).statistic, abs=1e-9)


def test_numbers_worked_by_hand():
    predicted, expected = row(0, 1, 1, 1), row(0, 0, 1, 2)
    assert Accuracy()(predicted, expected) == 0.5
    # Class 0: 2·1/(1+2); class 1: 2·1/(3+1); class 2 is never predicted: 0.
    assert MacroF1()(predicted, expected) == pytest.approx((2 / 3 + 1 / 2 + 0) / 3)
    # One hit of class 1, predicted three times and expected once: 2·1/(3+1).
    assert F1()(predicted, expected) == pytest.approx(1 / 2)
    # Two hits of (1, 3, 0) predicted and (2, 1, 1) expected: (4·2 − 5) / √((16 − 10)(16 − 6)).
    assert MCC()(predicted, expected) == pytest.approx(3 / 60**0.5)
    assert MAE()(row(1, 2, 3), row(0, 1, 5)) == pytest.approx(-4 / 3)
    # Around their means: (−1, 0, 1) and (−2, −1, 3); 5 / √(2·14).
    assert Pearson()(row(1, 2, 3), row(0, 1, 5)) == pytest.approx(5 / 28**0.5)
    # Ranks (1, 2.5, 2.5, 4) and (1, 3, 2, 4): 4.5 / √(4.5 · 5).
    assert Spearman()(row(1, 2, 2, 9), row(0, 7, 3, 8)) == pytest.approx(4.5 / 22.5**0.5)


@correlation
@pytest.mark.parametrize("constant", [0.0, 0.1, 1e300])
def test_a_constant_side_gives_zero_without_a_warning(metric: Metric, constant):
    flat, other = np.full(7, constant), np.arange(7.0)
    assert metric(flat, other) == metric(other, flat) == metric(flat, flat) == 0.0


# Influence values: what an example does to a score


class Plain(Metric):
    """Another metric without influence values of its own, so the jackknife finds them."""

    name = "plain"

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self.reads = metric.reads

    def __call__(self, predicted, expected):
        return self._metric(predicted, expected)


def predictions_of(metric: Metric, runs: int, n: int):
    """Runs of one method: their errors are alike, as they are where examples are hard."""
    draw = np.random.default_rng(4)
    y, hard = draw.normal(size=(2, n))
    x = y + 0.7 * hard + draw.normal(0, 0.6, (runs, n))
    if metric.reads == "classes":
        return np.digitize(x, [-0.6, 0.5]).astype(float), np.digitize(y, [-0.4, 0.6]).astype(float)
    return np.round(x, 1), np.round(y)  # with ties, as similarities have them


@pytest.mark.parametrize("metric", [*METRICS, *map(Plain, METRICS)], ids=lambda metric: metric.name)
@pytest.mark.parametrize("n", [150, 1300])
def test_influence_values_give_the_covariances_of_a_bootstrap_over_examples(metric, n):
    runs, expected = predictions_of(metric, 3, n)
    influence = np.stack([metric.influence(one, expected) for one in runs])
    assert np.abs(influence.mean(1)).max() < 1e-9, "centred"
    draw = np.random.default_rng(1)
    chosen = draw.integers(0, n, (800, n))
    scores = np.array([[metric(one[some], expected[some]) for one in runs] for some in chosen])
    bootstrap = np.cov(scores.T)
    np.testing.assert_allclose(influence @ influence.T / n**2, bootstrap, rtol=0.2, atol=0.08 * bootstrap.max())


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_one_example_and_constant_predictions_have_no_influence(metric):
    for predicted, expected in ((row(1.0), row(1.0)), (row(1, 1, 1), row(1, 1, 1))):
        for found in (metric.influence(predicted, expected), Metric.influence(metric, predicted, expected)):
            assert (found == 0).all()
            assert found.shape == expected.shape
