"""The grid that the README begins with: what a newcomer sees must be worth seeing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "taskloom.runs.cli"]
#: What guessing gives, and what every cell must reach: five balanced classes, two balanced classes, a correlation.
CHANCE = {"sst": (0.2, 0.5), "para": (0.5, 0.62), "sts": (0.0, 0.3)}


def taskloom(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], cwd=folder, capture_output=True, encoding="utf-8", timeout=540)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quickstart")
    done = taskloom("run", "quickstart", folder=folder)
    assert done.returncode == 0, done.stderr
    assert "pcgrad" in done.stdout
    return folder


def test_every_task_of_every_cell_is_clearly_above_chance(folder: Path) -> None:
    cells = json.loads(taskloom("cells", "quickstart", "--json", folder=folder).stdout)["cells"]
    assert len(cells) == 8
    assert {cell["label"] for cell in cells} >= {"sum", "pcgrad", "cosine loss"}
    for cell in cells:
        for task, (_, reached) in CHANCE.items():
            assert cell["scores"][task] > reached, (cell["label"], cell["seed"], task)


def test_the_table_has_a_row_per_variant_with_mean_and_sd(folder: Path) -> None:
    rows = json.loads(taskloom("table", "quickstart", "--format", "json", folder=folder).stdout)
    assert [row["n"] for row in rows] == [2, 2, 2, 2]
    for row in rows:
        for task in (*CHANCE, "overall"):
            assert set(row["metrics"][task]) >= {"mean", "sd"}


def test_running_again_trains_nothing(folder: Path) -> None:
    plan = json.loads(taskloom("plan", "quickstart", "--json", folder=folder).stdout)
    assert {cell["status"] for cell in plan["cells"]} == {"finished"}
    again = taskloom("run", "quickstart", folder=folder)
    assert again.returncode == 0
    assert "epoch" not in again.stderr
