"""How often the intervals are right, how often a table errs, and what the rule finds: by simulation.

    python tests/bench/coverage.py [--tables 1000] [--seeds 2 3 5]

Tables of rows that differ only in noise are drawn from one latent model: labels y, a difficulty per example that all
rows share, one that the seeds of a row share, a skill per row and seed, and noise. Every table is judged by
`taskloom.runs.analysis.contrasts`, as `taskloom table` judges it. Printed are, over all rows, the coverage of 95 %
intervals (not corrected), the worst row's, the family-wise error (the share of tables with any wrong verdict), and the
power to find one row that is better, beside that of a paired t test with Holm's correction.

The expected difference of two rows is 0 where they have the same noise; where not, a nonlinear metric moves it a
little, so it is taken from the mean over all tables.
"""

import argparse
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


SETTINGS = (
    Setting("equal noise"),
    Setting("unequal noise", noise=UNEQUAL),
    Setting("paired seeds", noise=(0.08,), paired=0.2),
    Setting("21 rows, unequal", rows=21, examples=600, noise=UNEQUAL),
    Setting("few examples", examples=150),
    Setting("many examples", examples=2000, noise=(0.2,)),
    Setting("heavy tails", heavy=True),
    Setting("seeds collapse", noise=(0.12, 0.12, 0.12, 0.12, 0.5)),  # one row's noise is as large as its skill: skewed
)


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
    if metric.reads == "classes":
        x, y = np.digitize(x, [-0.5, 0.5]).astype(float), np.digitize(y, [-0.43, 0.43]).astype(float)
    values = np.array([[metric(one, y) for one in row] for row in x])
    moves = np.array([[metric.influence(one, y) / n for one in row] for row in x])
    return Scores.of(values, moves)


def differences(scores: Scores) -> list[Contrast]:
    """Every row less the first."""
    rows = len(scores.values)
    return [scores.contrast(np.eye(rows)[row] - np.eye(rows)[0]) for row in range(1, rows)]


def errors(
    metric: Metric, setting: Setting, seeds: int, tables: int, seed: int = 0
) -> tuple[float, float, float, NDArray[np.float64]]:
    """Mean coverage, that of the worst row, and the family-wise error, over so many tables; and every coverage."""
    draw = np.random.default_rng([seed, seeds])
    drawn = [differences(draw_table(metric, setting, seeds, draw)) for _ in range(tables)]
    expected = np.mean([[each.delta for each in table] for table in drawn], axis=0)
    alike = np.resize(setting.noise, setting.rows)[1:] == setting.noise[0]
    expected[alike] = 0.0
    covered, wrong = np.zeros(setting.rows - 1), 0
    for table in drawn:
        shifted = [replace(each, delta=each.delta - truth) for each, truth in zip(table, expected, strict=True)]
        intervals = [each.interval() for each in shifted]
        covered += [interval is not None and interval[0] <= 0 <= interval[1] for interval in intervals]
        wrong += any(each.verdict != "open" for each in judge(shifted))
    return covered.mean() / tables, covered.min() / tables, wrong / tables, covered / tables


def power(metric: Metric, setting: Setting, seeds: int, tables: int, gain: float = 0.5) -> tuple[float, float]:
    """How often the one row that is better is found: by our rule, and by paired t tests with Holm's correction."""
    draw = np.random.default_rng([1, seeds])
    found = np.zeros(2)
    for _ in range(tables):
        scores = draw_table(metric, setting, seeds, draw, gain)
        t = stats.ttest_rel(scores.values[1:], scores.values[:1], axis=1).pvalue
        found += judge(differences(scores))[0].verdict == "better", holm(t.tolist())[0][0] < ALPHA
    return found[0] / tables, found[1] / tables


def lines(tables: int, seeds: list[int]) -> Iterator[str]:
    yield f"{'metric':9} seeds {'setting':17} coverage  worst row  family-wise error  power  t + Holm"
    for metric in METRICS:
        for count in seeds:
            for setting in SETTINGS:
                mean, worst, wrong, _ = errors(metric, setting, count, tables)
                ours, plain = power(metric, setting, count, max(tables // 4, 1))
                yield (
                    f"{metric.name:9} {count:5} {setting.name:17} {mean:8.3f}  {worst:9.3f}  {wrong:17.3f}  {ours:5.2f}"
                    f"  {plain:8.2f}"
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
