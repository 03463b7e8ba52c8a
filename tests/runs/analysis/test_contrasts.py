"""Contrasts: as formulas worked by hand and other libraries have them, and right by simulation."""

import importlib.util
import math
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from taskloom.runs.analysis.contrasts import ALPHA, Contrast, Scores, holm, judge

# A benchmark, and not the package of that name.
_file = importlib.util.spec_from_file_location("simulated", Path(__file__).parents[2] / "bench/coverage.py")
simulated = sys.modules["simulated"] = importlib.util.module_from_spec(_file)
_file.loader.exec_module(simulated)


def table(rows: int = 5, seeds: int = 3, examples: int = 60, seed: int = 0) -> tuple[Scores, np.ndarray]:
    draw = np.random.default_rng(seed)
    moves = draw.normal(0, 0.002, (rows, 1, examples)) + draw.normal(0, 0.002, (rows, seeds, examples))
    values = 0.8 + draw.normal(0, 0.02, (rows, seeds)) + draw.normal(0, 0.02, seeds)
    return Scores.of(values, moves), moves


def less(rows: int, one: int, other: int) -> np.ndarray:
    return np.eye(rows)[one] - np.eye(rows)[other]


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_a_contrast_is_what_the_formulas_say(seeds):
    scores, moves = table(seeds=seeds)
    for one, other in ((1, 0), (2, 4)):
        found = scores.contrast(less(5, one, other))
        d = scores.values[one] - scores.values[other]
        phi = moves[one] - moves[other]  # [S, N], already divided by n
        common = np.mean([sum(phi[s] * phi[t]) for s in range(seeds) for t in range(seeds) if s != t])
        row_means, seed_means = scores.values.mean(1), scores.values.mean(0)
        rest = [
            (scores.values[r, s] - row_means[r] - seed_means[s] + scores.values.mean()) ** 2
            for r in range(5)
            for s in range(seeds)
        ]
        pooled, own = 2 * sum(rest) / (4 * (seeds - 1)), np.var(d, ddof=1)
        spread, freedom = (own, seeds - 1) if own > pooled else (pooled, 4 * (seeds - 1))
        variance = spread / seeds + max(common, 0)
        freedom *= (1 + seeds * max(common, 0) / spread) ** 2
        assert found.variance == ("own" if own > pooled else "pooled")
        assert found.p == pytest.approx(2 * stats.t.sf(abs(d.mean()) / math.sqrt(variance), freedom))
        assert found.interval() == pytest.approx(stats.t.interval(0.95, freedom, d.mean(), math.sqrt(variance)))


def test_two_rows_without_example_noise_are_a_paired_t_test():
    values = np.random.default_rng(2).normal(0.7, 0.05, (2, 6))
    found = Scores.of(values, np.zeros((2, 6, 10))).contrast(np.array([1.0, -1.0]))
    theirs = stats.ttest_rel(values[0], values[1])
    assert found.p == pytest.approx(theirs.pvalue)
    assert found.interval() == pytest.approx((theirs.confidence_interval().low, theirs.confidence_interval().high))


def test_one_seed_is_the_paired_z_of_mcnemar():
    """Two models on n examples: the variance of the difference of accuracies is that of the paired differences."""
    draw = np.random.default_rng(3)
    hits = draw.random((2, 1, 500)) < 0.8
    scores = Scores.of(hits.mean(2), (hits - hits.mean(2, keepdims=True)) / 500)
    found = scores.contrast(np.array([1.0, -1.0]))
    d = hits[0, 0].astype(float) - hits[1, 0]
    assert found.variance == "examples"
    assert found.error == pytest.approx(d.std() / math.sqrt(500))
    assert found.p == pytest.approx(stats.ttest_1samp(d, 0).pvalue, rel=0.05)


def test_sigma_is_the_residual_mean_square_of_statsmodels():
    ols = pytest.importorskip("statsmodels.formula.api").ols
    scores, _ = table(4, 5)
    frame = {"y": scores.values.ravel(), "row": np.repeat(range(4), 5), "seed": np.tile(range(5), 4)}
    fitted = ols("y ~ C(row) + C(seed)", frame).fit()
    assert scores.noise(np.ones(5, bool)) == pytest.approx((fitted.mse_resid, fitted.df_resid))


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=12))
def test_holm_is_that_of_statsmodels_and_its_levels_never_contradict_it(ps):
    multipletests = pytest.importorskip("statsmodels.stats.multitest").multipletests
    corrected, levels = holm(ps)
    np.testing.assert_allclose(corrected, multipletests(ps, method="holm")[1])
    for p, q, level in zip(ps, corrected, levels, strict=True):
        assert (p < level) == (q < ALPHA)


@given(st.integers(0, 10**6), st.sampled_from([1, 2, 3, 5]))
def test_an_interval_leaves_out_zero_just_where_the_verdict_is_not_open(seed, seeds):
    draw = np.random.default_rng(seed)
    values = 0.8 + draw.normal(0, 0.02, (6, seeds)) + 0.05 * draw.integers(-1, 2, (6, 1))
    scores = Scores.of(values, draw.normal(0, 0.001, (6, seeds, 50)))
    for each in judge([scores.contrast(less(6, row, 0)) for row in range(1, 6)]):
        low, high = each.interval
        assert (low > 0 or high < 0) == (each.verdict != "open")
        assert (each.p < ALPHA) == (each.verdict != "open")


def test_equal_needs_a_margin_and_enough_data():
    near = Contrast(0.001, 5, "pooled", 1e-5, 1e-6, 40)
    noisy = Contrast(0.001, 5, "pooled", 1e-3, 1e-6, 40)
    assert [each.verdict for each in judge([near, noisy])] == ["open", "open"]
    assert [each.verdict for each in judge([near, noisy], margin=0.01)] == ["equal", "open"]
    lower, upper = (stats.t.sf((0.01 + sign * 0.001) / near.error, near.total_freedom) for sign in (1, -1))
    assert near.p_equal(0.01) == pytest.approx(max(lower, upper))


def test_what_cannot_be_judged_says_why_and_gives_no_number():
    values = np.array([[0.5, 0.6], [0.7, np.nan], [np.nan, 0.9], [0.5, 0.6], [0.9, 0.9]])
    whole = Scores.of(values, np.random.default_rng(0).normal(0, 0.01, (5, 2, 20)))
    scores = Scores(values, whole.shared, np.array([0, 0, 0, 1, -1]), (20, 20))
    for one, other in ((1, 2), (0, 3), (0, 4)):
        (judged,) = judge([scores.contrast(less(5, one, other))])
        assert judged.contrast.why
        assert (judged.p, judged.interval, judged.verdict, judged.seeds_needed) == (None, None, "open", None)
    assert scores.contrast(less(5, 1, 0)).seeds == 1, "the seeds that both have"
    still = Scores.of(np.array([[1.0, 1.0], [0.0, 0.0]]), np.zeros((2, 2, 1)))
    assert still.contrast(less(2, 0, 1)).why, "one example cannot show anything"


def test_the_same_runs_under_two_names_are_identical():
    scores, moves = table(2)
    twice = Scores.of(np.repeat(scores.values[:1], 2, 0), np.repeat(moves[:1], 2, 0))
    (judged,) = judge([twice.contrast(less(2, 1, 0))])
    assert judged.contrast.identical
    beside = Scores.of(
        np.concatenate([twice.values, scores.values[1:]]), np.concatenate([np.repeat(moves[:1], 2, 0), moves[1:]])
    )
    assert beside.contrast(less(3, 1, 0)).identical, "whatever noise other rows have"
    assert (judged.p, judged.interval, judged.verdict) == (1.0, (0.0, 0.0), "open")


def test_seeds_needed_are_the_fewest_that_suffice():
    contrast = Contrast(0.02, 3, "pooled", 4e-4, 1e-6, 12)
    spread = 4e-4 * 12 / stats.chi2.ppf(0.2, 12)

    def detectable(seeds: int) -> float:
        freedom = 12 * (seeds - 1) / 2 * (1 + seeds * 1e-6 / spread) ** 2
        return (stats.t.ppf(0.975, freedom) + stats.t.ppf(0.8, freedom)) * math.sqrt(spread / seeds + 1e-6)

    needed = contrast.seeds_needed()
    assert detectable(needed) <= 0.02 < detectable(needed - 1)
    larger = [Contrast(delta, 3, "pooled", 4e-4, 1e-6, 12).seeds_needed() for delta in (0.01, 0.02, 0.05)]
    assert all(a > b for a, b in pairwise(larger))


def test_no_number_of_seeds_makes_up_for_a_small_dev_set():
    contrast = Contrast(0.02, 3, "pooled", 1e-6, 1e-4, 12)
    assert contrast.smallest() == pytest.approx(2.80 * 0.01, rel=0.01)
    assert contrast.seeds_needed() is None
    assert Contrast(0.03, 3, "pooled", 1e-6, 1e-4, 12).seeds_needed() is not None


@pytest.mark.parametrize("metric", simulated.METRICS, ids=lambda metric: metric.name)
@pytest.mark.parametrize("seeds", [3, 5])
def test_by_simulation_intervals_cover_and_tables_rarely_err(metric, seeds):
    """A short version of tests/bench/coverage.py: of 60 tables at most 7 err if the rate is 0.05."""
    for setting in simulated.SETTINGS[:3]:
        mean, worst, wrong, _ = simulated.errors(metric, setting, seeds, 60)
        assert mean >= 0.93
        assert worst >= 0.85
        assert wrong <= 0.117


def test_by_simulation_the_rule_finds_what_t_tests_with_holm_do_not():
    ours, plain = simulated.power(simulated.METRICS[0], simulated.SETTINGS[0], 3, 80)
    assert ours > plain + 0.1
