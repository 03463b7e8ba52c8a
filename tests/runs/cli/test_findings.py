"""``taskloom claims``, ``effects`` and ``seeds``: what is answered, what is refused, and what it costs."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from recorded import SPEC, Row, record

from taskloom.core import Event
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.cli import cli
from taskloom.runs.grid.planned import PlannedCell

Invoke = Callable[..., Result]
BETTER = {"says": "surgery helps", "better": "pcgrad", "than": "sum"}
#: A row that is much better than the baseline, and one that hardly is.
ROWS = [Row("sum", 1.0, 0.02), Row("pcgrad", 1.6, 0.02), Row("mean", 1.02, 0.02)]


@pytest.fixture
def taskloom(tmp_path: Path) -> Invoke:
    environment = {"TASKLOOM_REGISTRY": str(tmp_path / "r")}
    return lambda *arguments: CliRunner().invoke(cli, [str(argument) for argument in arguments], env=environment)


def answers(taskloom: Invoke, grid: str = "made") -> list[dict[str, Any]]:
    done = taskloom("claims", grid, "--json")
    assert done.exit_code == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["claims"]
    return found


def test_claims_are_answered_with_difference_interval_and_p(taskloom: Invoke, tmp_path: Path) -> None:
    claims = [
        BETTER,
        {"better": "sum", "than": "pcgrad", "on": "sst"},
        {"equal": "mean", "than": "sum", "within": 0.2},
        {"equal": "pcgrad", "to": "sum", "within": 0.01},
        {"better": "mean", "than": "sum", "on": "sts"},
    ]
    record(tmp_path / "r", ROWS, claims=claims)
    found = answers(taskloom)
    assert [claim["answer"] for claim in found] == ["holds", "contradicted", "holds", "contradicted", "open"]
    assert [claim["on"] for claim in found] == ["overall", "sst", "overall", "overall", "sts"]
    for claim in found:
        low, high = claim["interval"]
        assert low <= claim["delta"] <= high
        if claim["verdict"] == "equal":  # then both are those of equality
            assert -claim["within"] < low <= high < claim["within"]
        else:
            assert (claim["p"] < 0.05) == (not low <= 0 <= high)
        assert claim["seeds"] == 3
    assert found[-1]["more_seeds"] is None or found[-1]["more_seeds"] > 0
    assert found[0]["more_seeds"] is None, "nothing is left to settle"


def test_a_claim_about_several_pairs_names_all_their_rows(taskloom: Invoke, tmp_path: Path) -> None:
    claims = [{"says": "both win", "better": ["pcgrad", "mean"], "than": ["sum", "sum"]}]
    record(tmp_path / "r", ROWS, claims=claims, baseline="sum")
    (answer,) = answers(taskloom)
    assert (answer["row"], answer["other"]) == (["pcgrad", "mean"], ["sum", "sum"])
    assert "both win" in taskloom("claims", "made").stdout
    page = tmp_path / "page.html"
    assert taskloom("report", "made", "-o", page).exit_code == 0
    assert page.read_text(encoding="utf-8").count(" against ") >= 2


def test_a_claim_is_marked_as_written_before_or_after_the_run(taskloom: Invoke, tmp_path: Path) -> None:
    record(tmp_path / "r", ROWS, claims=[BETTER])
    after = {"better": "mean", "than": "sum"}
    with Ledger.open(tmp_path / "r", create=False) as ledger:
        grid = ledger.grid("made")
        places = [
            PlannedCell(place.cell.id, place.label, place.seed, "finished", place.cell.spec, {}) for place in grid.cells
        ]
        again = {"than": "sum", "better": "pcgrad", "says": "surgery helps"}  # the same, in another order
        ledger.record_grid("made", {**grid.spec, "claims": [again, after]}, places)
    assert [claim["written_before_the_run"] for claim in answers(taskloom)] == [True, False]
    shown = taskloom("claims", "made").stdout
    assert "before the run" in shown
    assert "afterwards" in shown


def test_a_claim_that_another_table_made_before_was_written_before(taskloom: Invoke, tmp_path: Path) -> None:
    record(tmp_path / "r", ROWS, claims=[BETTER])
    with Ledger.open(tmp_path / "r", create=False) as ledger:
        grid = ledger.grid("made")
        places = [
            PlannedCell(place.cell.id, place.label, place.seed, "finished", place.cell.spec, {}) for place in grid.cells
        ]
        ledger.record_grid("another", grid.spec, places)
    assert [claim["written_before_the_run"] for claim in answers(taskloom, "another")] == [True]


def test_a_row_is_not_compared_with_itself_under_another_label(taskloom: Invoke, tmp_path: Path) -> None:
    record(tmp_path / "r", ROWS)
    with Ledger.open(tmp_path / "r", create=False) as ledger:
        grid = ledger.grid("made")
        places = [
            PlannedCell(place.cell.id, label, place.seed, "finished", place.cell.spec, {})
            for place in grid.cells
            for label in ([place.label, "again"] if place.label == "sum" else [place.label])
        ]
        claims = [BETTER, {"better": "again", "than": "sum"}]
        ledger.record_grid("twice", {**grid.spec, "claims": claims}, places)
    assert "1 claim about rows that cannot be compared; both are one and the same run here." in (
        taskloom("claims", "twice").stdout
    )


def test_what_was_published_stands_beside_what_was_found(taskloom: Invoke, tmp_path: Path) -> None:
    rows = [replace(ROWS[0], reported={"sst": 0.5}), replace(ROWS[1], reported={"sst": 0.625}), ROWS[2]]
    about = [{"better": "pcgrad", "than": "sum", "on": column} for column in ("sst", "sts")]
    record(tmp_path / "r", rows, claims=[*about, {"better": "mean", "than": "sum", "on": "sst"}])
    assert [claim["reported"] for claim in answers(taskloom)] == [0.125, None, None]
    assert "+0.125" in taskloom("claims", "made").stdout


def test_a_claim_that_cannot_be_answered_costs_the_others_nothing(taskloom: Invoke, tmp_path: Path) -> None:
    broken = {("mean", seed): "it broke" for seed in range(3)}
    both = [BETTER, {"better": "sum", "than": "pcgrad", "on": "sst"}]
    record(tmp_path / "r", ROWS, failed=broken, claims=[*both, {"better": "mean", "than": "sum"}])
    shown = taskloom("claims", "made").stdout
    assert "corrected for 2 claims" in shown
    assert "Not answered: 1 claim about rows that cannot be compared; " in shown
    found = answers(taskloom)
    record(tmp_path / "r", ROWS, name="two", failed=broken, claims=both)
    alone = answers(taskloom, "two")
    assert [claim["p"] for claim in found[:2]] == [claim["p"] for claim in alone]


@pytest.mark.parametrize("command", ["claims", "effects", "seeds"])
def test_without_a_finished_cell_there_is_a_sentence_and_no_number(
    taskloom: Invoke, tmp_path: Path, command: str
) -> None:
    waiting = [(row.label, seed) for row in ROWS for seed in range(3)]
    record(tmp_path / "r", ROWS, unfinished=waiting, claims=[BETTER], baseline="sum")
    done = taskloom(command, "made")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "taskloom cells made" in done.stderr


def test_a_claim_about_a_row_without_a_finished_seed_is_open_and_says_why(taskloom: Invoke, tmp_path: Path) -> None:
    broken = {("pcgrad", seed): "it broke" for seed in range(3)}
    record(tmp_path / "r", ROWS, failed=broken, claims=[BETTER], baseline="sum")
    (claim,) = answers(taskloom)
    assert (claim["answer"], claim["p"], claim["interval"], claim["more_seeds"]) == ("open", None, None, None)
    assert "no finished seed" in taskloom("claims", "made").stdout
    assert "no finished seed" in taskloom("seeds", "made").stdout


@pytest.mark.parametrize("command", ["claims", "effects", "seeds"])
def test_one_seed_is_about_models_and_not_about_methods(taskloom: Invoke, tmp_path: Path, command: str) -> None:
    rows = [ROWS[0], Row("pcgrad", 1.6, set={"stages.0.combiner": "pcgrad"})]
    record(tmp_path / "r", rows, seeds=(4,), claims=[BETTER], baseline="sum")
    done = taskloom(command, "made")
    assert done.exit_code == 0, done.stderr
    assert "not about their methods" in done.stdout


def test_what_cannot_be_compared_is_refused(taskloom: Invoke, tmp_path: Path) -> None:
    record(tmp_path / "r", ROWS)
    assert "makes no claims" in taskloom("claims", "made").stdout
    for arguments, fact in {
        ("seeds", "made"): "no baseline",
        ("seeds", "made", "--on", "stst"): "'sts'",
        ("effects", "made", "--on", "seconds"): "'seconds'",
        ("effects", "amde"): "'made'",
    }.items():
        done = taskloom(*arguments)
        assert (done.exit_code, done.stdout) == (2, "")
        assert fact in done.stderr
    assert "no effect can be estimated" in taskloom("effects", "made").stdout


def test_queued_seeds_are_written_down_until_the_grid_is_run(taskloom: Invoke, tmp_path: Path) -> None:
    record(tmp_path / "r", [Row("sum", 1.0, 0.2), Row("pcgrad", 1.2, 0.2)], baseline="sum")
    (comparison,) = json.loads(taskloom("seeds", "made", "--json").stdout)["comparisons"]
    assert comparison["verdict"] == "open"
    with Ledger.open(tmp_path / "r", create=False) as ledger:
        assert ledger.grid("made").queued == 0
        shown = taskloom("seeds", "made", "--queue").stdout
        grid = ledger.grid("made")
        assert grid.queued == comparison["more_seeds"] > 0
        assert f"adds {grid.queued} seed" in shown
        ledger.record_grid("made", grid.spec, [])
        assert ledger.grid("made").queued == 0


def test_test_scores_costs_and_looks_are_kept(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "r", create=True) as ledger:
        ledger.record_grid("g", {}, [PlannedCell("aa", "row", 0, "new", SPEC, {})])
        ledger.write(Event("started", "aa", {}))
        end = {"scores": {"sst": 0.5}, "test": {"sst": 0.25}, "costs": {"examples": 64, "backwards": 8}}
        ledger.write(Event("finished", "aa", end))
        cell = ledger.cell("aa")
        assert (cell.test, cell.costs) == ({"sst": 0.25}, {"examples": 64, "backwards": 8})
        assert [ledger.add_look("g") for _ in range(3)] == [1, 2, 3]


LIGHT = """
import sys
from taskloom.runs.cli import cli
try:
    cli(sys.argv[1:])
except SystemExit as end:
    assert end.code == 0, end.code
assert "torch" not in sys.modules
"""


@pytest.mark.parametrize("command", ["claims", "effects", "seeds"])
def test_no_torch_is_imported(tmp_path: Path, command: str) -> None:
    registry = record(tmp_path / "r", ROWS, claims=[BETTER], baseline="sum")
    arguments = [command, "made", "--registry", str(registry)]
    done = subprocess.run([sys.executable, "-c", LIGHT, *arguments], capture_output=True, encoding="utf-8", timeout=120)
    assert done.returncode == 0, done.stderr
