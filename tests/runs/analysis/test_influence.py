"""Examples that share a text: what they add to the covariance of scores, and what follows for a difference."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskloom.runs.analysis.contrasts import judge
from taskloom.runs.analysis.influence import ExampleInfluence, gathered, joined_texts, largest_group, shared_covariance


@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 40))
def test_it_is_the_sum_over_pairs_that_share_a_text(seed: int, columns: int, texts: int) -> None:
    draw = np.random.default_rng(seed)
    numbers = draw.integers(0, texts, (25, columns))
    moves = draw.normal(size=(3, 25))
    share = [[bool({*a} & {*b}) and i != j for j, b in enumerate(numbers)] for i, a in enumerate(numbers)]
    covariance = shared_covariance(moves, numbers)
    if covariance is None:
        assert not np.any(share)
    else:
        assert covariance == pytest.approx(moves @ np.array(share, float) @ moves.T)
    sharing, most = largest_group(numbers)
    assert sharing == np.any(share, axis=1).sum()
    counts = np.bincount([number for row in numbers for number in {*row.tolist()}])
    assert most == (counts.max() if counts.max() > 1 else 0)


def test_the_pairs_are_never_listed() -> None:
    """A text that all of 200,000 examples share would make 4e10 pairs."""
    texts = np.column_stack([np.zeros(200_000, np.int64), np.arange(1, 200_001)])
    moves = np.random.default_rng(0).normal(size=(2, 200_000))
    covariance = shared_covariance(moves, texts)
    assert covariance is not None
    sums = moves.sum(1)
    assert covariance == pytest.approx(np.outer(sums, sums) - moves @ moves.T, rel=1e-6, abs=1e-3)


def test_tasks_share_no_text_and_a_single_text_is_no_pair() -> None:
    texts = joined_texts([np.array([[0], [1], [0]]), np.array([[0, 1], [2, 3]])])
    assert texts.tolist() == [[0, 0], [1, 1], [0, 0], [2, 3], [4, 5]]
    moves = np.arange(1.0, 6.0)[None]
    assert shared_covariance(moves, texts) == pytest.approx(np.array([[2 * 1.0 * 3.0]]))


def differences(texts: np.ndarray, seed: int, effect: float = 0.0) -> list[str]:
    """The verdicts on rows that are alike but for noise, scored on examples with these texts."""
    draw = np.random.default_rng(seed)
    n = len(texts)
    by_text = draw.normal(0, effect, (4, 1, texts.max() + 1))[:, :, texts].sum(-1)  # what a row makes of each text
    right = (0.7 + draw.normal(0, 0.3, n) + by_text + draw.normal(0, 0.4, (4, 3, n)) > 0.5).astype(float)
    scores = right.mean(2)
    key = (("task", "examples"),)
    moves = {
        (row, number): ExampleInfluence(key, (right[row, number] - scores[row, number]) / n, texts)
        for row in range(4)
        for number in range(3)
    }
    return [judged.verdict for judged in judge([c for c in gathered(scores, moves).differences(0) if c is not None])]


@pytest.mark.parametrize(
    ("kind", "effect"), [("constant", 0.0), ("chains", 0.0), ("chains", 0.5), ("triples", 0.0), ("triples", 0.5)]
)
def test_by_simulation_shared_texts_do_not_make_differences(kind: str, effect: float) -> None:
    """Of 150 tables without a difference at most 16 err if the rate is 0.05. With clusters of chains nearly all did."""
    n, draw = 200, np.random.default_rng(1)
    wrong = 0
    for seed in range(150):
        texts = {
            "constant": np.column_stack([np.zeros(n, np.int64), 1 + np.arange(n)]),
            "chains": draw.integers(0, n, (n, 2)),
            "triples": np.column_stack([np.arange(n) // 3, n + np.arange(n)]),
        }[kind]
        wrong += any(verdict != "open" for verdict in differences(texts, seed, effect))
    assert wrong <= 16


def test_one_example_in_sixty_is_no_certainty_because_all_share_a_text() -> None:
    n = 60
    texts = np.column_stack([np.zeros(n, np.int64), 1 + np.arange(n)])
    right = np.tile((np.arange(n) < 40).astype(float), (2, 3, 1))
    right[1, :, 40] = 1.0
    scores = right.mean(2)
    moves = {
        (row, seed): ExampleInfluence((("t", "e"),), (right[row, seed] - scores[row, seed]) / n, texts)
        for row in range(2)
        for seed in range(3)
    }
    (judged,) = judge([gathered(scores, moves).differences(0)[1]])
    assert judged.contrast.delta == pytest.approx(1 / 60)
    assert judged.verdict == "open"
    assert judged.interval[0] < 0 < judged.interval[1]
