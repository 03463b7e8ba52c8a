"""What batches in parts save and cost: live tensors and time of one step for several micro-batches.

    python tests/bench/micro_batch.py

MiniLM on generated pairs, batch 64: ``mse`` on the cosine (parts added up) and ``mnr`` (cached vectors and a second
forward pass). "peak" is the largest resident size of a process of its own, less that of one which steps with a single
example: what the batch itself takes. Exits with 1 where an eighth of the batch takes more than half of the whole.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from taskloom.core import Event, Job, TaskBatch
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.runs.training.machine import keep_freed_memory, peak_memory
from taskloom.runs.training.optimize import GroupStep
from taskloom.runs.training.stage import StageState
from taskloom.runs.training.train import Run

BATCH = 64
LOSSES: dict[str, Any] = {"mse": "mse", "mnr": {"name": "mnr", "positive_from": 3}}


def ignore(event: Event) -> None:
    pass


def measure(loss: str, rows: int, micro: int, steps: int) -> dict[str, float]:
    """Peak bytes of this process and seconds of a step."""
    keep_freed_memory()
    data = {"name": "generated", "task": "similarity", "size": BATCH, "dev_size": 2}
    task = {"data": data, "head": "cosine", "loss": LOSSES[loss], "metric": "pearson"}
    run = {"encoder": {"name": "minbert", "weights": "minilm"}, "tasks": {"t": task}}
    spec, problems = load_catalogue().resolve_run(run)
    if problems:
        sys.exit("\n".join(map(str, problems)))
    with tempfile.TemporaryDirectory() as folder:
        built = Run.build(Job("bench", "bench", 0, spec, folder), ignore, load_catalogue())
        state = StageState.build(built, 0, spec["stages"][0], ("t",))
        built.model.train()
        step = GroupStep(
            (TaskBatch("t", np.arange(rows)),),
            model=built.model,
            feeds=built.train,
            shared=built.model.shared_parameters(),
            trained=state.trained,
            optimizer=state.optimizer,
            clip=None,
            micro_batch=micro,
        )
        seconds = []
        for _ in range(steps):
            began = time.perf_counter()
            state.combiner.update(step)
            seconds.append(time.perf_counter() - began)
    return {"peak": peak_memory(), "seconds": min(seconds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        loss, rows, micro = given.one
        print(json.dumps(measure(loss, int(rows), int(micro), given.steps)))
        return

    def ask(loss: str, rows: int, micro: int) -> dict[str, float]:
        command = [
            sys.executable,
            str(Path(__file__)),
            "--steps",
            str(given.steps),
            "--one",
            loss,
            str(rows),
            str(micro),
        ]
        found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        return found

    worst = 0.0
    for loss in LOSSES:
        least, whole = ask(loss, 1, 1)["peak"], ask(loss, BATCH, BATCH)
        for micro in (BATCH, BATCH // 2, BATCH // 8):
            found = whole if micro == BATCH else ask(loss, BATCH, micro)
            ratio = (found["peak"] - least) / (whole["peak"] - least)
            facts = {"loss": loss, "micro_batch": micro, "MiB over one example": round((found["peak"] - least) / 2**20)}
            times = {"ratio": round(ratio, 3), "time": round(found["seconds"] / whole["seconds"], 2)}
            print(json.dumps({**facts, **times}), flush=True)
        worst = max(worst, ratio)
    sys.exit(int(worst > 0.5))


if __name__ == "__main__":
    main()
