"""The best of k trials: what a search of another size would have come to."""

from itertools import pairwise, product

import numpy as np
import pytest

from taskloom.runs.analysis.budget import HIGH, LOW, best_of

SCORES = [0.5, 0.7, 0.6, 0.6]


@pytest.mark.parametrize("trials", [1, 2, 3, 4])
def test_expectation_and_range_are_those_over_all_equally_likely_searches(trials: int) -> None:
    bests = np.sort([max(search) for search in product(SCORES, repeat=trials)])
    best = best_of(SCORES)[trials - 1]
    assert best.expected == pytest.approx(bests.mean())
    # The least score that at least this share of all searches do not exceed.
    assert best.low == bests[int(np.ceil(LOW * len(bests))) - 1]
    assert best.high == bests[int(np.ceil(HIGH * len(bests))) - 1]


def test_more_trials_are_never_worse_and_one_is_the_mean() -> None:
    curve = best_of(np.random.default_rng(0).random(30).tolist())
    assert [best.trials for best in curve] == list(range(1, 31))
    assert all(later.expected >= best.expected for best, later in pairwise(curve))
    assert all(best.low <= best.expected <= best.high for best in curve)


def test_a_failed_trial_counts_as_tried_and_as_the_worst() -> None:
    assert best_of([0.5, None, 0.7]) == best_of([0.5, 0.5, 0.7])
    assert best_of([None]) == best_of([]) == []
