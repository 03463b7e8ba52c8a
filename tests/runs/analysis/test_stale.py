"""A table says which of its rows the grid would run otherwise now, and only those; without torch."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from taskloom.runs import Grid
from taskloom.runs.cli import cli

Install = Callable[..., None]
DATA = {"name": "table", "train": "t.csv", "dev": "d.csv", "text": "text", "label": "y", "classes": 2}
GRID: dict[str, Any] = {
    "base": {
        "encoder": {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 64},
        "tasks": {"sst": {"data": DATA}},
        "stages": [{"epochs": 1}],
    },
    "axes": {"stages.0.combiner": ["sum", "mean"]},
    "baseline": "sum",
    "claims": [{"says": "mean is better", "better": "mean", "than": "sum"}],
}
LOSS = '''
from torch.nn.functional import cross_entropy
from taskloom.core import Loss, hookimpl

class Sharp(Loss):
    """Cross-entropy."""
    name, expects = "sharp", "classes"
    def forward(self, prediction, target):
        return cross_entropy(prediction.score * 2, target)

@hookimpl
def taskloom_components():
    return [Sharp]
'''


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for file in ("t.csv", "d.csv"):
        Path(file).write_text("text,y\n" + "".join(f"word {number},{number % 2}\n" for number in range(16)))
    return tmp_path


def written(grid: dict[str, Any]) -> dict[str, Any]:
    Path("mine.json").write_text(json.dumps(grid))
    return grid


def taskloom(*arguments: str) -> Result:
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    return done


def stale_line(*arguments: str) -> str:
    lines = [line for line in taskloom(*arguments).output.splitlines() if line.startswith("Stale")]
    assert len(lines) <= 1
    return lines[0] if lines else ""


def test_nothing_is_stale_after_a_run(home: Path) -> None:
    written(GRID)
    Grid("mine.json").run(engine="inline", progress=False)
    for command in (("table", "mine"), ("table", "mine.json"), ("claims", "mine"), ("report", "mine")):
        assert stale_line(*command) == ""


def test_changed_data_make_all_rows_that_read_them_stale(home: Path) -> None:
    written(GRID)
    Grid("mine.json").run(engine="inline", progress=False)
    with Path("t.csv").open("a") as file:
        file.write("one more,1\n")
    line = "Stale, not what the grid would run now: 'sum' and 'mean' (the data of sst changed)."
    for command in (("table", "mine"), ("claims", "mine.json"), ("report", "mine"), ("effects", "mine")):
        assert stale_line(*command).startswith(line)
    assert "the data of sst changed" in Path("report.html").read_text()
    assert any(check.startswith(line) for check in Grid("mine.json").table().checks)
    hidden = Grid("mine.json").table(stale="hide")
    assert hidden.found.rows == ()
    assert "Stale and left out: 'sum' and 'mean'" in str(hidden)


def test_rows_of_the_file_that_changed_are_stale_and_no_others(home: Path) -> None:
    written(GRID)
    Grid("mine.json").run(engine="inline", progress=False)
    written({**GRID, "seeds": [0, 1], "baseline": "mean", "description": "No row is another run."})
    assert stale_line("table", "mine") == ""
    written({**GRID, "axes": {"stages.0.combiner": ["sum", "pcgrad"]}})
    line = "Stale, not what the grid would run now: 'mean' (the grid's file states another run)."
    assert stale_line("table", "mine").startswith(line)
    assert stale_line("table", "mine.json").startswith(line)
    assert "(the grid's file states another run)" in stale_line("compare", "sum", "mean", "--grid", "mine.json")
    table = json.loads(taskloom("table", "mine", "--stale", "hide", "--format", "json").stdout)
    assert [row["label"] for row in table["rows"]] == ["sum"]
    assert "'mean' is stale and left out" in taskloom("claims", "mine", "--stale", "hide").stdout
    Path("mine.json").write_text("{")  # it cannot be read: nothing is known of its rows
    assert stale_line("table", "mine") == ""


def test_a_changed_plugin_makes_its_rows_stale(home: Path, install: Install) -> None:
    install("sharp", LOSS)
    cells = [{"label": "sharp", "set": {"tasks.sst.loss": "sharp"}}, {"label": "plain", "set": {}}]
    written({"base": GRID["base"], "cells": cells, "baseline": "plain"})
    Grid("mine.json").run(engine="inline", progress=False)
    assert stale_line("table", "mine") == ""
    install(
        "sharp", LOSS.replace("        return cross", "        # Twice as sharp.\n        return cross"), version="1.3"
    )
    assert stale_line("table", "mine") == ""  # a comment changes no result
    install("sharp", LOSS.replace("score * 2", "score * 3"))
    line = "now: 'sharp' (the code of taskloom-sharp changed (taskloom_sharp.py))."
    assert line in stale_line("table", "mine")


DATA_SET = '''
import hashlib
from pathlib import Path
import numpy as np
from taskloom.core import DataSet, Examples, Labels, hookimpl

class Notes(DataSet):
    """A text in each line, with its class before it."""
    name, labels, path_options = "notes", Labels.of_classes(2), frozenset({"file"})
    def __init__(self, *, file: str) -> None:
        self.file = file
    def load(self, split):
        lines = Path(self.file).read_text().splitlines()
        ids = tuple(map(str, range(len(lines))))
        return Examples((tuple(line[2:] for line in lines),), np.array([float(line[0]) for line in lines]), ids)
    def fingerprint(self):
        return hashlib.sha256(Path(self.file).read_bytes()).hexdigest()

@hookimpl
def taskloom_components():
    return [Notes]
'''


def test_changed_data_of_a_plugins_data_set_make_their_rows_stale(home: Path, install: Install) -> None:
    install("notes", DATA_SET)
    Path("notes.txt").write_text("".join(f"{number % 2} word {number}\n" for number in range(16)))
    data = {"name": "notes", "file": "notes.txt"}
    cells = [{"label": "theirs", "set": {"tasks.sst.data": data}}, {"label": "ours", "set": {}}]
    written({"base": GRID["base"], "cells": cells, "baseline": "ours"})
    Grid("mine.json").run(engine="inline", progress=False)
    assert stale_line("table", "mine") == ""
    with Path("notes.txt").open("a") as file:
        file.write("1 one more\n")
    assert "now: 'theirs' (the data of sst changed)." in stale_line("table", "mine")
    Path("notes.txt").unlink()  # a fingerprint that fails tells nothing
    assert stale_line("table", "mine") == ""


def test_an_imported_registry_is_not_stale_where_its_data_and_plugins_are_not(
    home: Path, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("sharp", LOSS)
    base = {**GRID["base"], "tasks": {"sst": {"data": DATA, "loss": "sharp"}}}
    written({**GRID, "base": base})
    Grid("mine.json").run(engine="inline", progress=False)
    taskloom("archive", "mine", "out.zip")
    elsewhere = home / "elsewhere"
    elsewhere.mkdir()
    for file in ("t.csv", "d.csv"):  # others of the same names
        (elsewhere / file).write_text("text,y\na,0\nb,1\n")
        (home / file).unlink()
    monkeypatch.chdir(elsewhere)
    taskloom("import", "../out.zip")
    assert stale_line("table", "mine") == ""
    assert stale_line("table", "mine", "--registry", "../taskloom-runs") == ""


def test_no_torch_is_imported_to_find_stale_rows(home: Path) -> None:
    written(GRID)
    Grid("mine.json").run(engine="inline", progress=False)
    written({**GRID, "axes": {"stages.0.combiner": ["sum", "pcgrad"]}})
    Path("t.csv").unlink()
    code = (
        "import sys; from taskloom.runs import Grid; print(Grid('mine.json').table().checks[0]); "
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Stale, not what the grid would run now: 'mean'")
