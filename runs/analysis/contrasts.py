"""Contrasts: weighted sums of rows, such as "this row less the baseline", with what seeds and examples leave open.

Every seed of every row is scored on the same examples, so a difference has two sources of noise, and both count:
another seed gives another model, another dev set another score. Radiology calls the design MRMC, readers by cases
(Obuchowski & Rockette 1995; Hillis 2007 for the degrees of freedom); here seeds are the readers and examples the cases.

For a contrast with the values d₁ … d_S, one per seed, and their mean δ:

- s² is the sample variance of the d_s. From few seeds it is poor, so it is pooled over the rows: Σ wᵢ² σ², with σ² the
  residual mean square of the layout row + seed. A contrast that is noisier than the pool keeps its own s².
- C is the mean over s ≠ s′ of the covariance of d_s and d_s′ that their common examples cause, at least 0. It follows
  from the examples' influence values (``Metric.influence``), summed within clusters of equal texts first.
- Var δ = s²/S + C, with df · (1 + S·C/s²)² degrees of freedom, df being those of s².

Everything is deterministic: no resampling, the same figures to the last bit every time.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

#: The error rate of a family of comparisons, and the power that the number of seeds is planned for.
ALPHA, POWER = 0.05, 0.8
#: The confidence of the upper limit of s² that the number of seeds is planned with: a pilot of 3 often understates it.
PILOT = 0.8
#: More seeds than this are not proposed.
MOST_SEEDS = 1000
_MOST_DF = 1e6

#: Why rows cannot be compared.
UNLIKE, UNKNOWN = "they were scored on other examples", "their predictions are not in the registry or cannot be read"

Verdict = Literal["better", "worse", "equal", "open"]
Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of one column, row by row and seed by seed.

    ``values`` [R, S] has NaN where a seed is missing. ``shared`` [R, S, R, S] are the covariances between them that
    their common examples cause. ``sets`` [R] numbers the set of examples that a row was scored on, −1 if it is not
    known: only rows of one set can be compared. ``examples`` is the number of clusters of examples of each set.
    """

    values: Values
    shared: Values
    sets: NDArray[np.int64]
    examples: tuple[int, ...]

    @classmethod
    def of(cls, values: Values, moves: Values) -> "Scores":
        """Of rows that were scored on one set of examples: ``moves`` [R, S, N] are influence values divided by n."""
        rows, seeds, examples = moves.shape
        flat = moves.reshape(rows * seeds, examples)
        shared = (flat @ flat.T).reshape(rows, seeds, rows, seeds)
        return cls(values, shared, np.zeros(rows, np.int64), (examples,))

    def contrast(self, weights: Values) -> "Contrast":
        """The contrast Σ wᵢ · rowᵢ over the seeds that all its rows have; the weights [R] sum to 0."""
        rows = np.flatnonzero(weights)
        used = np.asarray(np.isfinite(self.values[rows]).all(0))
        seeds = int(used.sum())
        if not seeds:
            return Contrast(why="they have no finished seed in common")
        w = weights[rows]
        differences = w @ self.values[np.ix_(rows, used)]  # [S]
        delta = float(differences.mean())
        examples = int(self.sets[rows[0]])
        if examples < 0 or (self.sets[rows] != examples).any():
            return Contrast(why=UNLIKE) if (self.sets[rows] >= 0).all() else Contrast(delta, seeds, why=UNKNOWN)
        covariances = np.einsum("i,isjt,j->st", w, self.shared[np.ix_(rows, used, rows, used)], w)  # [S, S]
        pairs = covariances.sum() - np.trace(covariances) if seeds > 1 else covariances[0, 0]
        common = max(float(pairs / max(seeds * (seeds - 1), 1)), 0.0)
        own = float(differences.var(ddof=1)) if seeds > 1 else 0.0
        sigma, freedom = self.noise(used, examples)
        return self._estimated(delta, seeds, examples, own, common, float(w @ w) * sigma, freedom)

    def differences(self, other: int) -> "list[Contrast | None]":
        """Every row less the row ``other``, as :meth:`contrast` gives it, but all at once; None for that row itself.

        A difference needs only sums of covariances over pairs of seeds, which all rows with the same seeds share.
        """
        rows = len(self.values)
        common = np.isfinite(self.values) & np.isfinite(self.values[other])  # [R, S]
        alike = (self.sets == self.sets[other]) & (self.sets >= 0) & common.any(1)
        found: dict[int, Contrast | None] = {other: None}
        for used in np.unique(common[alike], axis=0):
            members = [int(row) for row in np.flatnonzero(alike & (common == used).all(1)) if row != other]
            found |= zip(members, self._differences(members, other, used), strict=True)
        for row in range(rows):
            if row not in found:  # says why there is none
                found[row] = self.contrast(_unit(row, rows) - _unit(other, rows))
        return [found[row] for row in range(rows)]

    def _differences(self, rows: Sequence[int], other: int, used: NDArray[np.bool_]) -> "Iterator[Contrast]":
        """Rows less another, all of them scored on one set of examples with these seeds."""
        seeds, examples = int(used.sum()), int(self.sets[other])
        key = used.tobytes(), examples
        if key not in self._sums:
            shared = self.shared[:, used][:, :, :, used]
            sums = shared.sum((1, 3))  # [R, R]
            if seeds > 1:  # over s ≠ s′
                sums = (sums - np.einsum("isjs->ij", shared)) / (seeds * (seeds - 1))
            self._sums[key] = sums, *self.noise(used, examples)
        sums, sigma, freedom = self._sums[key]
        commons = sums[rows, rows] + sums[other, other] - sums[rows, other] - sums[other, rows]
        differences = self.values[rows][:, used] - self.values[other, used]  # [rows, S]
        own = differences.var(1, ddof=1) if seeds > 1 else np.zeros(len(rows))
        for delta, variance, common in zip(differences.mean(1).tolist(), own.tolist(), commons.tolist(), strict=True):
            yield self._estimated(delta, seeds, examples, variance, max(common, 0.0), 2 * sigma, freedom)

    def _estimated(
        self, delta: float, seeds: int, examples: int, own: float, common: float, pooled: float, freedom: int
    ) -> "Contrast":
        """A contrast, by the larger of the pooled seed variance and its own."""
        if seeds == 1:
            return Contrast(delta, 1, "examples", common=common, freedom=max(self.examples[examples] - 1, 1))
        if delta == own == 0 and common < 1e-18:  # the same on every seed and example, but for rounding
            return Contrast(0.0, seeds, "own", freedom=seeds - 1)
        if own > pooled * (1 + 1e-9) or not freedom:
            return Contrast(delta, seeds, "own", own, common, seeds - 1)
        return Contrast(delta, seeds, "pooled", pooled, common, freedom)

    @cached_property
    def _sums(self) -> dict[tuple[bytes, int], tuple[Values, float, int]]:
        return {}

    def noise(self, used: NDArray[np.bool_], examples: int = 0) -> tuple[float, int]:
        """σ² and its degrees of freedom: the residual mean square of row + seed, over rows that have these seeds."""
        values = self.values[self.sets == examples][:, used]
        whole = values[np.isfinite(values).all(1)]
        rows, seeds = whole.shape
        if rows < 2 or seeds < 2:
            return 0.0, 0
        rest = whole - whole.mean(1, keepdims=True) - whole.mean(0, keepdims=True) + whole.mean()
        freedom = (rows - 1) * (seeds - 1)
        return float((rest**2).sum() / freedom), freedom


def _unit(place: int, size: int) -> Values:
    found = np.zeros(size)
    found[place] = 1.0
    return found


@dataclass(frozen=True)
class Contrast:
    """An estimated contrast: ``delta``, from so many ``seeds``, and its noise.

    ``variance`` says which seed variance ``spread`` (s²) is: ``pooled`` over the rows, the contrast's ``own``, or none
    because there is one seed and only ``examples`` speak. ``common`` is C, ``freedom`` the degrees of freedom of s².
    ``why`` says what makes an interval impossible.
    """

    delta: float = math.nan
    seeds: int = 0
    variance: Literal["pooled", "own", "examples"] | None = None
    spread: float = 0.0
    common: float = 0.0
    freedom: float = 0.0
    why: str = ""

    def __post_init__(self) -> None:
        if not self.why and self.error == 0 and self.delta != 0:
            object.__setattr__(self, "why", "nothing varies, neither over seeds nor over examples")

    @property
    def error(self) -> float:
        """The standard error of ``delta``."""
        return math.sqrt(self.spread / max(self.seeds, 1) + self.common)

    @property
    def total_freedom(self) -> float:
        """The degrees of freedom of the standard error: those of s², more where examples have a part in it."""
        if self.variance == "examples":
            return self.freedom
        if self.spread == 0:
            return _MOST_DF
        return min(self.freedom * (1 + self.seeds * self.common / self.spread) ** 2, _MOST_DF)

    @property
    def identical(self) -> bool:
        """Whether there is no difference at all, on any seed and example."""
        return not self.why and self.delta == 0 and self.error == 0

    @property
    def p(self) -> float:
        """The two-sided p value, uncorrected; NaN where there is none."""
        if self.why:
            return math.nan
        return 1.0 if self.identical else 2 * _t_below(-abs(self.delta) / self.error, self.total_freedom)

    def p_equal(self, margin: float) -> float:
        """The p value of two one-sided tests that the difference is within ± ``margin``, uncorrected."""
        if self.why:
            return math.nan
        if self.error == 0:
            return 0.0
        return _t_below((abs(self.delta) - margin) / self.error, self.total_freedom)

    def interval(self, alpha: float = ALPHA) -> tuple[float, float] | None:
        """The confidence interval of level 1 − ``alpha``."""
        if self.why:
            return None
        half = self.error and _t_quantile(1 - alpha / 2, self.total_freedom) * self.error
        return self.delta - half, self.delta + half

    def seeds_needed(self, alpha: float = ALPHA, margin: float | None = None) -> int | None:
        """How many seeds in all would show a difference of this size; None if no number up to ``MOST_SEEDS`` would.

        The smallest S′ with |δ| ≥ (t₁₋α/₂ + t_power) · √(s²/S′ + C). As S′ grows √C remains (see
        :meth:`smallest`). Of one seed s² is not known, so the answer is 3, to begin with. With a ``margin`` it is
        settled as well by what shows that the two are equal: margin − |δ| ≥ (t₁₋α + t_power) · √(s²/S′ + C).
        """
        gaps = [(abs(self.delta), alpha / 2), ((margin or 0.0) - abs(self.delta), alpha)]
        gaps = [(gap, tail) for gap, tail in gaps if gap > 0]
        if self.why or not gaps:
            return None
        if self.variance == "examples":
            return 3 if any(self._shown(gap, tail, self.common, _MOST_DF) for gap, tail in gaps) else None
        from scipy.special import chdtri

        spread = self.spread * self.freedom / float(chdtri(self.freedom, PILOT))
        for seeds in range(2, MOST_SEEDS + 1):
            freedom = self.freedom * (seeds - 1) / (self.seeds - 1)
            if spread:
                freedom = min(freedom * (1 + seeds * self.common / spread) ** 2, _MOST_DF)
            if any(self._shown(gap, tail, spread / seeds + self.common, freedom) for gap, tail in gaps):
                return seeds
        return None

    def smallest(self, alpha: float = ALPHA) -> float:
        """The smallest difference that these examples could show, with however many seeds: about 2.8 · √C."""
        return (_t_quantile(1 - alpha / 2, _MOST_DF) + _t_quantile(POWER, _MOST_DF)) * math.sqrt(self.common)

    def _shown(self, gap: float, tail: float, variance: float, freedom: float) -> bool:
        """Whether a test at level ``tail`` on one side shows a gap of this size, with a power of ``POWER``."""
        return gap >= (_t_quantile(1 - tail, freedom) + _t_quantile(POWER, freedom)) * math.sqrt(variance)


def _t_below(t: float, freedom: float) -> float:
    """The probability of less than ``t`` in Student's distribution. scipy takes a while to import, so late."""
    from scipy.special import stdtr

    return float(stdtr(freedom, t))


def _t_quantile(share: float, freedom: float) -> float:
    """The value below which this share of Student's distribution is."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, share))


@dataclass(frozen=True)
class Judged:
    """A contrast in its family: the corrected p value, the interval of the level that it was tested at, the verdict."""

    contrast: Contrast
    p: float | None
    interval: tuple[float, float] | None
    verdict: Verdict
    alpha: float
    margin: float | None = None

    @property
    def seeds_needed(self) -> int | None:
        return self.contrast.seeds_needed(self.alpha, self.margin)


def judge(contrasts: Sequence[Contrast], margin: float | Sequence[float | None] | None = None) -> list[Judged]:
    """Judge a family of contrasts together, corrected by Holm's procedure.

    The interval of a contrast has the level of the step at which Holm's procedure tested it: it leaves out 0 just
    where the corrected p value is below 0.05. ``equal`` is only said of what is within ± ``margin`` by two one-sided
    tests, corrected alike; it goes before ``better`` and ``worse``, since less than the margin is of no account, and
    its p value and interval are those of these tests: the interval is within the margin. Each contrast may have a
    margin of its own.
    """
    margins = margin if isinstance(margin, Sequence) else [margin] * len(contrasts)
    ps, levels = holm([each.p for each in contrasts])
    tests = zip(contrasts, margins, strict=True)
    equals, tails = holm([each.p_equal(within) if within else math.nan for each, within in tests])
    judged = []
    for each, p, level, equal, tail, within in zip(contrasts, ps, levels, equals, tails, margins, strict=True):
        verdict: Verdict = "open"
        if equal < ALPHA:
            verdict, p, level = "equal", equal, 2 * tail
        elif p < ALPHA:
            verdict = "better" if each.delta > 0 else "worse"
        judged.append(Judged(each, None if each.why else p, each.interval(level), verdict, level, within))
    return judged


def holm(ps: Sequence[float]) -> tuple[list[float], list[float]]:
    """Holm's corrected p values, and the level at which each hypothesis was tested; NaN is no hypothesis.

    What is not rejected was tested, with all that is not rejected, at the step where the procedure stopped.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])[0]]
    [0.03, 0.06, 0.06]
    """
    order = sorted((each for each in range(len(ps)) if not math.isnan(ps[each])), key=lambda each: ps[each])
    corrected, levels = [math.nan] * len(ps), [ALPHA] * len(ps)
    largest, stopped = 0.0, 0
    for place, each in enumerate(order):
        left = len(order) - place
        largest = max(largest, min(left * ps[each], 1.0))
        stopped = stopped or (left if largest >= ALPHA else 0)
        corrected[each], levels[each] = largest, ALPHA / (stopped or left)
    return corrected, levels
