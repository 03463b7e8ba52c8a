"""The row that ran out of memory in the paper: peak memory of SMART with GSE against the plain ``sum`` cell.

    python tests/bench/smart_gse_memory.py --data ../shared/data/cs224n

MiniLM with SST, Quora and STS, batch 8 each, dropout on, AdamW, the same batches for every cell. Peak memory is the
largest resident size of a process of its own for each cell. Exits with 1 where a ratio is above 1.3.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from taskloom.core import Event, Job
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.runs.training.machine import peak_memory
from taskloom.runs.training.optimize import GroupStep
from taskloom.runs.training.stage import StageState
from taskloom.runs.training.train import Run

#: Label → combiner, and whether losses are wrapped in SMART with the paper's values.
CELLS: dict[str, tuple[dict[str, Any], bool]] = {
    "sum": ({"name": "sum"}, False),
    "GSE": ({"name": "gse"}, False),
    "SMART w/ sum": ({"name": "sum"}, True),
    "SMART w/ GSE": ({"name": "gse", "second": "fresh"}, True),
    "SMART w/ GSE, kept": ({"name": "gse", "second": "kept"}, True),
}
MOST = 1.3


def spec_of(data: str, label: str) -> dict[str, Any]:
    combiner, smart = CELLS[label]

    def task(name: str, loss: str, **rest: Any) -> dict[str, Any]:
        wrapped = {"name": "smart", "loss": loss, "weight": 5.0, "step": 1e-3, "epsilon": 1e-5, "noise": 1e-5}
        return {"data": {"name": "cs224n", "task": name, "dir": data}, "loss": wrapped if smart else loss, **rest}

    pair = {"name": "linear", "reads": "pair"}
    run = {
        "encoder": {"name": "minbert", "weights": "minilm"},
        "tasks": {
            "sst": task("sst", "cross_entropy"),
            "para": task("para", "binary_cross_entropy", head=pair),
            "sts": task("sts", "mse", head=pair, metric="pearson"),
        },
        "stages": [{"combiner": combiner}],
    }
    resolved, problems = load_catalogue().resolve_run(run)
    if problems:
        sys.exit("\n".join(map(str, problems)))
    return resolved


def ignore(event: Event) -> None:
    pass


def peak(data: str, label: str, steps: int) -> int:
    """Peak bytes of this process after some steps of a cell."""
    spec = spec_of(data, label)
    with tempfile.TemporaryDirectory() as folder:
        run = Run.build(Job("bench", "bench", 0, spec, folder), ignore, load_catalogue())
        run.model.freeze_encoder(False)
        state = StageState.build(run, 0, spec["stages"][0], tuple(spec["tasks"]))
        run.model.train()
        shared = run.model.shared_parameters()
        for _, group in zip(range(steps), state.sampler.epoch(), strict=False):
            step = GroupStep(
                group,
                model=run.model,
                feeds=run.train,
                shared=shared,
                trained=state.trained,
                optimizer=state.optimizer,
                clip=None,
            )
            state.combiner.update(step)
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
        command = [sys.executable, str(Path(__file__)), "--data", given.data, "--steps", str(given.steps)]
        done = subprocess.run([*command, "--cell", label], check=True, capture_output=True, text=True)
        peaks[label] = int(done.stdout)
        ratio = round(peaks[label] / peaks["sum"], 3)
        print(json.dumps({"cell": label, "peak MiB": round(peaks[label] / 2**20), "ratio": ratio}), flush=True)
    sys.exit(int(any(found > MOST * peaks["sum"] for found in peaks.values())))


if __name__ == "__main__":
    main()
