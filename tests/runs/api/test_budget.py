"""The budget of a tuned grid: one curve per row in text, JSON, page and plot; every trial counts."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from searched import GRID, THEIRS, records, tuned

from taskloom.core.errors import TaskloomError
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.analysis.budget import best_of
from taskloom.runs.analysis.overview import overview_of
from taskloom.runs.analysis.results import Results
from taskloom.runs.api.grid import Grid
from taskloom.runs.cli import cli

WORDS = {**GRID["base"], "tasks": {"sst": {"data": "words", "loss": "theirs"}}}
OVER = {"stages.0.optimizer.lr": {"log": [1e-5, 0.3]}}


def trial_scores(grid: Grid, row: str, column: str = "overall") -> list[float | None]:
    """The scores of a row's trials in their order, as the table of trials has them."""
    return [cell.cell.scores.get(column) for cell in records(grid)[1].cells if cell.label.startswith(row)]


def test_text_json_page_and_plot_have_the_curve_of_the_trials(install: Callable[..., None], tmp_path: Path) -> None:
    """A third party's data set and loss: nothing in the budget depends on ours."""
    install("theirs", THEIRS)
    search = {**GRID["search"], "over": OVER}
    grid = Grid({**GRID, "name": "tuned", "base": WORDS, "search": search}, registry=tmp_path / "registry")
    grid.run(engine="inline", progress=False)
    budget, page, figure = grid.budget(), tmp_path / "report.html", tmp_path / "budget.svg"
    grid.report(page)
    grid.plot(figure, "budget")
    with Ledger.open(grid.registry, create=False) as ledger:
        chart = overview_of(Results(ledger.grid("tuned"), grid.registry, epochs=ledger.epochs), ledger).budget_chart
    assert chart is not None
    for row in budget.as_json()["rows"]:
        scores = trial_scores(grid, row["row"])
        assert len(set(scores)) > 1, "the trials do not differ, so the test shows nothing"
        assert row["curve"] == [vars(best) for best in best_of(scores)]
        assert chart.lines[row["row"]] == tuple((best["trials"], best["expected"]) for best in row["curve"])
        assert chart.bands[row["row"]][0] == tuple((best["trials"], best["low"]) for best in row["curve"])
        for best in row["curve"]:
            shown = f"{best['expected']:.3f} [{best['low']:.3f}, {best['high']:.3f}]"
            assert shown in str(budget)
            assert shown in page.read_text()
    assert [(record["row"], record["trials"]) for record in budget.records] == [
        (row, trials) for row in ("sum", "surgery") for trials in (1, 2, 3, 4)
    ]
    assert "expected best score" in figure.read_text()
    bands = re.findall(r'<polygon points="([^"]*)" class="band', page.read_text())
    highest = [min(float(point.split(",")[1]) for point in band.split()) for band in bands]
    assert len(highest) == 2
    assert min(highest) > 6.0, "the upper end of a band is cut off"
    with pytest.raises(TaskloomError, match="has the trials of 'tuned'; ask for the budget of that grid"):
        Grid("tuned+trials", registry=grid.registry).budget()
    with pytest.raises(TaskloomError, match=r"no column 'stt'; did you mean 'sst'\?"):
        grid.budget("stt")
    arguments = ["budget", "tuned", "--registry", str(grid.registry), "--json"]
    assert json.loads(CliRunner().invoke(cli, arguments).stdout) == budget.as_json()


def test_a_failed_trial_counts_as_tried_and_a_row_without_a_score_is_named(tmp_path: Path) -> None:
    cells = [{"label": "fine"}, {"label": "wild", "set": {"stages.0.optimizer.weight_decay": 1e30}}]
    search = {**GRID["search"], "over": {"stages.0.optimizer.lr": [0.001, 1e30]}}
    changes: dict[str, Any] = {"cells": cells, "baseline": "fine", "claims": [], "search": search}
    grid = Grid({**GRID, "name": "tuned", **changes}, registry=tmp_path)
    grid.run(engine="inline", progress=False)
    (fine,) = grid.budget().found.rows
    assert (fine.row, fine.failed, len(fine.curve)) == ("fine", 1, 2)
    assert "3 failed trials counted as tried, with the least score of the same search." in grid.budget().checks
    assert "Left out: no trial of 'wild' has a score." in grid.budget().checks


def test_one_search_per_seed_gives_the_mean_of_the_curves(tmp_path: Path) -> None:
    grid = tuned(tmp_path, per="seed", trials=2)
    grid.run(engine="inline", progress=False)
    for row in grid.budget().found.rows:
        scores = trial_scores(grid, row.row)
        expected = np.mean([[best.expected for best in best_of(scores[at : at + 2])] for at in (0, 2)], axis=0)
        assert [best.expected for best in row.curve] == pytest.approx(expected.tolist())


def test_a_grid_without_a_search_has_one_sentence(tmp_path: Path) -> None:
    plain = {key: value for key, value in GRID.items() if key != "search"}
    grid = Grid({**plain, "name": "plain"}, registry=tmp_path / "registry")
    grid.run(engine="inline", progress=False)
    sentence = "'plain' has no trials in this registry: it was run without a search, or imported alone"
    with pytest.raises(TaskloomError, match=sentence):
        grid.budget()
    with pytest.raises(TaskloomError, match=sentence):
        grid.plot(tmp_path / "budget.svg", "budget")
    grid.report(tmp_path / "report.html")
    assert "Budget" not in (tmp_path / "report.html").read_text()


def test_optuna_tunes_each_row_with_as_many_trials_and_the_same_ones_again(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    sampler = {"name": "optuna", "n_startup_trials": 2}
    whole, parts = (tuned(tmp_path / name, sampler=sampler, trials=4) for name in ("whole", "parts"))
    whole.run(engine="inline", progress=False)
    tuned(tmp_path / "parts", sampler=sampler, trials=2).run(engine="inline", progress=False)
    parts.run(engine="inline", progress=False)
    table, trials = records(whole)
    assert [(search["row"], search["tried"]) for search in table.spec["tuned"]["rows"]] == [("sum", 4), ("surgery", 4)]
    assert [cell.label for cell in trials.cells] == [
        f"{row}, trial {k}" for row in ("sum", "surgery") for k in range(1, 5)
    ]
    assert [cell.cell.id for cell in trials.cells] == [cell.cell.id for cell in records(parts)[1].cells]
    assert table.spec["tuned"] == records(parts)[0].spec["tuned"]
    assert whole.run(engine="inline", progress=False).outcome.finished == 0
    assert [len(row.curve) for row in whole.budget().found.rows] == [4, 4]


@pytest.mark.parametrize("per", ["row", "seed"])
def test_optuna_is_told_the_scores_after_a_third_where_trials_are_halved(tmp_path: Path, per: str) -> None:
    pytest.importorskip("optuna")
    grid = tuned(tmp_path, sampler="optuna", trials=3, halving=True, per=per)
    grid.run(engine="inline", progress=False)
    searches = 2 if per == "row" else 4
    statuses = [cell.cell.status for cell in records(grid)[1].cells]
    assert (statuses.count("finished"), statuses.count("interrupted")) == (searches, 2 * searches)
    assert grid.run(engine="inline", progress=False).outcome.finished == 0
