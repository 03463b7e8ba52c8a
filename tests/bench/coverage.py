"""How often the intervals are right, how often a table errs, and what the rule finds: by simulation.

    python tests/bench/coverage.py [--tables 1000] [--seeds 2 3 5]

Tables of rows that differ only in noise are drawn from one latent model: labels y, a difficulty per example that all
rows share, one that the seeds of a row share, a skill per row and seed, and noise. Every table is judged by
`taskloom.runs.analysis.contrasts`, as `taskloom table` judges it. Printed are, over all rows, the coverage of 95 %
intervals (not corrected), the worst row's, the family-wise error (the share of tables with any wrong verdict), and the
power to find one row that is better, beside that of a paired t test with Holm's correction. In some settings rows are
twins of the baseline, models that hardly differ seed by seed: how often one is called equal within .02 is printed, too.

The expected difference of two rows is 0 where they have the same noise; where not, a nonlinear metric moves it a
little, so it is taken from the mean over all tables.
"""

import argparse
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from taskloom.core import Metric
from taskloom.plugins.metrics.accuracy import Accuracy
from taskloom.plugins.metrics.macro_f1 import MacroF1
from taskloom.plugins.metrics.pearson import Pearson
from taskloom.plugins.metrics.spearman import Spearman
from taskloom.runs.analysis.contrasts import ALPHA, Contrast, Scores, holm, judge

METRICS: tuple[Metric, ...] = (Accuracy(), MacroF1(), Pearson(), Spearman())
UNEQUAL = (0.12, 0.12, 0.04, 0.12, 0.3, 0.12)


@dataclass(frozen=True)
class Setting:
    """How a table is drawn: ``noise`` is the sd of each row's skill over seeds (in turn), ``paired`` that of a seed."""

    name: str
    rows: int = 7
    examples: int = 400
    noise: tuple[float, ...] = (0.12,)
    paired: float = 0.0
    heavy: bool = False  # skill from a t distribution with 3 degrees of freedom
    twins: tuple[int, ...] = ()  # rows that are nearly the first one, seed by seed and example by example

    @property
    def unbiased(self) -> NDArray[np.bool_]:
        """Which differences to the first row are 0 on average, whatever the metric: those of the same noise."""
        same: NDArray[np.bool_] = np.resize(self.noise, self.rows) == self.noise[0]
        same[list(self.twins)] = True
        return same[1:]


SETTINGS = (
    Setting("equal noise"),
    Setting("unequal noise", noise=UNEQUAL),
    Setting("paired seeds", noise=(0.08,), paired=0.2),
    Setting("21 rows, unequal", rows=21, examples=600, noise=UNEQUAL),
    Setting("few examples", examples=150),
    Setting("many examples", examples=2000, noise=(0.2,)),
    Setting("heavy tails", heavy=True),
    Setting("two twins", twins=(2, 3)),
    Setting("4 rows, one twin", rows=4, twins=(2,)),
    Setting("twins, collapse", noise=(0.12, 0.12, 0.12, 0.12, 0.12, 0.5, 0.5), twins=(2, 3)),
    Setting("noisy baseline", noise=(0.35, *[0.12] * 6)),
    Setting("seeds collapse", noise=(0.12, 0.12, 0.12, 0.12, 0.5)),  # one row's noise is as large as its skill: skewed
)
#: Settings that are known to be hard: a row whose noise is as large as its skill, and a baseline noisier than all rows.
HARD = ("twins, collapse", "noisy baseline", "seeds collapse")
#: Within it twins are equal.
MARGIN = 0.02


def draw_table(metric: Metric, setting: Setting, seeds: int, draw: np.random.Generator, gain: float = 0.0) -> Scores:
    """A table; the second row's mean skill is larger by ``gain``."""
    rows, n = setting.rows, setting.examples
    y, hard = draw.normal(0, 1, n), draw.normal(0, 0.5, n)
    noise = np.resize(setting.noise, rows)[:, None]
    skill = draw.standard_t(3, (rows, seeds)) / np.sqrt(3) if setting.heavy else draw.normal(0, 1, (rows, seeds))
    skill = 1 + draw.normal(0, 1, seeds) * setting.paired + noise * skill
    skill[1] += gain
    own = draw.normal(0, 0.4, (rows, 1, n))
    x = skill[:, :, None] * y + hard + own + draw.normal(0, 0.6, (rows, seeds, n))
    for twin in setting.twins:
        x[twin] = x[0] + draw.normal(0, 0.004, (seeds, 1)) * y + draw.normal(0, 0.02, (seeds, n))
    if metric.reads == "classes":
        x, y = np.digitize(x, [-0.5, 0.5]).astype(float), np.digitize(y, [-0.43, 0.43]).astype(float)
    values = np.array([[metric(one, y) for one in row] for row in x])
    moves = np.array([[metric.influence(one, y) / n for one in row] for row in x])
    return Scores.of(values, moves)


def differences(scores: Scores) -> list[Contrast]:
    """Every row less the first."""
    rows = len(scores.values)
    return [scores.contrast(np.eye(rows)[row] - np.eye(rows)[0]) for row in range(1, rows)]


@dataclass(frozen=True)
class Errors:
    """Over many tables: mean coverage, that of the worst row, the family-wise error, and how often twins are equal."""

    coverage: float
    worst: float
    family_wise: float
    equal: float


def errors(metric: Metric, setting: Setting, seeds: int, tables: int, seed: int = 0) -> Errors:
    """How often the rule errs, over so many tables."""
    draw = np.random.default_rng([seed, seeds])
    drawn = [differences(draw_table(metric, setting, seeds, draw)) for _ in range(tables)]
    expected = np.mean([[contrast.delta for contrast in table] for table in drawn], axis=0)
    expected[setting.unbiased] = 0.0
    covered, wrong, equal = np.zeros(setting.rows - 1), 0, 0
    for table in drawn:
        shifted = [
            replace(contrast, delta=contrast.delta - truth) for contrast, truth in zip(table, expected, strict=True)
        ]
        intervals = [contrast.interval() for contrast in shifted]
        covered += [interval is not None and interval[0] <= 0 <= interval[1] for interval in intervals]
        wrong += any(judged.verdict != "open" for judged in judge(shifted))
        equal += any(judge([table[twin - 1]], MARGIN)[0].verdict == "equal" for twin in setting.twins[:1])
    shares = covered / tables
    return Errors(shares.mean(), shares.min(), wrong / tables, equal / tables if setting.twins else np.nan)


def power(metric: Metric, setting: Setting, seeds: int, tables: int, gain: float = 0.5) -> tuple[float, float]:
    """How often the one row that is better is found: by our rule, and by paired t tests with Holm's correction."""
    draw = np.random.default_rng([1, seeds])
    found = np.zeros(2)
    for _ in range(tables):
        scores = draw_table(metric, setting, seeds, draw, gain)
        with warnings.catch_warnings(action="ignore"):  # twins are nearly the same
            t = stats.ttest_rel(scores.values[1:], scores.values[:1], axis=1).pvalue
        found += judge(differences(scores))[0].verdict == "better", holm(t.tolist())[0][0] < ALPHA
    return found[0] / tables, found[1] / tables


def lines(tables: int, seeds: list[int]) -> Iterator[str]:
    yield f"{'metric':9} seeds {'setting':17} coverage  worst row  family-wise error  power  t + Holm  twins equal"
    for metric in METRICS:
        for count in seeds:
            for setting in SETTINGS:
                rates = errors(metric, setting, count, tables)
                ours, plain = power(metric, setting, count, max(tables // 4, 1))
                equal = f"{rates.equal:.2f}" if setting.twins else ""
                yield (
                    f"{metric.name:9} {count:5} {setting.name:17} {rates.coverage:8.3f}  {rates.worst:9.3f}  "
                    f"{rates.family_wise:17.3f}  {ours:5.2f}  {plain:8.2f}  {equal:>11}"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=1000, help="tables drawn per setting")
    parser.add_argument("--seeds", type=int, nargs="+", default=[2, 3, 5])
    given = parser.parse_args()
    for line in lines(given.tables, given.seeds):
        print(line, flush=True)


if __name__ == "__main__":
    main()
