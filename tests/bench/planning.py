"""A grid of many cells and what it costs to plan it; ``runner.py`` prints the figure."""

import json
import tempfile
import time
from pathlib import Path

from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.runs.grid.grid import load_grid
from taskloom.runs.grid.plan import Plan, make_plan

SEEDS = 5


def plan_many(cells: int, *, trials: bool = False) -> tuple[Plan, float, float]:
    """A plan of about that many cells, or trials of ten rows, the seconds it took, and this process's seconds of CPU.

    Everything that ``taskloom plan`` does once torch is imported: expansion, every option of every component, the data
    sets, the identity of every cell.
    """
    grid = {
        "base": "quickstart",
        "axes": {
            "stages.0.combiner": ["sum", "pcgrad"],
            "stages.0.optimizer.lr": [1e-3 + place / 1e6 for place in range(max(1, cells // (2 * SEEDS)))],
        },
        "seeds": list(range(SEEDS)),
    }
    if trials:
        search = {"over": {"stages.0.optimizer.lr": {"log": [1e-5, 1e-2]}}, "trials": max(1, cells // 10)}
        decays = [number / 1e3 for number in range(10)]
        grid |= {"axes": {"stages.0.optimizer.weight_decay": decays}, "seeds": [0], "search": search}
    load_catalogue()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "many.json"
        path.write_text(json.dumps(grid))
        began, cpu = time.perf_counter(), time.process_time()
        plan = make_plan(load_grid(str(path)), load_catalogue(), None)
        return plan, time.perf_counter() - began, time.process_time() - cpu
