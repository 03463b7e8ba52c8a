"""The registry beside a grid's file is used where there is no other."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from recorded import Row, record

from taskloom.core.errors import TaskloomError
from taskloom.registry.results.ledger import Ledger
from taskloom.runs import Grid
from taskloom.runs.cli import cli

GRID = {"name": "mine", "base": "quickstart", "axes": {"stages.0.combiner": ["sum", "pcgrad"]}}


def taskloom(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "ws").mkdir()
    (tmp_path / "here").mkdir()
    (tmp_path / "ws" / "mine.json").write_text(json.dumps(GRID))
    record(tmp_path / "ws" / "taskloom-runs", [Row("sum"), Row("pcgrad")], name="mine")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def test_it_is_used_with_a_note_where_none_is_named_and_none_is_here(home: Path) -> None:
    note = "The registry is ../ws/taskloom-runs, beside the grid; --registry names another."
    for command in ("table", "claims", "effects", "cells", "report"):
        done = taskloom(command, "../ws/mine.json")
        assert done.exit_code == 0, done.output
        assert note in done.stderr
    assert taskloom("compare", "sum", "pcgrad", "--grid", "../ws/mine.json").exit_code == 0
    assert taskloom("archive", "../ws/mine.json", "-o", "out.zip").exit_code == 0
    assert not Path("taskloom-runs").exists()


def test_a_plan_names_the_one_that_it_does_not_use(home: Path) -> None:
    note = "The registry beside the grid, ../ws/taskloom-runs, is not used here; --registry ../ws/taskloom-runs does"
    assert note in taskloom("plan", "../ws/mine.json").stderr
    assert "beside the grid" not in taskloom("plan", "../ws/mine.json", "--registry", "../ws/taskloom-runs").stderr
    assert "beside the grid" not in taskloom("validate", "../ws/mine.json").stderr


def test_one_that_is_named_or_here_comes_first_and_the_error_names_the_other(home: Path) -> None:
    named = taskloom("table", "../ws/mine.json", "--registry", "none")
    assert named.exit_code == 2
    assert "The registry is" not in named.stderr
    record(Path("taskloom-runs"), [Row("sum")], name="other")
    here = taskloom("table", "../ws/mine.json")
    assert here.exit_code == 2
    assert "(run there so far: other); --registry ../ws/taskloom-runs has it" in here.stderr
    assert "The registry is" not in here.stderr
    with pytest.raises(TaskloomError, match=r"--registry \.\./ws/taskloom-runs has it"):
        Grid("../ws/mine.json").table()
    shutil.rmtree(home / "ws" / "taskloom-runs")
    Ledger.open(home / "ws" / "taskloom-runs", create=True).close()
    assert "has it" not in taskloom("table", "../ws/mine.json").stderr
