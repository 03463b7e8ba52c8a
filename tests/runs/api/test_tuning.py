"""A grid that is tuned: its trials see no dev row, its rows get what the trials chose, and its answers say so."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from safetensors import safe_open
from searched import GRID, THEIRS, records, tuned

from taskloom.registry.results.ledger import Ledger
from taskloom.runs.api.grid import Grid
from taskloom.runs.cli import cli


def best_weights(grid: Grid, cell: str) -> bytes:
    return (grid.registry / "cells" / cell / "best" / "tensors.safetensors").read_bytes()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Grid:
    grid = tuned(tmp_path_factory.mktemp("tuned"))
    grid.run(engine="inline", progress=False)
    return grid


def test_rows_are_run_on_all_data_with_the_settings_of_their_best_trial(run: Grid) -> None:
    table, trials = records(run)
    assert [(row.label, row.seed, row.cell.status) for row in table.cells] == [
        (label, seed, "finished") for label in ("sum", "surgery") for seed in (0, 1)
    ]
    assert Counter(row.cell.status for row in trials.cells) == {"finished": 8}
    for search in table.spec["tuned"]["rows"]:
        scores = {row.label: row.cell.scores["overall"] for row in trials.cells if row.label.startswith(search["row"])}
        assert search["score"] == max(scores.values()) == scores[f"{search['row']}, trial {search['trial']}"]
        for row in table.cells:
            if row.label == search["row"]:
                rate = row.cell.spec["stages"][0]["optimizer"]["lr"]
                assert {"stages.0.optimizer.lr": rate} == search["settings"]
    assert all("hold_out" not in row.cell.spec and row.cell.test for row in table.cells)
    assert all(row.cell.spec["hold_out"]["share"] == 0.25 and not row.cell.test for row in trials.cells)


def test_a_second_run_trains_nothing_and_further_trials_keep_what_there_is(run: Grid, tmp_path: Path) -> None:
    before = {row.cell.id: row.cell.finished for row in (*records(run)[0].cells, *records(run)[1].cells)}
    outcome = run.run(engine="inline", progress=False).outcome
    assert (outcome.finished, outcome.cached) == (0, 4)
    more = Grid({**run.file.raw, "search": {**run.file.raw["search"], "trials": 6}}, registry=run.registry)
    assert not [note for note in more.plan().notes if "no longer shows" in note], "rows that wait keep their results"
    more.run(engine="inline", progress=False)
    after = {row.cell.id: row.cell.finished for row in records(run)[1].cells}
    assert len(after) == 12
    assert {id: moment for id, moment in before.items() if id in after}.items() <= after.items()
    run.run(engine="inline", progress=False)  # with the four trials again, as the other tests expect


def test_what_was_chosen_and_what_verdicts_are_about_is_said(run: Grid, tmp_path: Path) -> None:
    table = run.table()
    assert "Tuned with 4 trials per row, scored on 25% of the training rows:" in table.checks
    assert any(line.startswith("'surgery': lr=0.") and "of 4" in line for line in table.checks)
    assert table.as_json()["tuned"]["rows"][0]["tried"] == 4
    about = "verdicts are about these methods at these settings"
    assert about in str(table)
    assert about in str(run.claims())
    explained = run.explain("sum").found
    assert [one.state for one in explained] == ["trial finished"] * 4 + ["cached"] * 2
    assert "on the held-out rows" in explained[0].why
    path = tmp_path / "report.html"
    run.report(path)
    assert about in path.read_text()
    trials = Grid("tuned+trials", registry=run.registry)
    assert any("held out, not on dev" in check for check in trials.table().checks)
    with pytest.raises(Exception, match="has the trials of 'tuned'"):
        trials.run(engine="inline", progress=False)


def test_untuned_rows_have_a_table_of_their_own(run: Grid) -> None:
    run.run(engine="inline", progress=False, tuned=False)
    with Ledger.open(run.registry, create=False) as ledger:
        rates = {row.cell.spec["stages"][0]["optimizer"]["lr"] for row in ledger.grid("tuned+untuned").cells}
    assert rates == {0.001}
    path = run.registry.parent / "tuned.json"
    path.write_text(json.dumps(run.file.raw))
    shown = [
        CliRunner().invoke(cli, ["table", str(path), flag, "--registry", str(run.registry)])
        for flag in ("--tuned", "--untuned")
    ]
    assert [result.exit_code for result in shown] == [0, 0], [result.stderr for result in shown]
    assert "Tuned with" in shown[0].stdout
    assert "Tuned with" not in shown[1].stdout
    assert "without the search" in shown[1].stdout


def test_the_plan_shows_the_trials_and_what_follows(tmp_path: Path) -> None:
    plan = tuned(tmp_path).plan()
    costs = "A search per row has 8 trials (144 steps), one per seed 16 trials (288 steps); this is one per "
    assert f"{costs}row." in str(plan)
    assert f"{costs}seed." in str(tuned(tmp_path, per="seed").plan())
    assert "4 cells of 'sum' and 'surgery' follow with the settings of their best trials" in str(plan)
    listed = plan.as_json()
    assert (len(listed["trials"]), len(listed["waiting"]), listed["cells"]) == (8, 4, [])


@pytest.mark.parametrize("split", ["dev", "test"])
def test_no_trial_sees_a_dev_row_whatever_the_data_set(
    install: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: str
) -> None:
    """A third party's data and loss: with other dev labels every trial has the same scores and the same weights."""
    install("theirs", THEIRS)
    sst = {"data": "words", "loss": "theirs"}
    base = {**GRID["base"], "tasks": {"sst": sst}}
    results = []
    for name, other in (("a", "none"), ("b", split)):
        monkeypatch.setenv("OTHER_SPLIT", other)
        grid = Grid({**GRID, "name": "tuned", "base": base}, registry=tmp_path / name)
        grid.run(engine="inline", progress=False)
        table, trials = records(grid)
        results.append(
            {row.label: (row.cell.id, row.cell.scores, best_weights(grid, row.cell.id)) for row in trials.cells}
        )
        results[-1]["chosen"] = table.spec["tuned"]
    assert results[0] == results[1]


def test_a_trial_is_not_trained_on_the_rows_that_it_is_scored_on(install: Callable[..., None], tmp_path: Path) -> None:
    """Every scored example's texts are those of training rows, and none of them is among the rows trained on."""
    install("theirs", THEIRS)
    base = {**GRID["base"], "tasks": {"sst": {"data": "words", "loss": "theirs"}}}
    grid = Grid({**GRID, "name": "tuned", "base": base}, registry=tmp_path / "registry")
    grid.run(engine="inline", progress=False)
    _, trials = records(grid)
    for row in trials.cells:
        assert row.cell.costs["examples"] < 3 * 60
        scores = json.loads(_metadata(grid.registry / "cells" / row.cell.id / "scores-dev.safetensors"))
        assert '"seen": 0' in json.dumps(scores)


def _metadata(path: Path) -> str:
    with safe_open(path, "np") as file:
        return json.dumps({key: json.loads(value) for key, value in file.metadata().items() if value[:1] in "{["})


def test_a_failed_trial_counts_as_tried_and_is_tried_again_only_if_its_row_has_no_other(tmp_path: Path) -> None:
    cells = [{"label": "fine"}, {"label": "wild", "set": {"stages.0.optimizer.weight_decay": 1e30}}]
    search = {**GRID["search"], "over": {"stages.0.optimizer.lr": [0.001, 1e30]}}
    written = {**GRID, "name": "tuned", "cells": cells, "baseline": "fine", "claims": [], "search": search}
    grid = Grid(written, registry=tmp_path)
    ran = grid.run(engine="inline", progress=False)
    table, trials = records(grid)
    fine, wild = table.spec["tuned"]["rows"]
    assert (fine["tried"], fine["settings"], len(fine["failed"])) == (2, {"stages.0.optimizer.lr": 0.001}, 1)
    assert (wild["tried"], wild["trial"], len(wild["failed"])) == (2, None, 2)
    assert {row.label for row in table.cells} == {"fine"}
    assert "failed: trial" in str(ran)
    assert "'wild': no settings, since none of 2 trials has a score: " in str(ran)
    assert any("'wild' has no settings: all 2 trials failed, the first because: " in note for note in grid.plan().notes)
    before = {row.label: row.cell.attempts for row in trials.cells}
    grid.run(engine="inline", progress=False)
    more = {row.label: row.cell.attempts - before[row.label] for row in records(grid)[1].cells}
    assert more == {"fine, trial 1": 0, "fine, trial 2": 0, "wild, trial 1": 1, "wild, trial 2": 1}


def test_only_the_seed_without_any_score_is_tried_again(tmp_path: Path) -> None:
    search = {"over": {"stages.0.optimizer.lr": [0.001, 1e30, 1e31]}, "trials": 2, "hold_out": 0.25, "per": "seed"}
    written = {**GRID, "name": "tuned", "cells": [{"label": "sum"}], "claims": [], "search": search}
    grid = Grid(written, registry=tmp_path)
    grid.run(engine="inline", progress=False)
    before = {row.label: (row.cell.status, row.cell.attempts) for row in records(grid)[1].cells}
    assert [status for status, _ in before.values()] == ["failed", "finished", "failed", "failed"]
    grid.run(engine="inline", progress=False)
    again = [row.cell.attempts - before[row.label][1] for row in records(grid)[1].cells]
    assert again == [0, 0, 1, 1]


def test_a_table_without_any_row_says_that_all_trials_failed(tmp_path: Path) -> None:
    search = {**GRID["search"], "over": {"stages.0.optimizer.lr": [1e30]}}
    written = {
        **GRID,
        "name": "tuned",
        "cells": [{"label": "wild"}],
        "baseline": "wild",
        "claims": [],
        "search": search,
    }
    ran = Grid(written, registry=tmp_path).run(engine="inline", progress=False)
    assert "'wild': no settings, since none of 1 trial has a score: " in str(ran)


def test_halving_trains_no_epoch_twice_and_ends_the_worse_trials_early(tmp_path: Path) -> None:
    grid = tuned(tmp_path, halving=True, trials=5)
    grid.run(engine="inline", progress=False)
    table, trials = records(grid)
    with Ledger.open(grid.registry, create=False) as ledger:
        for row in trials.cells:
            told = [epoch.epoch for epoch in ledger.epochs(row.cell.id)]
            if row.cell.status == "finished":
                assert told == [1, 2, 3]
                assert [attempt.how for attempt in ledger.attempts(row.cell.id)] == ["interrupted", "finished"]
                assert row.cell.costs["examples"] <= 3 * 64
            else:
                assert told == [1]
                assert (row.cell.status, row.cell.reason) == ("interrupted", "halving: paused after 1 of 3 epochs")
    assert Counter(row.cell.status for row in trials.cells) == {"finished": 4, "interrupted": 6}
    assert "3 trials ended after a third" in str(grid.table())
    assert all(row.cell.status == "finished" for row in table.cells)
    whole = tuned(tmp_path / "whole", trials=5)
    whole.run(engine="inline", progress=False)
    scores = {row.cell.id: row.cell.scores for row in records(whole)[1].cells}
    for row in trials.cells:
        if row.cell.status == "finished":
            assert row.cell.scores == scores[row.cell.id], "a trial that paused has another result"


def test_what_another_grid_ran_of_the_same_trials_changes_nothing_under_halving(tmp_path: Path) -> None:
    halved = tuned(tmp_path, halving=True, trials=5)
    halved.run(engine="inline", progress=False)
    answers = [(records(halved)[0].spec["tuned"], str(halved.budget()), str(halved.budget("sst")))]
    whole = Grid({**tuned(tmp_path, trials=5).file.raw, "name": "whole"}, registry=halved.registry)
    whole.run(engine="inline", progress=False)
    assert {row.cell.status for row in records(halved)[1].cells} == {"finished"}
    halved.run(engine="inline", progress=False)
    answers.append((records(halved)[0].spec["tuned"], str(halved.budget()), str(halved.budget("sst"))))
    assert answers[0] == answers[1]
    assert "3 trials ended after a third" in str(halved.table())
    assert "6 trials ended after a third" in str(halved.budget())


def test_one_search_per_seed_gives_each_seed_settings_of_its_own(tmp_path: Path) -> None:
    grid = tuned(tmp_path, per="seed", trials=2)
    grid.run(engine="inline", progress=False)
    table, trials = records(grid)
    assert len(trials.cells) == 8
    chosen = {(search["row"], search["seed"]): search["settings"] for search in table.spec["tuned"]["rows"]}
    for row in table.cells:
        rate = row.cell.spec["stages"][0]["optimizer"]["lr"]
        assert chosen[row.label, row.seed] == {"stages.0.optimizer.lr": rate}
    assert "verdicts are about the methods" in str(grid.claims())
    grid.run(engine="inline", progress=False, seeds=1)
    assert {row.seed for row in records(grid)[0].cells} == {0, 1, 2}


def test_different_budgets_are_named(tmp_path: Path) -> None:
    cells = [{"label": "sum"}, {"label": "more", "search": {"over": {"tasks.sst.head.dropout": [0.0, 0.1]}}}]
    search = {"over": {"stages.0.optimizer.lr": [0.001, 0.01]}, "trials": 4}
    grid = Grid({**GRID, "name": "tuned", "cells": cells, "claims": [], "search": search}, registry=tmp_path)
    ran = grid.run(engine="inline", progress=False)
    assert "Rows were tuned with different budgets: 2 trials for 'sum'; 4 trials for 'more'." in ran.checks


def test_python_writes_the_same_grid(tmp_path: Path) -> None:
    plain = {key: value for key, value in GRID.items() if key != "search"}
    grid = Grid({**plain, "name": "tuned"}, registry=tmp_path).search(over=GRID["search"]["over"], trials=3)
    assert len(grid.plan().as_json()["trials"]) == 6
    assert grid.file.raw["search"] == {"over": GRID["search"]["over"], "trials": 3}


def test_an_archive_of_a_tuned_grid_and_its_trials_can_be_imported(run: Grid, tmp_path: Path) -> None:
    path, there = tmp_path / "results.zip", tmp_path / "there"
    arguments = ["archive", "tuned", "tuned+trials", str(path), "--registry", str(run.registry)]
    archived = CliRunner().invoke(cli, arguments)
    assert archived.exit_code == 0, archived.stderr
    imported = CliRunner().invoke(cli, ["import", str(path), "--registry", str(there)])
    assert imported.exit_code == 0, imported.stderr
    assert "Tuned with 4 trials" in str(Grid("tuned", registry=there).table())
