"""What it costs to plan: checking a grid of 1,000 cells from its file to its plan.

    python tests/bench/planning.py [--cells 1000]

Everything that `taskloom plan` does once torch is imported: expansion, every option of every component, the data sets,
the identity of every cell.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from taskloom.registry.catalogue import load_catalogue
from taskloom.runs.grid import load_grid
from taskloom.runs.plan import make_plan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=1000)
    cells: int = parser.parse_args().cells
    grid = {
        "base": "quickstart",
        "axes": {
            "stages.0.combiner": ["sum", "pcgrad"],
            "stages.0.optimizer.lr": [1e-3 + place / 1e6 for place in range(cells // 10)],
        },
        "seeds": [0, 1, 2, 3, 4],
    }
    load_catalogue()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "many.json"
        path.write_text(json.dumps(grid))
        began = time.perf_counter()
        plan = make_plan(load_grid(str(path)), load_catalogue(), None)
        print(f"{len(plan.cells)} cells planned in {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    main()
