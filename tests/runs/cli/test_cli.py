"""The command line: what each command prints, where, and with which exit code."""

import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from taskloom.core import Event
from taskloom.registry.results.file import FILE
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.cli import cli
from taskloom.runs.cli.plugins import COMPONENT_KINDS
from taskloom.runs.grid.planned import PlannedCell

SPEC = {"tasks": {"sst": {}}, "stages": [{"epochs": 2}, {"epochs": 2}], "seed": 0}
RAW = {"description": "What a test runs.", "base": {"tasks": {"sst": {"data": "generated"}}}, "seeds": [0, 1]}

Invoke = Callable[..., Result]


def planned(id: str, label: str, seed: int = 0, status: str = "new") -> PlannedCell:
    return PlannedCell(id=id, label=label, seed=seed, status=status, spec=SPEC, versions={}, stage_keys=())


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    """A registry with a grid of one finished and one failed cell, and the grid's file beside it."""
    with Ledger.open(tmp_path / "registry", create=True) as ledger:
        known_by = {"source": str(tmp_path / "mine.json")}
        ledger.record_grid("mine", {**RAW, **known_by}, [planned("aa", "sum", 0), planned("bb", "sum", 1)])
        ledger.write(Event("started", "aa", {"device": "cpu"}))
        ledger.write(Event("finished", "aa", {"scores": {"sst": 0.75, "overall": 0.75}, "seconds": 2.5}))
        ledger.write(Event("started", "bb", {}))
        ledger.write(Event("failed", "bb", {"reason": "loss of task 'sst' is not finite"}))
    (tmp_path / "mine.json").write_text(json.dumps(RAW))
    return tmp_path / "registry"


@pytest.fixture
def taskloom(registry: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    monkeypatch.setenv("TASKLOOM_REGISTRY", str(registry))
    return lambda *arguments, **variables: CliRunner().invoke(cli, [*map(str, arguments)], env=variables)


def refused(result: Result) -> str:
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr


# Asking


def test_help_explains_every_command_by_example(taskloom: Invoke) -> None:
    text = taskloom("--help").stdout
    assert "..." not in text.split("Commands:")[1], "a whole sentence each"
    for name in cli.commands:
        assert f"\n  {name} " in text
        assert re.search(rf"Examples:\n    taskloom {name}", taskloom(name, "--help").stdout)
    assert taskloom("--version").stdout.startswith("taskloom, version 0.")


def test_a_misspelt_command_is_recognised(taskloom: Invoke) -> None:
    assert "'table'" in refused(taskloom("tabel"))
    assert "--fromat" in refused(taskloom("table", "mine", "--fromat", "csv"))


LIGHT = """
import sys
from taskloom.runs.cli import cli
try:
    cli(sys.argv[2:])
except SystemExit as end:
    assert end.code == 0, end.code
heavy = set(sys.argv[1].split(",")) & set(sys.modules)
assert not heavy, heavy
"""
JUDGING = "torch,rich"  # which needs numpy
READING = f"{JUDGING},numpy,scipy,pydantic,pydantic_core"
LINES = {
    **dict.fromkeys(("--help", "cells", "cells aa", "grids"), READING),
    **dict.fromkeys(("table mine", "table mine --metric accuracy", "claims mine", "effects mine"), JUDGING),
    "table mine --columns overall,seconds --sort overall": JUDGING,
    "table cosine-surgery --reported": JUDGING,
}


@pytest.mark.parametrize(("line", "heavy"), LINES.items())
def test_commands_that_only_read_are_light(registry: Path, line: str, heavy: str) -> None:
    command = [sys.executable, "-c", LIGHT, heavy, *line.split()]
    environment = {**os.environ, "TASKLOOM_REGISTRY": str(registry)}
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment)
    assert done.returncode == 0, done.stderr


# Reading the ledger


def test_a_grid_is_known_by_name_and_by_path(taskloom: Invoke, registry: Path) -> None:
    path = registry.parent / "mine.json"
    assert taskloom("table", path).stdout == taskloom("table", "mine").stdout
    assert taskloom("table", path).stderr == ""
    path.write_text(json.dumps({**RAW, "seeds": [0, 1, 2]}))
    changed = taskloom("table", path)
    assert changed.exit_code == 0
    assert str(path) in changed.stderr, "it is said that this is the earlier one"
    path.write_text("{")
    assert taskloom("cells", path).stderr


def test_a_grid_that_was_not_run_is_known_by_its_file(taskloom: Invoke, registry: Path) -> None:
    other = registry.parent / "other.json"
    other.write_text("{}")
    assert "'other'" in refused(taskloom("table", other))
    for source in ("~nobody-of-that-name/grid.json", "x" * 5000, "quickstrat", "/dev/null/x.json"):
        for command in ("validate", "table", "cells"):
            refused(taskloom(command, source))


def test_cells_that_left_their_grid_are_still_listed(taskloom: Invoke, registry: Path) -> None:
    with Ledger.open(registry, create=False) as ledger:
        ledger.record_grid("mine", RAW, [planned("aa", "sum")])
    cells = json.loads(taskloom("cells", "--json").stdout)["cells"]
    assert [(cell["id"], cell["grid"]) for cell in cells] == [("aa", "mine"), ("bb", "mine")]
    assert cells[1]["label"].endswith(" (earlier)")


def test_grids_lists_packaged_and_recorded_ones(taskloom: Invoke) -> None:
    found = json.loads(taskloom("grids", "--json").stdout)
    assert "quickstart" in [grid["name"] for grid in found["packaged"]]
    (mine,) = found["recorded"]
    assert (mine["name"], mine["cells"]) == ("mine", {"finished": 1, "failed": 1})


def test_no_registry_is_an_answer(taskloom: Invoke, tmp_path: Path) -> None:
    nowhere = {"TASKLOOM_REGISTRY": str(tmp_path / "nowhere")}
    for command in (["table", "mine"], ["cells"]):
        refused(taskloom(*command, **nowhere))
    assert taskloom("table", "cosine-surgery", "--reported", **nowhere).exit_code == 0
    assert json.loads(taskloom("grids", "--json", **nowhere).stdout)["recorded"] == []
    assert not (tmp_path / "nowhere").exists(), "reading makes nothing"
    refused(taskloom("plan", "quickstart", "--registry", tmp_path / "mine.json"))


def test_a_reader_that_goes_away_is_no_error(registry: Path) -> None:
    with Ledger.open(registry, create=False) as ledger:
        ledger.record_grid("long", {}, [planned(f"c{i}", f"row {i}") for i in range(3000)])
    command = f"set -o pipefail; {sys.executable} -m taskloom.runs.cli table long --registry {registry} | head -c 10"
    done = subprocess.run(["bash", "-c", command], capture_output=True, encoding="utf-8")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_terminal_without_our_signs_still_gets_a_table(registry: Path) -> None:
    command = [sys.executable, "-c", "from taskloom.runs.cli import main; main()", "table", "mine"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "TASKLOOM_REGISTRY": str(registry)}
    done = subprocess.run(command, capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert b"0.750" in done.stdout


# What is installed


def test_plugins_lists_components_of_every_kind_with_their_options(taskloom: Invoke) -> None:
    found = json.loads(taskloom("plugins", "--json").stdout)
    assert {"components", "plugins", "failed", "left_out"} == set(found)
    assert {component["kind"] for component in found["components"]} == set(COMPONENT_KINDS)
    assert all({"name", "plugin", "version", "summary", "options"} <= set(one) for one in found["components"])


# Planning and running

TINY: dict[str, Any] = {
    "base": {
        "encoder": {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 256},
        "tasks": {
            "sst": {"data": {"name": "generated", "task": "sentiment", "size": 64, "dev_size": 32}},
            "sts": {
                "data": {"name": "generated", "task": "similarity", "size": 48, "dev_size": 32},
                "head": "cosine",
                "loss": "mse",
                "metric": "pearson",
            },
        },
        "stages": [{"epochs": 1, "optimizer": {"lr": 0.001}}],
    },
    "axes": {"stages.0.combiner": ["sum", "pcgrad"]},
    "baseline": "sum",
}


def write_grid(folder: Path, **changes: Any) -> Path:
    path = folder / "tiny.json"
    path.write_text(json.dumps({**TINY, **changes}))
    return path


def test_run_plan_and_run_again(taskloom: Invoke, tmp_path: Path) -> None:
    path, results = write_grid(tmp_path), tmp_path / "new" / "results"
    assert json.loads(taskloom("validate", path, "--json").stdout)["valid"] is True
    before = json.loads(taskloom("plan", path, "--registry", results, "--json").stdout)["cells"]
    assert [(cell["label"], cell["status"]) for cell in before] == [("sum", "new"), ("pcgrad", "new")]
    assert before[0]["spec"]["stages"][0]["combiner"]["name"] == "sum"
    assert not results.exists(), "a plan writes nothing"

    result = taskloom("run", path, "--registry", results, "--format", "json")
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)["rows"]  # and nothing else
    assert [(row["label"], row["n"], row["missing"]) for row in rows] == [("sum", 1, []), ("pcgrad", 1, [])]
    assert set(rows[0]["metrics"]) == {"sst", "sts", "overall", "seconds"}

    path = write_grid(tmp_path, seeds=[0, 1])
    after = json.loads(taskloom("plan", path, "--registry", results, "--json").stdout)["cells"]
    assert [(cell["seed"], cell["status"]) for cell in after] == [(0, "finished"), (1, "new")] * 2
    assert [cell["id"] for cell in after][::2] == [cell["id"] for cell in before]
    grown = taskloom("run", path, "--registry", results)
    assert grown.exit_code == 0
    assert "seed 0: started" not in grown.stderr
    assert grown.stderr.count("seed 1: started") == 2
    assert "±" in grown.stdout
    assert taskloom("table", path, "--registry", results).stdout == grown.stdout


def test_a_failed_cell_leaves_a_hole_and_exit_code_1(taskloom: Invoke, registry: Path, tmp_path: Path) -> None:
    lr = {"sound": 0.001, "wild": 1e38}
    path = write_grid(tmp_path, axes={"stages.0.optimizer.lr": lr}, baseline="sound")
    result = taskloom("run", path)
    assert result.exit_code == 1, result.stderr
    assert "— wild, seed 0: failed: " in result.stdout
    assert "Traceback" not in result.stderr
    logs = {cell["label"]: cell["id"] for cell in json.loads(taskloom("cells", path, "--json").stdout)["cells"]}
    sound, wild = ((registry / "cells" / logs[label] / "log.txt").read_text() for label in ("sound", "wild"))
    assert [line[21:30] for line in sound.splitlines()] == ["started o", "epoch 1/1", "finished "]
    assert "Traceback" in wild
    assert "  failed: the " in wild.splitlines()[-1]
    rows = json.loads(taskloom("table", path, "--format", "json").stdout)["rows"]
    assert [(row["label"], row["n"]) for row in rows] == [("sound", 1), ("wild", 0)]
    again = taskloom("run", path, "--no-retry")
    assert again.exit_code == 1
    assert "started" not in again.stderr


def test_all_errors_of_a_request_come_together(taskloom: Invoke, tmp_path: Path) -> None:
    wrong = {**TINY["base"], "encoder": {"name": "minbert", "widht": 3}}
    path, results = write_grid(tmp_path, base=wrong, axes={"stages.0.combiner": ["sum", "pcgard"]}), tmp_path / "none"
    for command in ("run", "plan"):
        message = refused(taskloom(command, path, "--registry", results))
        assert "'width'" in message
        assert "'pcgrad'" in message
    answer = taskloom("validate", path, "--json")
    assert answer.exit_code == 2
    report = json.loads(answer.stdout)
    assert report["valid"] is False
    assert {"encoder.widht", "stages.0.combiner"} <= {error["path"] for error in report["errors"]}
    assert not results.exists(), "a refused request writes nothing"

    assert "'quickstart'" in refused(taskloom("run", "quikstart"))
    large = write_grid(tmp_path, seeds=list(range(20_000)))
    assert "--yes" in refused(taskloom("plan", large))


def test_a_newer_registry_is_refused_by_every_command_that_reads_it(taskloom: Invoke, registry: Path) -> None:
    with closing(sqlite3.connect(registry / FILE)) as database:
        database.execute("PRAGMA user_version = 99")
    for command in (["table", "mine"], ["cells"], ["grids"], ["plan", "quickstart"], ["run", "quickstart"]):
        assert "99" in refused(taskloom(*command))
