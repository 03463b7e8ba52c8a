"""What a shell does to a command: closed and full outputs, folders that are not there, plugins that talk."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

GRID: dict[str, Any] = {
    "base": {
        "encoder": {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 64},
        "tasks": {"sst": {"data": {"name": "generated", "task": "sentiment", "size": 16, "dev_size": 8}}},
        "stages": [{"epochs": 1}],
    }
}


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(GRID))
    return path


def shell(command: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    text = command.replace("taskloom", f"{sys.executable} -m taskloom.runs.cli", 1)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(
        ["bash", "-c", text], cwd=folder, capture_output=True, encoding="utf-8", timeout=300, env=environment
    )


def test_output_that_goes_nowhere_is_not_a_failure(grid: Path) -> None:
    run = shell("taskloom run mine.json >&- 2>&-", grid.parent)
    assert run.returncode == 0
    table = shell("taskloom table mine.json >&-", grid.parent)
    assert (table.returncode, table.stderr) == (0, "")
    full = shell("taskloom table mine.json > /dev/full", grid.parent)
    assert full.returncode == 2
    assert "cannot be written: No space left on device" in full.stderr
    assert "Traceback" not in full.stderr


@pytest.mark.parametrize("source", ["~nobody-of-that-name/grid.json", "x" * 300, "quickstrat", "/dev/null/x.json"])
@pytest.mark.parametrize("command", ["validate", "table"])
def test_a_grid_that_is_not_there(tmp_path: Path, command: str, source: str) -> None:
    (tmp_path / "taskloom-runs").mkdir()
    found = shell(f"taskloom {command} '{source}'", tmp_path)
    assert found.returncode == 2
    assert "Traceback" not in found.stderr


def test_what_a_plugin_prints_is_not_part_of_the_answer(grid: Path) -> None:
    site = grid.parent / "site"
    (site / "noisy-1.dist-info").mkdir(parents=True)
    (site / "noisy-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: noisy\nVersion: 1\n")
    (site / "noisy-1.dist-info" / "entry_points.txt").write_text("[taskloom]\nnoisy = noisy\n")
    (site / "noisy.py").write_text(
        "from torch.nn.functional import cross_entropy\n"
        "from taskloom.core import Loss, hookimpl\n"
        "class Noisy(Loss):\n"
        '    """Talks."""\n'
        "    name, expects = 'noisy', 'classes'\n"
        "    def __init__(self) -> None:\n"
        "        super().__init__(); print('constructing')\n"
        "    def forward(self, prediction, target):\n"
        "        print('forward'); return cross_entropy(prediction.score, target)\n"
        "@hookimpl\n"
        "def taskloom_components(): return [Noisy]\n"
    )
    spec = json.loads(json.dumps(GRID))
    spec["base"]["tasks"]["sst"]["loss"] = "noisy"
    grid.write_text(json.dumps(spec))
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    plan = shell("taskloom plan mine.json --json", grid.parent, PYTHONPATH=path)
    assert len(json.loads(plan.stdout)["cells"]) == 1
    run = shell("taskloom run mine.json --format json", grid.parent, PYTHONPATH=path)
    assert json.loads(run.stdout)[0]["n"] == 1
    assert "forward" in run.stderr
