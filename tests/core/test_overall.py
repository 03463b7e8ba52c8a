"""The overall score: a weighted mean, whose slopes are what it moves by."""

from statistics import fmean

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from taskloom.core import Overall

TASKS = ["sst", "para", "sts"]
SCORES = st.fixed_dictionaries(dict.fromkeys(TASKS, st.floats(-1, 1)))
WEIGHTS = st.dictionaries(st.sampled_from(TASKS), st.sampled_from([0.0, 0.5, 1.0, 3.0]))


@given(SCORES)
def test_without_weights_it_is_the_mean_to_the_last_bit(scores: dict[str, float]) -> None:
    for how in ({}, {"overall": "mean"}, {"overall": {"name": "mean", "weights": {}}}):
        assert Overall.of(how).score(scores, ["sts"]) == fmean(scores.values())


@given(SCORES, WEIGHTS, st.booleans())
def test_it_moves_with_each_score_by_its_slope(
    scores: dict[str, float], weights: dict[str, float], normalised: bool
) -> None:
    how = Overall(normalised, weights)
    before = how.score(scores, ["sts"])
    slopes = how.slopes(TASKS, ["sts"])
    assume(before is not None)
    assert before is not None
    assert sum(how.shares(TASKS).values()) == pytest.approx(1)
    for task in TASKS:
        after = how.score({**scores, task: scores[task] + 1}, ["sts"])
        assert after == pytest.approx(before + slopes.get(task, 0.0))


def test_weights_worked_by_hand() -> None:
    scores = {"sst": 0.5, "para": 0.8, "sts": 0.2}
    assert Overall.of({"overall": {"weights": {"sst": 2}}}).score(scores, ["sts"]) == pytest.approx(2.0 / 4)
    how = Overall.of({"overall": {"name": "normalised", "weights": {"sst": 2, "para": 0}}})
    assert how.score(scores, ["sts"]) == pytest.approx((2 * 0.5 + 0.6) / 3)
    assert how.slopes(TASKS, ["sts"]) == pytest.approx({"sst": 2 / 3, "sts": 1 / 6})
    assert how.score({"para": 0.8}, []) is None, "nothing that counts"
