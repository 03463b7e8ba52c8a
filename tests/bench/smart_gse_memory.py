"""The row that ran out of memory in the paper: peak memory of SMART with GSE against the plain ``sum`` cell.

    python tests/bench/smart_gse_memory.py --data ../shared/data/cs224n

MiniLM with SST, Quora and STS, batch 8 each, dropout on, AdamW, the same batches for every cell. Peak memory is the
largest resident size of a process of its own for each cell. Exits with 1 where a ratio is above 1.3.
"""

import argparse
import json
import sys
import tempfile
from typing import Any

from steps import ask, build, course_run

from taskloom.runs.training.machine import peak_memory
from taskloom.runs.training.optimize import GroupStep

#: Label → combiner, and whether losses are wrapped in SMART with the paper's values.
CELLS: dict[str, tuple[dict[str, Any], bool]] = {
    "sum": ({"name": "sum"}, False),
    "GSE": ({"name": "gse"}, False),
    "SMART w/ sum": ({"name": "sum"}, True),
    "SMART w/ GSE": ({"name": "gse", "second": "fresh"}, True),
    "SMART w/ GSE, kept": ({"name": "gse", "second": "kept"}, True),
}
MOST = 1.3


def smart(loss: str) -> dict[str, Any]:
    return {"name": "smart", "loss": loss, "weight": 5.0, "step": 1e-3, "epsilon": 1e-5, "noise": 1e-5}


def peak(data: str, label: str, steps: int) -> int:
    """Peak bytes of this process after some steps of a cell."""
    combiner, smoothed = CELLS[label]
    run = course_run(data, [combiner], smart) if smoothed else course_run(data, [combiner])
    with tempfile.TemporaryDirectory() as folder:
        built, (state,) = build(run, folder)
        for _, group in zip(range(steps), state.sampler.epoch(), strict=False):
            state.combiner.update(GroupStep(group, built, state))
    return peak_memory()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with the course's files")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--cell", choices=CELLS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.cell:
        print(peak(given.data, given.cell, given.steps))
        return
    peaks: dict[str, int] = {}
    for label in CELLS:
        peaks[label] = ask(__file__, "--data", given.data, "--steps", given.steps, "--cell", label)
        ratio = round(peaks[label] / peaks["sum"], 3)
        print(json.dumps({"cell": label, "peak MiB": round(peaks[label] / 2**20), "ratio": ratio}), flush=True)
    sys.exit(int(any(found > MOST * peaks["sum"] for found in peaks.values())))


if __name__ == "__main__":
    main()
