"""Contrasts: as formulas worked by hand and other libraries have them, and right by simulation."""

import importlib.util
import math
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from contrasted import contrast_of
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.formula.api import ols
from statsmodels.stats.multitest import multipletests

from taskloom.runs.analysis.contrasts import ALPHA, Scores, holm, judge, shrunk_variances

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


def by_hand(values: np.ndarray, phi: np.ndarray, one: int, other: int, alpha: float = 0.05) -> tuple[float, float]:
    """p and half of the interval of one row less another, by the formulas; ``phi`` [R, S, n] are divided by n."""
    rows, seeds = values.shape
    d, moved = values[one] - values[other], phi[one] - phi[other]
    s2 = np.var(d, ddof=1)
    common = max(np.mean([moved[s] @ moved[t] for s in range(seeds) for t in range(seeds) if s != t]), 0)
    rest = values - values.mean(1)[:, None] - values.mean(0) + values.mean()
    pool = (rest**2).sum() / ((rows - 1) * (seeds - 1))
    v = (rest**2).sum(1) / (seeds - 1)
    total = v.sum() * rows / (rows - 1)
    grubbs = np.maximum((v - total / rows**2) * rows / (rows - 2), 0)
    shrunk = (2 * pool + (seeds - 1) * grubbs) / (seeds + 1)
    before = shrunk[one] + shrunk[other]
    freedom = min(before**2 / ((shrunk[one] ** 2 + shrunk[other] ** 2) / (seeds + 1)), (rows - 1) * (seeds - 1))
    variance = max(before, s2)
    noises = [(math.sqrt(variance / seeds + common), freedom * (1 + seeds * common / variance) ** 2, 0.8)]
    floor = np.mean([moved[s] @ moved[s] for s in range(seeds)]) - common
    noises.append((math.sqrt(max(s2, floor) / seeds + common), seeds - 1, 0.2))
    p = min(1, *(2 * stats.t.sf(abs(d.mean()) / error, df) / share for error, df, share in noises))
    return p, min(stats.t.ppf(1 - share * alpha / 2, df) * error for error, df, share in noises)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_a_contrast_is_what_the_formulas_say(seeds):
    for seed in range(5):
        scores, moves = table(seeds=seeds, seed=seed)
        for one, other in ((1, 0), (2, 4)):
            contrast = scores.contrast(less(5, one, other))
            p, half = by_hand(scores.values, moves, one, other)
            assert contrast.p == pytest.approx(p)
            assert contrast.interval() == pytest.approx((contrast.delta - half, contrast.delta + half))
            assert scores.differences(other)[one].p == pytest.approx(p), "all at once, the same"


def test_a_contrast_a_hair_noisier_than_the_pool_does_not_fall_off_a_cliff():
    """.49/.59/.44 against .21/.20/.23 beside quiet rows: "open" where S − 1 degrees of freedom would decide alone."""
    values = np.array(
        [[0.21, 0.20, 0.23], [0.49, 0.59, 0.44], [0.31, 0.35, 0.30], [0.28, 0.25, 0.30], [0.4, 0.38, 0.43]]
    )
    scores = Scores.of(values, np.zeros((5, 3, 10)))
    assert judge(scores.differences(0)[1:])[0].verdict == "better"
    assert stats.ttest_rel(values[1], values[0]).pvalue * 4 > ALPHA, "what a t test with Holm's correction says"


def test_a_pair_that_hardly_differs_is_judged_by_itself():
    """Rows that move together differ by .0002 from seed to seed, whatever unrelated rows do."""
    draw = np.random.default_rng(4)
    values = 0.6 + draw.normal(0, 0.3, (5, 3))
    values[1] = values[0] + draw.normal(0, 0.0002, 3)
    contrast = Scores.of(values, np.zeros((5, 3, 10))).contrast(less(5, 1, 0))
    low, high = contrast.interval()
    assert high - low < 0.01
    assert contrast.variance() == "own"
    assert contrast.noises[0].half(ALPHA) > 0.1, "what unrelated rows say"
    assert [judged.verdict for judged in judge([contrast], margin=0.02)] == ["equal"]


def test_three_equal_differences_are_not_certainty():
    """Accuracy moves in steps of 1/n, so that seeds may agree by chance: what examples say is the least noise."""
    draw = np.random.default_rng(5)
    hits = (draw.random((2, 3, 100)) < 0.7).astype(float)
    moves = (hits - hits.mean(2, keepdims=True)) / 100
    scores = Scores.of(np.array([[0.7] * 3, [0.71] * 3]), moves)
    contrast = scores.contrast(less(2, 1, 0))
    own = next(noise for noise in contrast.noises if noise.kind == "own")
    within = np.mean([((moves[1] - moves[0])[s] ** 2).sum() for s in range(3)])
    assert own.spread == pytest.approx(within - own.common)
    assert contrast.p > 0.5


def test_a_run_under_several_labels_counts_once():
    scores, moves = table(4, 3)
    labels = np.array([0, 1, 2, 3, 0, 1, 2, 3, 1, 2, 3])
    many = Scores.of(scores.values[labels], moves[labels])
    many = replace(many, runs=labels)
    alone, among = scores.contrast(less(4, 1, 0)), many.contrast(less(11, 8, 4))
    assert (among.p, *among.interval()) == pytest.approx((alone.p, *alone.interval()))
    assert among.noises[0].freedom <= 6
    assert many.differences(4)[8].p == pytest.approx(among.p)
    assert many.contrast(less(11, 5, 1)).why == "both are one and the same run here"


def test_intervals_end_where_the_metric_does():
    wild = Scores.of(np.array([[-0.9, 0.9], [0.9, -0.9]]), np.zeros((2, 2, 5)))
    low, high = replace(wild, width=2.0).contrast(less(2, 0, 1)).interval()
    assert (low, high) == (-2.0, 2.0)
    low, high = wild.contrast(less(2, 0, 1)).interval()
    assert low < -2 < 2 < high, "what noise alone would allow"


def test_two_rows_without_example_noise_are_a_paired_t_test_at_its_share_of_the_level():
    values = np.random.default_rng(2).normal(0.7, 0.05, (2, 6))
    contrast = Scores.of(values, np.zeros((2, 6, 10))).contrast(np.array([1.0, -1.0]))
    theirs = stats.ttest_rel(values[0], values[1])
    assert contrast.p == pytest.approx(theirs.pvalue / 0.8)
    expected = theirs.confidence_interval(1 - 0.8 * ALPHA)
    assert contrast.interval() == pytest.approx((expected.low, expected.high))


def test_one_seed_is_the_paired_z_of_mcnemar_and_decides_nothing_about_methods():
    """Two models on n examples: the variance of the difference of accuracies is that of the paired differences."""
    draw = np.random.default_rng(3)
    hits = draw.random((2, 1, 500)) < [[[0.9]], [[0.5]]]
    scores = Scores.of(hits.mean(2), (hits - hits.mean(2, keepdims=True)) / 500)
    contrast = scores.contrast(np.array([1.0, -1.0]))
    d = hits[0, 0].astype(float) - hits[1, 0]
    assert contrast.variance() == "examples"
    assert contrast.error() == pytest.approx(d.std() / math.sqrt(500))
    assert contrast.p == pytest.approx(stats.ttest_1samp(d, 0).pvalue, rel=0.05)
    (judged,) = judge([contrast], margin=0.9)
    assert judged.p < 0.001
    assert judged.verdict == "one seed", "neither better nor, within any margin, equal"


def test_rows_that_have_learned_nothing_are_untrained_and_not_equal():
    scores, _ = table(4)
    scores = replace(scores, untrained=np.array([True, True, False, True]))
    both, one = scores.contrast(less(4, 1, 0)), scores.contrast(less(4, 2, 0))
    assert (both.untrained, one.untrained) == ("all", "some")
    assert [judged.verdict for judged in judge([both], margin=0.5)] == ["untrained"]
    assert [judged.verdict for judged in judge([one], margin=0.5)] == ["untrained"], "equal to a row that is no better"
    assert [judged.verdict for judged in judge([replace(one, delta=0.9)])] == ["better"], "than one that is untrained"
    trained = scores.contrast(less(4, 2, 2) + less(4, 2, 2))
    assert trained.why


def test_the_pool_is_the_residual_mean_square_of_statsmodels():
    scores, _ = table(2, 5)
    frame = {"y": scores.values.ravel(), "row": np.repeat(range(2), 5), "seed": np.tile(range(5), 2)}
    fitted = ols("y ~ C(row) + C(seed)", frame).fit()
    variances, freedom = shrunk_variances(scores.values)
    assert variances == pytest.approx([fitted.mse_resid] * 2)
    assert freedom == fitted.df_resid


def test_row_variances_are_unbiased_before_they_are_shrunk_to_the_pool():
    """Grubbs' estimates of rows with sds 1, 2, 3 and 4: with many seeds the pool weighs next to nothing."""
    sds = np.array([1.0, 2.0, 3.0, 4.0])
    values = np.random.default_rng(6).normal(0, 1, (4, 200_000)) * sds[:, None]
    variances, _ = shrunk_variances(values)
    assert variances == pytest.approx(sds**2, rel=0.02)


@settings(max_examples=20)  # statsmodels collects garbage at every call
@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=12))
def test_holm_is_that_of_statsmodels_and_its_levels_never_contradict_it(ps):
    corrected, levels = holm(ps)
    assert corrected == pytest.approx(multipletests(ps, method="holm")[1])
    for p, q, level in zip(ps, corrected, levels, strict=True):
        assert (p < level) == (q < ALPHA)


@given(st.integers(0, 10**6), st.sampled_from([1, 2, 3, 5]))
def test_an_interval_leaves_out_zero_just_where_p_is_below_the_level(seed, seeds):
    draw = np.random.default_rng(seed)
    values = 0.8 + draw.normal(0, 0.02, (6, seeds)) + 0.05 * draw.integers(-1, 2, (6, 1))
    scores = Scores.of(values, draw.normal(0, 0.001, (6, seeds, 50)))
    for judged in judge([scores.contrast(less(6, row, 0)) for row in range(1, 6)]):
        low, high = judged.interval
        assert (low > 0 or high < 0) == (judged.p < ALPHA)
        assert (judged.verdict in ("better", "worse")) == (judged.p < ALPHA and seeds > 1)


def test_equal_needs_a_margin_and_enough_data_and_p_stays_that_of_the_difference():
    near, noisy = contrast_of(0.001, 5, 1e-5, 1e-6, 40), contrast_of(0.001, 5, 1e-3, 1e-6, 40)
    assert [judged.verdict for judged in judge([near, noisy])] == ["open", "open"]
    plain, within = judge([near, noisy]), judge([near, noisy], margin=0.01)
    assert [judged.verdict for judged in within] == ["equal", "open"]
    assert [(judged.p, judged.interval) for judged in within] == [(judged.p, judged.interval) for judged in plain]
    noise = near.noises[0]
    lower, upper = (stats.t.sf((0.01 + sign * 0.001) / noise.error, noise.total_freedom) for sign in (1, -1))
    assert near.p_equal(0.01) == pytest.approx(max(lower, upper))
    assert within[0].p_equal == pytest.approx(min(1, 2 * near.p_equal(0.01)))
    assert plain[0].p_equal is None


def test_what_cannot_be_judged_says_why_and_gives_no_number():
    values = np.array([[0.5, 0.6], [0.7, np.nan], [np.nan, 0.9], [0.5, 0.6], [0.9, 0.9]])
    whole = Scores.of(values, np.random.default_rng(0).normal(0, 0.01, (5, 2, 20)))
    scores = replace(whole, sets=np.array([0, 0, 0, 1, -1]), examples=(20, 20))
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
    contrast = contrast_of(0.02, 3, 4e-4, 1e-6)
    spread = 4e-4 * 12 / stats.chi2.ppf(0.2, 12)

    def detectable(seeds: int) -> float:
        freedom = 12 * (seeds - 1) / 2 * (1 + seeds * 1e-6 / spread) ** 2
        return (stats.t.ppf(0.975, freedom) + stats.t.ppf(0.8, freedom)) * math.sqrt(spread / seeds + 1e-6)

    needed = contrast.seeds_needed()
    assert detectable(needed) <= 0.02 < detectable(needed - 1)
    larger = [contrast_of(delta, 3, 4e-4, 1e-6).seeds_needed() for delta in (0.01, 0.02, 0.05)]
    assert all(a > b for a, b in pairwise(larger))


def test_no_number_of_seeds_makes_up_for_a_small_dev_set():
    contrast = contrast_of(0.02, 3, 1e-6, 1e-4)
    assert contrast.smallest() == pytest.approx(2.80 * 0.01, rel=0.05), "2.8, and a little for the shared level"
    assert contrast.seeds_needed() is None
    assert contrast_of(0.03, 3, 1e-6, 1e-4).seeds_needed() is not None


@pytest.mark.parametrize("metric", simulated.METRICS, ids=lambda metric: metric.name)
@pytest.mark.parametrize("seeds", [3, 5])
def test_by_simulation_intervals_cover_and_tables_rarely_err(metric, seeds):
    """A short version of tests/bench/coverage.py: of 60 tables at most 7 err if the rate is 0.05."""
    for setting in simulated.SETTINGS[:3]:
        rates = simulated.errors(metric, setting, seeds, 60)
        assert rates.coverage >= 0.93
        assert rates.worst >= 0.85
        assert rates.family_wise <= 0.117


def test_by_simulation_twins_are_called_equal():
    (setting,) = [setting for setting in simulated.SETTINGS if setting.name == "two twins"]
    for metric, least in zip(simulated.METRICS, (0.2, 0.2, 0.9, 0.9), strict=True):
        assert simulated.errors(metric, setting, 3, 40).equal >= least


def test_by_simulation_the_rule_finds_what_t_tests_with_holm_do_not():
    ours, plain = simulated.power(simulated.METRICS[0], simulated.SETTINGS[0], 3, 80)
    assert ours > plain + 0.1
