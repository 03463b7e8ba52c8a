"""How many seeds settle a comparison, and which number is advised."""

import math

import pytest
from contrasted import contrast_of
from scipy import stats

from taskloom.runs.analysis.contrasts import Contrast, Judged, judge
from taskloom.runs.show.findings import AFFORDABLE, advised_seeds, format_seeds, more_seeds, seeds_settle


def shows_equality(contrast: Contrast, margin: float, seeds: int) -> bool:
    """margin − |δ| ≥ (t₁₋α + t_power) · √(s²/S′ + C), with an upper limit of s²."""
    (noise,) = contrast.noises
    spread = noise.spread * noise.freedom / stats.chi2.isf(0.8, noise.freedom)
    freedom = noise.freedom * (seeds - 1) / (contrast.seeds - 1) * (1 + seeds * noise.common / spread) ** 2
    factor = stats.t.ppf(0.95, freedom) + stats.t.ppf(0.8, freedom)
    return bool(margin - abs(contrast.delta) >= factor * math.sqrt(spread / seeds + noise.common))


def test_equality_within_a_margin_settles_a_comparison_too() -> None:
    contrast = contrast_of(0.001, 3, 4e-4, 1e-6)
    needed = contrast.seeds_needed(margin=0.02)
    assert needed is not None
    assert shows_equality(contrast, 0.02, needed)
    assert not shows_equality(contrast, 0.02, needed - 1)
    assert needed < (contrast.seeds_needed() or math.inf), "a difference of 0.001 takes far more"
    assert contrast.seeds_needed(margin=0.0005) == contrast.seeds_needed(), "beyond the margin it can only differ"
    single = contrast_of(0.0, 1, 0.0, 1e-6, 99)
    assert (single.seeds_needed(), single.seeds_needed(margin=0.01)) == (None, 3)
    assert contrast_of(0.001, 1, 0.0, 1e-4, 99).seeds_needed() == 3, "what three seeds leave open, one cannot say"


@pytest.mark.parametrize(
    ("contrast", "words"),
    [
        (contrast_of(0.05, 3, 1e-6, 1e-6), ""),
        (contrast_of(0.01, 3, 4e-4, 1e-6), "more seeds"),
        (contrast_of(0.001, 3, 4e-4, 1e-4), "these examples show no difference below 0.029"),
        (contrast_of(0.0, 3, 0.0), "the same in every example"),
        (Contrast(why="they have no finished seed in common"), "no finished seed"),
        (contrast_of(0.001, 1, 0.0, 1e-4, 99), "2 more seeds"),
        (contrast_of(0.028, 1, 0.0, 2.1e-4, 99), "2 more seeds"),
    ],
)
def test_what_would_settle_it_is_said_in_words(contrast: Contrast, words: str) -> None:
    (judged,) = judge([contrast])
    assert words in format_seeds(judged) if words else format_seeds(judged) == ""


def made(number: int) -> Judged:
    """An open comparison that needs about so many more seeds."""
    spread = next(s / 1e6 for s in range(1, 10**6) if contrast_of(0.02, 3, s / 1e6, 0, 2).seeds_needed() == number + 3)
    return Judged(contrast_of(0.02, 3, spread, 0, 2), 0.5, (-1, 1), "open", 0.05)


def test_the_advice_is_what_settles_all_that_few_seeds_settle() -> None:
    few, some, many = made(4), made(12), made(100)
    assert [more_seeds(each) for each in (few, some, many)] == [4, 12, 100]
    assert 12 <= AFFORDABLE < 100
    assert advised_seeds([few, some, many]) == 12
    assert advised_seeds([many]) == 100, "if nothing is settled with fewer"
    assert advised_seeds([]) == 0
    assert seeds_settle([few, some, many], 12) == "would settle, with a power of 80 % each, 2 of 3 open comparisons"
