"""The numbers of a page: differences to any baseline, lines over epochs, what was predicted for what."""

import math
from pathlib import Path

import numpy as np
import pytest
from recorded import METRICS, Row, record

from taskloom.core.errors import TaskloomError
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.analysis.contrasts import Scores, judge
from taskloom.runs.analysis.overview import Overview, overview_of
from taskloom.runs.api.find import finished_results

ROWS = [Row("a"), Row("same"), Row("better", 1.6), Row("noisy", 1.0, 0.5)]


def look(folder: Path) -> Overview:
    with Ledger.open(folder, create=False) as ledger:
        return overview_of(finished_results(ledger, ledger.grid("made")), ledger)


@pytest.fixture(scope="module")
def overview(tmp_path_factory: pytest.TempPathFactory) -> Overview:
    seen = {"metrics": {"sst": {"margin": 0.25}}, "train": {"sst": 0.75}}
    seen["diagnostics"] = {
        "pairs": {"para+sst": {"cosine": -0.5, "conflicts": 0.75}},
        "removed": 0.125,
        "points": [[0, {"para+sst": -0.75}], [7, {"para+sst": 0.25}]],
    }
    folder = tmp_path_factory.mktemp("made") / "r"
    return look(record(folder, ROWS, baseline="a", failed={("same", 2): "it broke"}, epochs=seen))


@pytest.mark.parametrize("seeds", [1, 2, 4])
def test_differences_at_once_are_those_one_by_one(seeds: int) -> None:
    draw = np.random.default_rng(seeds)
    values = draw.normal(0.7, 0.02, (6, seeds))
    values[1, 0] = values[2] = math.nan  # a seed is missing, a row is
    moves = draw.normal(0, 0.01, (6, seeds, 50)).reshape(6 * seeds, 50)
    shared = (moves @ moves.T).reshape(6, seeds, 6, seeds)
    scores = Scores(values, shared, np.array([0, 0, 0, 1, 0, -1]), (50, 50))
    for other in range(6):
        for row, found in enumerate(scores.differences(other)):
            if row == other:
                assert found is None
                continue
            single = scores.contrast(np.eye(6)[row] - np.eye(6)[other])
            assert (found.why, found.seeds, found.variance()) == (single.why, single.seeds, single.variance())
            figures = [
                (
                    each.delta,
                    *(getattr(noise, name) for noise in each.noises for name in ("spread", "common", "freedom")),
                )
                for each in (found, single)
            ]
            assert figures[0] == pytest.approx(figures[1], nan_ok=True, abs=1e-15)


def test_any_row_may_be_the_baseline(overview: Overview) -> None:
    results = overview.results
    for baseline in results.rows:
        others = [row for row in results.rows if row != baseline]
        judged = judge([results.difference("overall", row, baseline) for row in others])
        found = overview.against(baseline)["overall"]
        assert [*found] == others
        assert [each.verdict for each in found.values()] == [each.verdict for each in judged]
        assert [each.p for each in found.values()] == pytest.approx([each.p for each in judged])
    tasks = [(task, row) for task in METRICS for row in results.rows if row != "a"]
    family = judge([results.difference(task, row, "a") for task, row in tasks])
    assert [overview.differences[task][row].p for task, row in tasks] == pytest.approx([each.p for each in family])
    assert overview.ranked[:2] == ("a", "better")


def test_lines_are_means_over_finished_seeds(overview: Overview) -> None:
    dev = next(chart for chart in overview.charts if (chart.what, chart.about) == ("score", "sst"))
    finished = [cell for (label, _), cell in overview.results.finished.items() if label == "same"]
    assert len(finished) == 2
    mean = sum(cell.scores["sst"] for cell in finished) / 2
    assert [x for x, _ in dev.lines["same"]] == [1, 2, 3]
    assert [y for _, y in dev.lines["same"]] == pytest.approx([0.8 * mean, 0.9 * mean, mean])
    assert dev.train["a"] == ((1, 0.75), (2, 0.75), (3, 0.75))
    found = {(chart.what, chart.about): chart.lines["a"][0] for chart in overview.charts}
    pair = "para+sst"
    assert {key: y for key, (_, y) in found.items() if key[0] not in ("score", "train loss")} == {
        ("margin", "sst"): 0.25,
        ("conflicts", pair): 0.75,
        ("cosine", pair): -0.75,
        ("removed", ""): 0.125,
    }
    steps = next(chart for chart in overview.charts if chart.what == "cosine").lines["a"]
    assert np.array(steps[:3]) == pytest.approx(np.array([(0.05, -0.75), (0.55, 0.25), (1.05, -0.75)])), "step by step"


def test_confusions_count_every_prediction(overview: Overview) -> None:
    found = {each.task: each for each in overview.confusions("better")}
    assert [*found] == ["sst", "para", "sts"]
    cells = [cell for (label, _), cell in overview.results.finished.items() if label == "better"]
    sst = found["sst"].counts
    assert sst.sum() == found["sts"].counts.sum() == 3 * 200
    assert np.trace(sst) / sst.sum() == pytest.approx(np.mean([cell.scores["sst"] for cell in cells]))


def test_a_grid_without_a_result_is_refused(tmp_path: Path) -> None:
    folder = record(tmp_path / "r", [Row("a")], unfinished=[("a", seed) for seed in range(3)])
    with pytest.raises(TaskloomError, match="no cell of 'made' is finished"):
        look(folder)


def test_a_grid_without_a_baseline_takes_its_first_row_that_has_a_result(tmp_path: Path) -> None:
    failed = {("a", seed): "no" for seed in range(3)}
    assert look(record(tmp_path / "r", [Row("a"), Row("b"), Row("c")], failed=failed)).baseline == "b"
