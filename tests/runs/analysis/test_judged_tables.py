"""Tables with verdicts: they are those of the contrasts, and nothing that is printed contradicts them."""

import csv
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from contrasted import contrast_of
from hypothesis import given
from hypothesis import strategies as st
from recorded import METRICS, Row, record, results_of

from taskloom.core.data import Metric
from taskloom.runs.analysis.contrasts import judge
from taskloom.runs.analysis.metrics import ClassScore, metric_named
from taskloom.runs.analysis.results import Results
from taskloom.runs.analysis.tables import Table, TableRequest, table_of
from taskloom.runs.cli import cli
from taskloom.runs.show.differences import format_difference, format_p
from taskloom.runs.show.render import as_json, render

ROWS = [Row("a"), Row("same"), Row("better", 1.6), Row("worse", 0.5)]
PARTS = {"delta", "interval", "p", "verdict", "variance"}


def made_table(results: Results, **wanted: Any) -> Table:
    return table_of(results, TableRequest(**wanted))


def taskloom(folder: Path, *arguments: str) -> Any:
    return CliRunner().invoke(cli, ["table", "made", "--registry", str(folder), *arguments])


def refused(folder: Path, *arguments: str) -> str:
    result = taskloom(folder, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert len(result.stderr.strip().splitlines()) == 1
    return str(result.stderr)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("judged") / "r", ROWS, baseline="a")


def test_json_has_what_the_contrasts_give_for_every_score(made: Path) -> None:
    results = results_of(made)
    rows = {row["label"]: row["metrics"] for row in json.loads(render(made_table(results), "json"))["rows"]}
    others = [row.label for row in ROWS[1:]]
    for family in (["overall"], ["sst", "para", "sts"]):
        keys = [(label, column) for column in family for label in others]
        judged = judge([results.difference(column, label, "a") for label, column in keys])
        for (label, column), each in zip(keys, judged, strict=True):
            found = rows[label][column]
            assert (found["delta"], found["p"]) == (each.contrast.delta, each.p)
            assert found["interval"] == list(each.interval)
            assert (found["verdict"], found["variance"]) == (each.verdict, each.variance)
            assert found["variance"] in ("pooled", "own")
    assert [rows[label]["overall"]["verdict"] for label in others] == ["open", "better", "worse"]
    assert {rows["a"]["overall"][part] for part in PARTS} == {None}, "the baseline has no difference to itself"
    assert not PARTS & set(rows["better"]["seconds"])


def test_what_is_shown_changes_no_verdict(made: Path) -> None:
    every = made_table(results_of(made)).differences
    assert made_table(results_of(made), columns=("sst",)).differences == every
    assert made_table(results_of(made), columns=("overall", "seconds")).differences == every


def test_csv_has_the_same_in_columns(made: Path) -> None:
    table = made_table(results_of(made))
    facts = {row["label"]: row["metrics"]["sts"] for row in as_json(table)["rows"]}
    for row in csv.DictReader(io.StringIO(render(table, "csv"))):
        fact = facts[row["label"]]
        low, high = fact["interval"] or (None, None)
        expected = {**fact, "low": low, "high": high}
        for name in ("mean", "sd", "delta", "low", "high", "p", "verdict", "variance"):
            assert row[f"sts {name}"] == ("" if expected[name] is None else str(expected[name]))


def test_a_star_is_only_for_what_is_better_than_every_other(made: Path, tmp_path: Path) -> None:
    table = made_table(results_of(made))
    assert table.best["overall"] == "better"
    assert {table.differences["better", column].verdict for column in table.best} == {"better"}
    twins = record(tmp_path / "r", [Row("a"), Row("b", 1.6), Row("c", 1.6)], baseline="a")
    table = made_table(results_of(twins))
    assert table.best == {}
    assert "*" not in render(table, "plain")


def test_a_row_that_lacks_seeds_is_marked_and_gets_no_star(tmp_path: Path) -> None:
    failed = {("better", 2): "it broke"}
    table = made_table(results_of(record(tmp_path / "r", ROWS, baseline="a", failed=failed)))
    assert table.best == {}
    text = render(table, "plain")
    assert re.search(r"^better +2/3 ", text, re.MULTILINE)
    assert "— better, seed 2: failed: it broke" in text
    assert "'better': Δ is over the 2 seeds in common with 'a'." in text
    row = as_json(table)["rows"][2]
    assert (row["n"], row["metrics"]["sst"]["n"], row["metrics"]["sst"]["seeds"]) == (2, 2, 2)


def test_equal_is_said_with_its_margin(tmp_path: Path) -> None:
    table = made_table(results_of(record(tmp_path / "r", ROWS[:2], baseline="a", margin=0.2)))
    assert table.differences["same", "overall"].verdict == "equal"
    assert "equal ±0.2: within the grid's margin of 'a'" in render(table, "plain")
    assert re.search(r"^same .* equal ±0.2 ", render(table, "plain"), re.MULTILINE)


def test_one_seed_compares_these_models_and_not_these_methods(tmp_path: Path) -> None:
    table = made_table(results_of(record(tmp_path / "r", ROWS, seeds=[0], baseline="a")))
    assert {difference.verdict for difference in table.differences.values()} == {"one seed"}
    assert table.best == {}
    assert as_json(table)["rows"][2]["metrics"]["overall"]["variance"] == "examples"


def test_rows_on_other_examples_are_not_compared(tmp_path: Path) -> None:
    cells = [{"label": "a"}, {"label": "b"}, {"label": "t", "split": "test"}]
    rows = [Row("a"), Row("b"), Row("t", 1.9)]
    folder = record(tmp_path / "r", rows, baseline="a", cells=cells, test=True)
    record(tmp_path / "r", [Row("a")], name="small", examples=50)
    small, grid = results_of(folder, "small").grid, results_of(folder).grid
    moved = [place if place.label != "b" else small.cells[place.seed] for place in grid.cells]
    swapped = [type(place)(old.label, old.seed, {}, place.cell) for place, old in zip(moved, grid.cells, strict=True)]
    table = made_table(Results(type(grid)("both", grid.spec, "", "", tuple(swapped)), folder))
    text = render(table, "plain")
    assert "Not compared with 'a': 'b'; they were scored on other examples." in text
    assert re.search(r"^b .* — ", text, re.MULTILINE)
    assert as_json(table)["rows"][1]["metrics"]["overall"]["interval"] is None


def test_no_finished_cell_and_scores_that_are_no_number(tmp_path: Path) -> None:
    planned = [(row.label, seed) for row in ROWS for seed in range(3)]
    nothing = made_table(results_of(record(tmp_path / "none", ROWS, baseline="a", unfinished=planned)))
    assert "— a; same; better; worse: not run yet" in render(nothing, "plain")
    assert (nothing.differences, nothing.checks, nothing.best) == ({}, (), {})
    results = results_of(record(tmp_path / "r", ROWS, baseline="a"))
    for place in results.grid.cells:
        if place.label == "better" and place.seed == 1:
            place.cell.scores.update(sst=math.nan, overall=math.nan)
    table = made_table(results)
    row = as_json(table)["rows"][2]
    assert row["metrics"]["sst"]["n"] == row["metrics"]["sst"]["seeds"] == 2
    assert row["metrics"]["sts"]["n"] == 3
    assert "— better, seed 1: sst is nan" in render(table, "plain")


# What the reader asks for


def axes(*missing: str) -> list[Row]:
    return [
        Row(f"{combiner}, {lr}", skill, set={"stages.0.combiner": {"name": combiner}, "stages.0.optimizer.lr": lr})
        for combiner, skill in (("sum", 1.0), ("pcgrad", 1.5))
        for lr in (0.1, 0.2)
        if f"{combiner}, {lr}" not in missing
    ]


def test_group_by_is_the_mean_over_rows_seed_by_seed(tmp_path: Path) -> None:
    results = results_of(record(tmp_path / "r", axes(), failed={("pcgrad, 0.2", 1): "no"}))
    table = made_table(results, group_by="combiner")
    rows = as_json(table)["rows"]
    assert [row["label"] for row in rows] == ["sum", "pcgrad"]
    values = results.scores("sst").values
    means = values[2:, [0, 2]].mean(0)
    assert rows[1]["metrics"]["sst"]["mean"] == pytest.approx(means.mean())
    assert rows[1]["metrics"]["sst"]["sd"] == pytest.approx(means.std(ddof=1))
    assert (rows[0]["n"], rows[1]["n"]) == (3, 2)
    common = values[2:, [0, 2]].mean(0) - values[:2, [0, 2]].mean(0)
    assert rows[1]["metrics"]["sst"]["delta"] == pytest.approx(common.mean())
    assert rows[1]["metrics"]["overall"]["verdict"] == "better"
    text = render(table, "plain")
    assert "— pcgrad, seed 1: 'pcgrad, 0.2': failed: no" in text
    assert "Means over rows, seed by seed: 2 rows for sum, 2 rows for pcgrad." in text
    assert "differ in more" not in text


def test_groups_that_are_not_matched_are_named(tmp_path: Path) -> None:
    table = made_table(results_of(record(tmp_path / "r", axes("pcgrad, 0.2"))), group_by="combiner")
    assert "These rows differ in more than stages.0.combiner" in render(table, "plain")
    assert (table.differences, table.best) == ({}, {}), "or their difference would be put down to the combiner"


def test_sorting_puts_the_best_first_and_holes_last(made: Path, tmp_path: Path) -> None:
    labels = [row.label for row in made_table(results_of(made), sort="overall").rows]
    assert (labels[0], labels[-1]) == ("better", "worse")
    failed = {("better", seed): "no" for seed in range(3)}
    holes = made_table(results_of(record(tmp_path / "r", ROWS, failed=failed)), sort="seconds")
    assert holes.rows[-1].label == "better"


@pytest.mark.parametrize("name", ["accuracy", "macro_f1", "pearson", "spearman", "f1:1", "f1:4"])
def test_another_metric_scores_what_is_stored(made: Path, name: str) -> None:
    metric = metric_named(name)
    results = results_of(made, metric=metric)
    table = made_table(results)
    cell = results.finished["a", 0]
    stored = results.stored(cell.id)
    assert stored is not None
    tasks = [column for column in table.scores if column != "overall"]
    values = {}
    for task in tasks:
        expected = results.examples(stored.tasks[task].examples).expected
        values[task] = metric(stored.read(task, "predicted"), expected)
        assert results.final_scores("a", cell)[task] == values[task]
        if name == METRICS[task].name:
            assert values[task] == cell.scores[task], "the ledger's own"
    assert results.final_scores("a", cell)["overall"] == pytest.approx(np.mean(list(values.values())))
    kinds = {"accuracy": ["sst", "para"], "macro_f1": ["sst", "para"], "f1:1": ["sst", "para"], "f1:4": ["sst"]}
    assert tasks == kinds.get(name, tasks)
    assert "sts" in tasks or name in kinds
    assert table.differences["better", "overall"].interval is not None
    assert f"Scores are {name}, " in render(table, "plain")


def test_the_influence_of_an_example_on_a_class_is_that_of_the_jackknife() -> None:
    draw = np.random.default_rng(0)
    expected, predicted = draw.integers(0, 3, 400).astype(float), draw.integers(0, 3, 400).astype(float)
    metric = ClassScore(2)
    exact, jackknife = metric.influence(predicted, expected), Metric.influence(metric, predicted, expected)
    assert exact == pytest.approx(jackknife, abs=0.03)
    assert not ClassScore(7).influence(predicted, expected).any()


def test_what_is_not_there_is_answered_with_what_is(made: Path, tmp_path: Path) -> None:
    assert "did you mean 'accuracy'?" in refused(made, "--metric", "acuracy")
    assert "the number of a class" in refused(made, "--metric", "f1:joy")
    assert "f1:9 fits no task" in refused(made, "--metric", "f1:9")
    assert "did you mean 'overall'?" in refused(made, "--columns", "sst,overal")
    assert "did you mean 'seconds'?" in refused(made, "--sort", "second")
    assert "overall" in refused(made, "--columns", "overall", "--sort", "memory")
    grouped = record(tmp_path / "r", axes())
    assert "did you mean 'stages.0.combiner'?" in refused(grouped, "--group-by", "stages.0.combine")
    assert "accuracy" in taskloom(made, "--metric", "accuracy", "--columns", "overall").stdout


def test_a_row_about_test_shows_test_scores_and_looks_are_counted(tmp_path: Path) -> None:
    cells = [{"label": "a"}, {"label": "t", "split": "test"}]
    folder = record(tmp_path / "r", [Row("a"), Row("t")], baseline="a", cells=cells, test=True)
    first, second = taskloom(folder), taskloom(folder)
    results = results_of(folder)
    test = [results.finished["t", seed].test["sst"] for seed in range(3)]
    dev = [results.finished["t", seed].scores["sst"] for seed in range(3)]
    assert test != dev
    assert re.search(rf"^t \(test\) +3 +{np.mean(test):.3f} ± ", first.stdout, re.MULTILINE)
    assert "looked at" not in first.stdout
    assert "The test scores of this grid were looked at 2 times" in second.stdout
    page = tmp_path / "page.html"
    assert CliRunner().invoke(cli, ["report", "made", "--registry", str(folder), "-o", str(page)]).exit_code == 0
    assert "looked at 3 times" in page.read_text(), "a page is a look, too"
    unscored = record(tmp_path / "unscored", [Row("a"), Row("t")], cells=cells)
    for _ in range(2):
        text = taskloom(unscored).stdout
    assert re.search(r"^t \(test\) +0/3 +— ", text, re.MULTILINE), "never dev under that label"
    assert '— t: test was not scored; a run with "score": {"test": true} does that' in text
    assert "looked at" not in text


# What is printed


@given(
    st.lists(st.tuples(st.floats(-0.2, 0.2), st.floats(1e-6, 0.1), st.integers(1, 40)), min_size=1, max_size=6),
    st.sampled_from([None, 0.01]),
)
def test_printed_intervals_and_p_never_contradict_the_verdict(
    given_: list[tuple[float, float, int]], margin: float | None
) -> None:
    contrasts = [contrast_of(delta, 3, 3 * error**2, 0.0, df) for delta, error, df in given_]
    for judged in judge(contrasts, margin):
        delta, low, high = re.findall(r"[-+][\d.e-]+", format_difference(judged))
        p = format_p(judged.p)
        significant = p == "<0.05" or float(p.removeprefix("<")) < 0.05
        assert significant == (float(low) > 0 or float(high) < 0), "also of what is equal"
        if judged.verdict in ("better", "worse"):
            assert significant
            assert (float(delta) > 0) == (judged.verdict == "better")
        elif judged.verdict == "open":
            assert not significant
