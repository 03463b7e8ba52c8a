"""How often nine copies of one method are told apart, by how their settings were chosen: by simulation.

    python tests/bench/tuning.py [--tables 1000] [--trials 4 12 30] [--seeds 3 5]

Every row of a table is the same method, so each "better" or "worse" is an error. The rows are tuned with the same
trials of one setting (the learning rate, on a scale from 0 to 1) and then run with the seeds. A score has the noise of
its training seed, that of the scored examples, and a part that depends on the setting: its mean has a maximum in the
middle of the range, flat or peaked, and each setting finds other examples hard. Tables are judged by
`taskloom.runs.analysis.contrasts`, as `taskloom table` judges them. Four ways to choose:

- *first row untuned*: the usual flaw: the others are tuned on dev, the first row has the first trial's setting.
- *on dev*: a row's best trial by its dev score; the trial stays in the table as the row's first seed.
- *per row*: a row's best trial by its score on examples held out from training; all seeds have its setting.
- *per seed*: the same, but each seed of a row has trials with seeds of their own, and its own choice.

Printed is the family-wise error, the share of tables with any wrong verdict, at a level of .05; and for *on dev* and
*per seed* by how much the table's scores exceed those of the same models on fresh examples.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.stats import qmc

from taskloom.plugins.metrics.accuracy import Accuracy
from taskloom.runs.analysis.contrasts import Scores, judge

Way = Literal["first row untuned", "on dev", "per row", "per seed"]
ON_DEV = ("first row untuned", "on dev")
Values = NDArray[np.float64]

ROWS, DEV, HELD_OUT = 9, 400, 300
#: How much skill (1 at best) is lost at either end of the range.
RESPONSES = {"flat": 0.1, "peaked": 1.0}
#: Standard deviations: of skill over seeds, of an example's difficulty for all, for one setting, and for one model.
SEED, SHARED, OF_SETTING, OF_MODEL = 0.12, 0.5, 0.4, 0.6


@dataclass(frozen=True)
class Split:
    """Examples with a label each, [N], and what each setting adds to their difficulty, [trials, N]."""

    labels: Values
    hard: Values

    @classmethod
    def draw(cls, examples: int, trials: int, draw: np.random.Generator) -> "Split":
        difficulty = draw.normal(0, SHARED, examples) + draw.normal(0, OF_SETTING, (trials, examples))
        return cls(draw.normal(0, 1, examples), difficulty)

    @property
    def classes(self) -> Values:
        return np.digitize(self.labels, [-0.43, 0.43]).astype(float)

    def predictions(self, skill: Values, setting: NDArray[np.int64], draw: np.random.Generator) -> Values:
        """The predicted classes, […, N], of models with this skill and setting, […] each."""
        noise = draw.normal(0, OF_MODEL, (*skill.shape, len(self.labels)))
        x = skill[..., None] * self.labels + self.hard[setting] + noise
        return np.digitize(x, [-0.5, 0.5]).astype(float)


def draw_table(way: Way, response: float, trials: int, seeds: int, draw: np.random.Generator) -> tuple[Scores, float]:
    """The dev scores of nine copies of one method, tuned and run with these seeds; and their mean excess.

    The excess is that over the scores of the same models on fresh examples.
    """
    points = qmc.Halton(1, rng=draw).random(trials)[:, 0]
    best_possible = 1 - response * (2 * points - 1) ** 2  # [trials], the mean skill
    dev, held_out = (Split.draw(examples, trials, draw) for examples in (DEV, HELD_OUT))
    searches = (ROWS, seeds) if way == "per seed" else (ROWS, 1)
    settings = np.broadcast_to(np.arange(trials), (*searches, trials))
    tried = best_possible + draw.normal(0, SEED, settings.shape)  # skill of every trial
    split = dev if way in ON_DEV else held_out
    predicted = split.predictions(tried, settings, draw)  # [rows, searches, trials, N]
    best = (predicted == split.classes).mean(-1).argmax(-1)  # [rows, searches]
    if way == "first row untuned":
        best[0] = 0
    chosen = np.broadcast_to(best, (ROWS, seeds))
    skill = best_possible[chosen] + draw.normal(0, SEED, chosen.shape)
    final = dev.predictions(skill, chosen, draw)  # [rows, seeds, N]
    if way in ON_DEV:
        skill[:, 0] = tried[np.arange(ROWS), 0, best[:, 0]]
        final[:, 0] = predicted[np.arange(ROWS), 0, best[:, 0]]
    fresh = Split.draw(DEV, trials, draw)
    excess = (final == dev.classes).mean() - (fresh.predictions(skill, chosen, draw) == fresh.classes).mean()
    metric, classes = Accuracy(), dev.classes
    values = np.array([[metric(model, classes) for model in row] for row in final])
    influence = np.array([[metric.influence(model, classes) / DEV for model in row] for row in final])
    return Scores.of(values, influence), float(excess)


def errors(way: Way, response: float, trials: int, seeds: int, tables: int) -> tuple[float, float]:
    """The share of tables in which a copy is called better or worse than the first one, and the scores' mean excess."""
    draw, wrong, excesses = np.random.default_rng([trials, seeds]), 0, 0.0
    for _ in range(tables):
        scores, excess = draw_table(way, response, trials, seeds, draw)
        contrasts = [contrast for contrast in scores.differences(0) if contrast]
        wrong += any(judged.verdict in ("better", "worse") for judged in judge(contrasts))
        excesses += excess
    return wrong / tables, excesses / tables


def lines(tables: int, trials: list[int], seeds: list[int]) -> Iterator[str]:
    ways = get_args(Way)
    yield f"response  trials  seeds  {'  '.join(f'{way:>8}' for way in ways)}  excess on dev  excess per seed"
    for name, response in RESPONSES.items():
        for number in trials:
            for count in seeds:
                rates = {way: errors(way, response, number, count, tables) for way in ways}
                shares = "  ".join(f"{rates[way][0]:{max(8, len(way))}.3f}" for way in ways)
                excess = f"{rates['on dev'][1]:+13.4f}  {rates['per seed'][1]:+15.4f}"
                yield f"{name:8}  {number:6}  {count:5}  {shares}  {excess}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=1000, help="tables drawn per line and way to choose")
    parser.add_argument("--trials", type=int, nargs="+", default=[4, 12, 30])
    parser.add_argument("--seeds", type=int, nargs="+", default=[3, 5])
    options = parser.parse_args()
    for line in lines(options.tables, options.trials, options.seeds):
        print(line, flush=True)


if __name__ == "__main__":
    main()
