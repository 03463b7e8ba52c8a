"""Further metrics are columns like any other, computed from what is stored; weights count in all that is computed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded import METRICS, Row, rebind, record, results_of

from taskloom.core import Overall
from taskloom.core.errors import TaskloomError
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import METRICS as FURTHER
from taskloom.runs.analysis.claims import claims_of
from taskloom.runs.analysis.compare import compare
from taskloom.runs.analysis.effects import effects_of
from taskloom.runs.analysis.metrics import metric_named
from taskloom.runs.analysis.overview import overview_of
from taskloom.runs.analysis.predictions import Subject
from taskloom.runs.analysis.results import Results
from taskloom.runs.analysis.tables import Table, TableRequest, table_of
from taskloom.runs.api.find import finished_results
from taskloom.runs.show.render import render

ROWS = [Row("a"), Row("same"), Row("better", 2.5)]
MORE: dict[str, Any] = {"sst": [{"name": "macro_f1"}], "sts": [{"name": "spearman"}]}
COLUMNS = ("sst", "sst:macro_f1", "para", "sts", "sts:spearman", "overall")


def tabled(results: Results, **wanted: Any) -> Table:
    return table_of(results, TableRequest(**wanted))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("further") / "r"
    claims = [{"better": "better", "than": "a", "on": "sst:macro_f1"}]
    return record(folder, ROWS, baseline="a", claims=claims, **{FURTHER: MORE})


def test_they_stand_after_their_task_and_are_judged_like_any_other(made: Path) -> None:
    results, table = results_of(made), tabled(results_of(made))
    assert table.columns == (*COLUMNS, "seconds")
    assert results.columns == COLUMNS
    for column, name in (("sst:macro_f1", "macro_f1"), ("sts:spearman", "spearman")):
        task = column.partition(":")[0]
        anew = results_of(made, metric=metric_named(name)).scores(task)
        assert np.array_equal(results.scores(column).values, anew.values)
        assert np.array_equal(results.scores(column).independent, anew.independent), "the noise is that of the metric"
    assert table.differences["better", "sst:macro_f1"].verdict == "better"
    assert {column for _, column in table.differences} == set(COLUMNS)
    assert {table.differences[key].family for key in table.differences if key[1] != "overall"} == {2 * 5}


def test_they_change_nothing_in_tasks_and_overall(made: Path, tmp_path: Path) -> None:
    record(tmp_path / "r", ROWS, baseline="a")
    ours, without = results_of(made), results_of(tmp_path / "r")
    for column in without.columns:
        assert np.array_equal(ours.scores(column).values, without.scores(column).values)
        assert np.array_equal(ours.scores(column).independent, without.scores(column).independent)


def test_their_names_are_taken_wherever_a_column_is(made: Path) -> None:
    results = results_of(made)
    assert tabled(results, columns=("sst:macro_f1", "overall"), sort="sst:macro_f1").rows[0].label == "better"
    assert tabled(results, columns=("sts:spearman",)).primary == "sts:spearman"
    with pytest.raises(TaskloomError, match="no column 'sst:macro_f2'; did you mean 'sst:macro_f1'"):
        tabled(results, columns=("sst:macro_f2",))
    (claim,) = claims_of(results, table_of(results), {})
    assert (claim.column, claim.answer) == ("sst:macro_f1", "holds")
    assert effects_of(results, "sts:spearman").column == "sts:spearman"
    with Ledger.open(made, create=False) as ledger:
        overview = overview_of(finished_results(ledger, ledger.grid("made")), ledger)
    assert overview.columns == COLUMNS
    assert overview.differences["sst:macro_f1"].keys() >= {"same", "better"}


def test_two_rows_are_compared_by_them_too(made: Path) -> None:
    with Ledger.open(made, create=False) as ledger:
        grid = ledger.grid("made")
    a, b = (Subject(row, tuple(one for one in grid.cells if one.label == row), grid) for row in ("a", "better"))
    found = compare(a, b, made)
    assert [each.column for each in found.further] == ["sst:macro_f1", "sts:spearman"]
    assert len(found.judged) == len(found.tasks) + 2
    results = results_of(made)
    for each in found.further:
        assert each.scores == pytest.approx(results.scores(each.column).values[[0, 2]].mean(1))
        assert each.contrast == results.difference(each.column, "better", "a")


def test_one_that_cannot_be_used_here_is_a_hole_with_its_reason(tmp_path: Path) -> None:
    record(tmp_path / "r", ROWS[:2], baseline="a", **{FURTHER: {"sst": [{"name": "kappa"}, {"name": "macro_f1"}]}})
    table = tabled(results_of(tmp_path / "r"))
    assert [row.figures["sst:kappa"].mean for row in table.rows] == [None, None]
    assert all(row.figures["sst:macro_f1"].mean for row in table.rows)
    assert "no metric 'kappa'" in render(table, "plain")
    assert table.rows[0].n == 3, "its cells are finished all the same"


def test_without_stored_predictions_they_are_holes(tmp_path: Path) -> None:
    folder = record(tmp_path / "r", ROWS[:2], **{FURTHER: MORE})
    for path in folder.glob("cells/*/scores-dev.safetensors"):
        path.unlink()
    rebind(folder)  # as in a registry of a version that kept none
    table = tabled(results_of(folder))
    assert table.rows[0].figures["sst"].mean is not None
    assert table.rows[0].figures["sst:macro_f1"].mean is None
    assert "its predictions are not in the registry" in render(table, "plain")


# Weights


def weighted(**weights: float) -> dict[str, Any]:
    return {"overall": {"name": "mean", "weights": weights}}


def test_the_noise_of_overall_follows_the_weights(tmp_path: Path) -> None:
    rows = [Row("a", set=weighted(sst=2.0, para=0.0)), Row("b", 1.1, set=weighted(sst=2.0, para=0.0))]
    results = results_of(record(tmp_path / "r", rows, baseline="a"))
    scores, shares = results.scores("overall"), {"sst": 2 / 3, "sts": 1 / 3}
    parts = {task: results.scores(task) for task in METRICS}
    expected = sum(share * parts[task].values for task, share in shares.items())
    assert np.allclose(scores.values, expected)
    # Tasks have different examples, so their covariances add, each with the square of its share.
    assert np.allclose(scores.independent, sum(share**2 * parts[task].independent for task, share in shares.items()))
    assert render(tabled(results), "plain").endswith("overall is a weighted mean: sst 2, para 0, sts 1.")
    other = results_of(record(tmp_path / "f", rows, baseline="a"), metric=metric_named("macro_f1"))
    assert tabled(other).settings == ("overall is a weighted mean: sst 2, para 0.",)  # it does not fit sts


def test_a_bootstrap_over_examples_gives_the_same_noise(tmp_path: Path) -> None:
    how = {"overall": {"name": "normalised", "weights": {"sts": 3.0}}}
    results = results_of(record(tmp_path / "r", [Row("a", set=how)], seeds=[0], examples=400))
    stored = results.stored(results.finished["a", 0].id)
    assert stored is not None
    draw, found = np.random.default_rng(0), []
    read = {
        task: (stored.read(task, "predicted"), results.examples(facts.examples).expected)
        for task, facts in stored.tasks.items()
    }
    for _ in range(1500):
        scores = {}
        for task, (predicted, expected) in read.items():
            chosen = draw.integers(0, len(expected), len(expected))
            scores[task] = METRICS[task](predicted[chosen], expected[chosen])
        found.append(Overall.of(how).score(scores, ["sts"]))
    assert results.scores("overall").independent[0, 0, 0, 0] == pytest.approx(np.var(np.array(found, float)), rel=0.15)


def test_rows_that_weigh_differently_are_named(tmp_path: Path) -> None:
    rows = [Row("a"), Row("b", set=weighted(sst=2.0)), Row("c", set=weighted(sst=2.0))]
    table = tabled(results_of(record(tmp_path / "r", rows)))
    assert table.settings == ("overall is a weighted mean in 'b' and 'c': sst 2, para 1, sts 1.",)
    assert tabled(results_of(tmp_path / "r"), columns=("sst",)).settings == (), "where there is no overall"


def test_another_metric_is_weighted_alike(tmp_path: Path) -> None:
    rows = [Row("a", set=weighted(sst=3.0))]
    results = results_of(record(tmp_path / "r", rows), metric=metric_named("macro_f1"))
    parts = {task: results.scores(task).values for task in ("sst", "para")}
    assert np.allclose(results.scores("overall").values, (3 * parts["sst"] + parts["para"]) / 4)
