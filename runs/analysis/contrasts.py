"""Contrasts: weighted sums of rows, such as "this row less the baseline", with their noise from seeds and examples.

Every seed of every row is scored on the same examples, so a difference has two sources of noise, and both count:
another seed gives another model, another dev set another score. Radiology calls the design MRMC, readers by cases
(Obuchowski & Rockette 1995; Hillis 2007 for the degrees of freedom); here seeds are the readers and examples the cases.

For a contrast with the values d₁ … d_S, one per seed, and their mean δ, two intervals are computed, and what both allow
is the answer (Bonferroni: .8 and .2 of the level, valid however they depend on each other):

- *pooled*: the seed variance is v = Σ wᵢ² σ̃ᵢ², at least that of the d_s. σ̃ᵢ² is the row's own variance (Grubbs 1948)
  shrunk to the pool of all rows with the weight of two degrees of freedom; freedom by Satterthwaite's formula.
- *own*: the seed variance is s², that of the d_s, at least the example noise that differs from seed to seed, with
  S − 1 degrees of freedom.

Both add C, the mean over s ≠ s′ of the covariance of d_s and d_s′ that their common examples cause, at least 0. It
follows from the examples' influence values (``Metric.influence``). Pairs of examples that share a text count as
dependent (``influence.py``), and C is never less than for independent examples.

Everything is deterministic: no resampling, the same figures to the last bit every time.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

#: The error rate of a family of comparisons, and the power that the number of seeds is planned for.
ALPHA, POWER = 0.05, 0.8
#: The confidence of the upper limit of s² that the number of seeds is planned with: a pilot of 3 often understates it.
PILOT = 0.8
#: More seeds than this are not proposed.
MOST_SEEDS = 1000
#: The degrees of freedom that the pool counts for when a row's variance is shrunk to it.
PRIOR = 2
#: The shares of the level of the two intervals of a contrast.
POOLED_SHARE, OWN_SHARE = 0.8, 0.2
_MOST_DF = 1e6
_ROUNDING = 1e-18  # a variance below it is 0

#: Why rows cannot be compared.
UNLIKE, UNKNOWN = "they were scored on other examples", "their predictions are not in the registry or cannot be read"
ONE_RUN = "both are one and the same run here"

Verdict = Literal["better", "worse", "equal", "open", "one seed", "untrained"]
Values = NDArray[np.float64]


class _SeedNoise(NamedTuple):
    """The shrunk variance of each row with the same seeds, [R], NaN for others; the pool's degrees of freedom."""

    variances: Values
    freedom: int


class _ExampleNoise(NamedTuple):
    """Mean covariances caused by common examples: between two different seeds, and within one seed."""

    between: Values
    within: Values


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of one column, row by row and seed by seed.

    ``values`` [R, S] has NaN where a seed is missing. ``independent`` [R, S, R, S] are the covariances between them
    that their common examples cause if these are independent, ``dyadic`` the same if those that share a text are not;
    None where no two share one. ``sets`` [R] numbers the set of examples that a row was scored on, −1 if it is not
    known: only rows of one set can be compared. ``examples`` is the number of examples of each set. ``runs`` [R] is the
    first row that is the same run under another label, ``untrained`` [R] marks rows that have learned nothing, and
    ``width`` is the largest difference that the metric allows.
    """

    values: Values
    independent: Values
    sets: NDArray[np.int64]
    examples: tuple[int, ...]
    dyadic: Values | None = None
    runs: NDArray[np.int64] | None = None
    untrained: NDArray[np.bool_] | None = None
    width: float = math.inf

    @classmethod
    def of(cls, values: Values, influence: Values) -> "Scores":
        """Scores of rows that share one set of examples: ``influence`` [R, S, N] are influence values divided by n."""
        rows, seeds, examples = influence.shape
        flat = influence.reshape(rows * seeds, examples)
        independent = (flat @ flat.T).reshape(rows, seeds, rows, seeds)
        return cls(values, independent, np.zeros(rows, np.int64), (examples,))

    def contrast(self, weights: Values) -> "Contrast":
        """The contrast Σ wᵢ · rowᵢ over the seeds that all its rows have; the weights [R] sum to 0."""
        by_run = np.zeros(len(weights))
        np.add.at(by_run, self._runs, weights)  # a run counts once, whatever its labels
        rows = np.flatnonzero(np.abs(by_run) > 1e-12)
        if not len(rows):
            return Contrast(why=ONE_RUN)
        used = np.asarray(np.isfinite(self.values[rows]).all(0))
        seeds = int(used.sum())
        if not seeds:
            return Contrast(why="they have no finished seed in common")
        w = by_run[rows]
        differences = w @ self.values[np.ix_(rows, used)]  # [S]
        examples = int(self.sets[rows[0]])
        if examples < 0 or (self.sets[rows] != examples).any():
            delta = float(differences.mean())
            return Contrast(why=UNLIKE) if (self.sets[rows] >= 0).all() else Contrast(delta, seeds, why=UNKNOWN)
        kinds = []
        for covariances in self._covariances:
            between, within = _example_noise(covariances[np.ix_(rows, used, rows, used)])
            kinds.append((float(w @ between @ w), float(w @ within @ w)))
        return self._estimated(differences, examples, kinds, rows, w, self._seed_noise(used, examples))

    def differences(self, other: int) -> "list[Contrast | None]":
        """Every row less the row ``other``, as :meth:`contrast` gives it, but all at once; None for that row itself.

        A difference needs only sums of covariances over pairs of seeds, which all rows with the same seeds share.
        """
        rows = len(self.values)
        common = np.isfinite(self.values) & np.isfinite(self.values[other])  # [R, S]
        alike = (self.sets == self.sets[other]) & (self.sets >= 0) & common.any(1) & (self._runs != self._runs[other])
        contrasts: dict[int, Contrast | None] = {other: None}
        for used in np.unique(common[alike], axis=0):
            members = np.flatnonzero(alike & (common == used).all(1))
            contrasts |= zip(members.tolist(), self._differences(members, other, used), strict=True)
        for row in range(rows):
            if row not in contrasts:  # says why there is none
                contrasts[row] = self.contrast(_unit(row, rows) - _unit(other, rows))
        return [contrasts[row] for row in range(rows)]

    def _differences(self, rows: NDArray[np.int64], other: int, used: NDArray[np.bool_]) -> "Iterator[Contrast]":
        """Rows less the row ``other``, all scored on one set of examples with these seeds."""
        key = used.tobytes()
        if key not in self._noises:
            self._noises[key] = [
                _example_noise(covariances[:, used][:, :, :, used]) for covariances in self._covariances
            ]
        first, base = self._runs[rows], self._runs[other]
        kinds = [
            [(means[first, first] + means[base, base] - means[first, base] - means[base, first]) for means in noise]
            for noise in self._noises[key]
        ]
        seed_noise = self._seed_noise(used, examples := int(self.sets[other]))
        values, weights = self.values[rows][:, used] - self.values[other, used], np.array([1.0, -1.0])
        for number, row in enumerate(first):
            parts = [(float(between[number]), float(within[number])) for between, within in kinds]
            yield self._estimated(values[number], examples, parts, np.array([row, base]), weights, seed_noise)

    def _estimated(
        self,
        differences: Values,
        examples: int,
        kinds: Sequence[tuple[float, float]],
        rows: NDArray[np.int64],
        weights: Values,
        seed_noise: _SeedNoise,
    ) -> "Contrast":
        """Estimate a contrast of rows with these weights from its value for every seed.

        ``kinds`` are the covariances (between two seeds, within one) if examples are independent, and if those that
        share a text are not; the larger counts.
        """
        seeds, delta = len(differences), float(differences.mean())
        common, within = max((max(between if seeds > 1 else within, 0.0), within) for between, within in kinds)
        if seeds == 1:
            noises = [Noise("examples", 1.0, 0.0, max(self.examples[examples] - 1, 1), common, 1)]
        else:
            own = float(differences.var(ddof=1))
            parts = weights**2 * seed_noise.variances[rows]
            pooled, squares = float(parts.sum()), float((parts**2).sum())
            freedom = min(pooled**2 * (seeds - 1 + PRIOR) / squares if squares else _MOST_DF, seed_noise.freedom)
            noises = [
                Noise("pooled", POOLED_SHARE, max(pooled, own), freedom, common, seeds),
                Noise("own", OWN_SHARE, max(own, within - common), seeds - 1, common, seeds),
            ]
            if delta == 0 and noises[1].error ** 2 < _ROUNDING:  # the same on every seed and example, but for rounding
                noises = [Noise("own", OWN_SHARE, 0.0, seeds - 1, 0.0, seeds)]
        untrained = [] if self.untrained is None else self.untrained[rows].tolist()
        return Contrast(
            delta,
            seeds,
            tuple(noise for noise in noises if noise.error or delta == 0),
            self.width * float(np.abs(weights).sum()) / 2,
            "all" if untrained and all(untrained) else "some" if any(untrained) else "",
        )

    @property
    def _covariances(self) -> list[Values]:
        return [self.independent, *([] if self.dyadic is None else [self.dyadic])]

    @cached_property
    def _runs(self) -> NDArray[np.int64]:
        return np.arange(len(self.values)) if self.runs is None else self.runs

    @cached_property
    def _noises(self) -> dict[bytes, list[_ExampleNoise]]:
        return {}

    @cached_property
    def _seed_noises(self) -> dict[tuple[bytes, int], _SeedNoise]:
        return {}

    def _seed_noise(self, used: NDArray[np.bool_], examples: int) -> _SeedNoise:
        """The variance over seeds of every row with these seeds and examples, shrunk to their pool."""
        key = used.tobytes(), examples
        if key not in self._seed_noises:
            members = (self.sets == examples) & np.isfinite(self.values[:, used]).all(1)
            members &= self._runs == np.arange(len(self.values))  # a run counts once
            variances = np.full(len(self.values), np.nan)
            variances[members], freedom = shrunk_variances(self.values[members][:, used])
            self._seed_noises[key] = _SeedNoise(variances, freedom)
        return self._seed_noises[key]


def shrunk_variances(values: Values) -> tuple[Values, int]:
    """Each row's variance over seeds, shrunk to the pool, [R]; and the pool's degrees of freedom, (R − 1)(S − 1).

    With row and seed means taken out of the scores [R, S], Vᵢ = Σ_s r²ᵢₛ / (S − 1) has the expectation
    σᵢ²(1 − 2/R) + Σσ²/R², which is solved for σᵢ² (Grubbs 1948). The pool is the residual mean square σ², and
    σ̃ᵢ² = (2σ² + (S − 1) σ̂ᵢ²) / (S + 1). Fewer than three rows have the pool alone.
    """
    rows, seeds = values.shape
    freedom = (rows - 1) * (seeds - 1)
    if freedom < 1:
        return np.zeros(rows), 0
    rest = values - values.mean(1, keepdims=True) - values.mean(0, keepdims=True) + values.mean()
    pool = float((rest**2).sum() / freedom)
    if rows < 3:
        return np.full(rows, pool), freedom
    own = (rest**2).sum(1) / (seeds - 1)
    total = own.sum() * rows / (rows - 1)
    own = np.maximum((own - total / rows**2) * rows / (rows - 2), 0.0)
    shrunk: Values = (PRIOR * pool + (seeds - 1) * own) / (PRIOR + seeds - 1)
    return shrunk, freedom


def _example_noise(covariances: Values) -> _ExampleNoise:
    """Of covariances [R, S, R, S] the means over s ≠ s′ and over s = s′, [R, R] each; of one seed both are the same."""
    seeds = covariances.shape[1]
    within = np.einsum("isjs->ij", covariances)
    between = (covariances.sum((1, 3)) - within) / (seeds * (seeds - 1)) if seeds > 1 else within
    return _ExampleNoise(between, within / seeds)


def _unit(index: int, size: int) -> Values:
    weights = np.zeros(size)
    weights[index] = 1.0
    return weights


@dataclass(frozen=True)
class Noise:
    """An estimate of the noise of a contrast, which may use a ``share`` of the level.

    ``spread`` is the seed variance s² with its degrees of ``freedom``, ``common`` is C. ``kind`` says which variance it
    is: ``pooled``, the contrast's ``own``, or none with one seed, where all noise is that of ``examples``.
    """

    kind: Literal["pooled", "own", "examples"]
    share: float
    spread: float
    freedom: float
    common: float
    seeds: int

    @property
    def error(self) -> float:
        """The standard error, √(s²/S + C)."""
        return math.sqrt(self.spread / self.seeds + self.common)

    @property
    def total_freedom(self) -> float:
        """The degrees of freedom of the standard error; example noise adds to those of a pooled variance.

        It adds none to a contrast's own s², which may be small by chance and would then pass for certain.
        """
        if self.kind != "pooled":
            return self.freedom
        factor = (1 + self.seeds * self.common / self.spread) ** 2 if self.spread else math.inf
        return min(self.freedom * factor, _MOST_DF)

    def half(self, alpha: float) -> float:
        """Half the width of the interval at its share of the level."""
        return self.error and _t_quantile(1 - self.share * alpha / 2, self.total_freedom) * self.error

    def p_below(self, distance: float) -> float:
        """The one-sided p value, at its share of the level, of an estimate this ``distance`` beyond the bound."""
        if not self.error:
            return 0.0 if distance > 0 else 1.0
        return min(_t_below(-distance / self.error, self.total_freedom) / self.share, 1.0)

    def shows(self, gap: float, tail: float) -> bool:
        """Whether a one-sided test at level ``tail`` detects a gap of this size with power ``POWER``."""
        quantiles = (_t_quantile(share, self.total_freedom) for share in (1 - self.share * tail, POWER))
        return gap >= sum(quantiles) * self.error

    def with_seeds(self, seeds: int) -> "Noise":
        """The noise expected with this many seeds, from an upper limit of s², which few seeds often understate."""
        from scipy.special import chdtri

        spread = self.spread * self.freedom / float(chdtri(self.freedom, PILOT))
        return replace(self, spread=spread, freedom=self.freedom * (seeds - 1) / (self.seeds - 1), seeds=seeds)


@dataclass(frozen=True)
class Contrast:
    """An estimated contrast: ``delta``, from this many ``seeds``, and its ``noises``, of which the least decides.

    The metric allows no difference beyond ± ``limit``. ``untrained`` says whether all or some of its rows have learned
    nothing. ``why`` says what makes an interval impossible.
    """

    delta: float = math.nan
    seeds: int = 0
    noises: tuple[Noise, ...] = ()
    limit: float = math.inf
    untrained: Literal["", "some", "all"] = ""
    why: str = ""

    def __post_init__(self) -> None:
        if not self.why and not self.noises and not math.isnan(self.delta) and self.seeds:
            object.__setattr__(self, "why", "nothing varies, neither over seeds nor over examples")

    def variance(self, alpha: float = ALPHA) -> Literal["pooled", "own", "examples"] | None:
        """Which estimate of the noise decides at a level: the one with the narrower interval."""
        return None if self.why else self._least(alpha).kind

    def error(self, alpha: float = ALPHA) -> float:
        """The standard error of ``delta`` by the deciding estimate."""
        return self._least(alpha).error

    def _least(self, alpha: float) -> Noise:
        return min(self.noises, key=lambda noise: noise.half(alpha))

    @property
    def identical(self) -> bool:
        """Whether there is no difference on any seed or example."""
        return not self.why and self.delta == 0 and all(noise.error == 0 for noise in self.noises)

    @property
    def p(self) -> float:
        """The two-sided p value, uncorrected; NaN where there is none."""
        if self.why:
            return math.nan
        return min(1.0, *(2 * noise.p_below(abs(self.delta)) for noise in self.noises))

    def p_equal(self, margin: float) -> float:
        """The p value of two one-sided tests that the difference is within ± ``margin``, uncorrected."""
        if self.why:
            return math.nan
        return min(noise.p_below(margin - abs(self.delta)) for noise in self.noises)

    def interval(self, alpha: float = ALPHA) -> tuple[float, float] | None:
        """The confidence interval of level 1 − ``alpha``: what all estimates of the noise and the metric allow."""
        if self.why:
            return None
        half = self._least(alpha).half(alpha)
        return max(self.delta - half, -self.limit), min(self.delta + half, self.limit)

    def seeds_needed(self, alpha: float = ALPHA, margin: float | None = None) -> int | None:
        """How many seeds in all would show a difference of this size; None if no number up to ``MOST_SEEDS`` would.

        The smallest S′ with |δ| ≥ (t₁₋α/₂ + t_power) · √(s²/S′ + C), by either estimate at its share of the level. As
        S′ grows √C remains (see :meth:`smallest`). With one seed s² is unknown, so the answer is 3, to begin with.
        With a ``margin``, showing that the two are equal settles it as well: margin − |δ| ≥
        (t₁₋α + t_power) · √(s²/S′ + C).
        """
        gaps = [(abs(self.delta), alpha / 2), ((margin or 0.0) - abs(self.delta), alpha)]
        gaps = [(gap, tail) for gap, tail in gaps if gap > 0]
        if self.why or not gaps:
            return None
        if self.seeds == 1:
            return 3
        for seeds in range(2, MOST_SEEDS + 1):
            planned = [noise.with_seeds(seeds) for noise in self.noises]
            if any(noise.shows(gap, tail) for noise in planned for gap, tail in gaps):
                return seeds
        return None

    def smallest(self, alpha: float = ALPHA) -> float:
        """The smallest difference that these examples can show with any number of seeds: about 2.8 · √C."""
        quantiles = _t_quantile(1 - POOLED_SHARE * alpha / 2, _MOST_DF) + _t_quantile(POWER, _MOST_DF)
        return quantiles * math.sqrt(self.noises[0].common)


def _t_below(t: float, freedom: float) -> float:
    """The cumulative probability of ``t`` in Student's distribution. scipy is slow to import, hence here."""
    from scipy.special import stdtr

    return float(stdtr(freedom, t))


def _t_quantile(share: float, freedom: float) -> float:
    """The quantile of Student's distribution at this probability."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, share))


@dataclass(frozen=True)
class Judged:
    """A contrast in its family: the corrected p value, the interval at the level that it was tested at, the verdict.

    ``p_equal`` is the corrected p value of the tests that the difference is within ± ``margin``, None without one.
    ``family`` is the number of comparisons that it was corrected for.
    """

    contrast: Contrast
    p: float | None
    interval: tuple[float, float] | None
    verdict: Verdict
    alpha: float
    margin: float | None = None
    p_equal: float | None = None
    family: int = 1

    @property
    def variance(self) -> Literal["pooled", "own", "examples"] | None:
        """Which estimate of the noise decided."""
        return self.contrast.variance(self.alpha)

    @property
    def seeds_needed(self) -> int | None:
        return self.contrast.seeds_needed(self.alpha, self.margin)


class Test(Protocol):
    """A test of a difference; a contrast is one."""

    @property
    def p(self) -> float: ...

    def interval(self, alpha: float) -> tuple[float, float] | None: ...


def judge(
    contrasts: Sequence[Contrast],
    margin: float | Sequence[float | None] | None = None,
    tests: Sequence[Test] | None = None,
) -> list[Judged]:
    """Judge a family of contrasts together, corrected by Holm's procedure; ``tests`` are theirs, or exact ones.

    p and interval are those of the difference: the interval has the level of the step at which Holm's procedure tested
    it, so it excludes 0 exactly where the corrected p value is below 0.05. The verdict is ``equal`` if two one-sided
    tests, corrected alike, show the difference to be within ± ``margin``; it precedes ``better`` and ``worse``, since a
    difference below the margin does not matter. Each contrast may have a margin of its own. One seed compares two
    models, not their methods, so its verdict is ``one seed``. The verdict is ``untrained`` where all rows of a contrast
    have learned nothing, and where such a row would be called equal.
    """
    margins = margin if isinstance(margin, Sequence) else [margin] * len(contrasts)
    tests = contrasts if tests is None else tests
    ps, levels = holm([test.p for test in tests])
    pairs = zip(contrasts, margins, strict=True)
    equals, _ = holm([contrast.p_equal(within) if within else math.nan for contrast, within in pairs])
    family = sum(not contrast.why for contrast in contrasts)
    return [
        Judged(
            contrast,
            None if math.isnan(p) else p,
            test.interval(level),
            _verdict(contrast, p, p_equal),
            level,
            within,
            None if math.isnan(p_equal) else p_equal,
            family,
        )
        for contrast, test, p, level, p_equal, within in zip(contrasts, tests, ps, levels, equals, margins, strict=True)
    ]


def _verdict(contrast: Contrast, p: float, p_equal: float) -> Verdict:
    verdict: Verdict = "open"
    if contrast.why:
        return verdict
    if contrast.seeds == 1:
        verdict = "one seed"
    elif p_equal < ALPHA:
        verdict = "equal"
    elif p < ALPHA:
        verdict = "better" if contrast.delta > 0 else "worse"
    if contrast.untrained == "all" or (contrast.untrained and verdict == "equal"):
        verdict = "untrained"
    return verdict


def holm(ps: Sequence[float]) -> tuple[list[float], list[float]]:
    """Holm's corrected p values, and the level at which each hypothesis was tested; NaN stands for no hypothesis.

    Hypotheses that are not rejected were all tested at the step where the procedure stopped.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])[0]]
    [0.03, 0.06, 0.06]
    """
    order = sorted((index for index in range(len(ps)) if not math.isnan(ps[index])), key=lambda index: ps[index])
    corrected, levels = [math.nan] * len(ps), [ALPHA] * len(ps)
    largest, stopped = 0.0, 0
    for step, index in enumerate(order):
        left = len(order) - step
        largest = max(largest, min(left * ps[index], 1.0))
        stopped = stopped or (left if largest >= ALPHA else 0)
        corrected[index], levels[index] = largest, ALPHA / (stopped or left)
    return corrected, levels
