"""The grid that the README begins with: what a newcomer sees must be worth seeing."""

import json
import subprocess
import sys
from pathlib import Path

from taskloom.registry.results.ledger import Ledger

#: What every cell must reach: guessing gives 0.2 (five balanced classes), 0.5 (two) and 0 (a correlation).
REACHED = {"sst": 0.5, "para": 0.62, "sts": 0.3}


def test_every_task_of_every_cell_is_clearly_above_chance(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "taskloom.runs.cli", "run", "quickstart", "--format", "json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, encoding="utf-8", timeout=540)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [row["n"] for row in rows] == [3, 3, 3, 3]
    assert {row["label"] for row in rows} >= {"sum", "pcgrad", "cosine loss"}
    for row in rows:
        for task in (*REACHED, "overall"):
            assert set(row["metrics"][task]) >= {"mean", "sd"}
    with Ledger.open(tmp_path / "taskloom-runs", create=False) as ledger:
        cells = ledger.grid("quickstart").cells
    for place in cells:
        for task, reached in REACHED.items():
            assert place.cell.scores[task] > reached, (place.label, place.seed, task)
