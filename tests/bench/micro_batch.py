"""What batches in parts save and cost: live tensors and time of one step for several micro-batches.

    python tests/bench/micro_batch.py

MiniLM on generated pairs, batch 64: ``mse`` on the cosine (parts added up) and ``mnr`` (cached vectors and a second
forward pass). "peak" is the largest resident size of a process of its own, less that of one which steps with a single
example: what the batch itself takes. Exits with 1 where an eighth of the batch takes more than half of the whole.
"""

import argparse
import json
import sys
import tempfile
import time
from typing import Any

import numpy as np
from steps import ask, build

from taskloom.core import TaskBatch
from taskloom.runs.training.machine import keep_freed_memory, peak_memory
from taskloom.runs.training.optimize import GroupStep

BATCH = 64
LOSSES: dict[str, Any] = {"mse": "mse", "mnr": {"name": "mnr", "positive_from": 3}}


def measure(loss: str, rows: int, micro: int, steps: int) -> dict[str, float]:
    """Peak bytes of this process and seconds of a step."""
    keep_freed_memory()
    data = {"name": "generated", "task": "similarity", "size": BATCH, "dev_size": 2}
    task = {"data": data, "head": "cosine", "loss": LOSSES[loss], "metric": "pearson"}
    stage = {"micro_batch": micro}
    with tempfile.TemporaryDirectory() as folder:
        encoder = {"name": "minbert", "weights": "minilm"}
        run, (state,) = build({"encoder": encoder, "tasks": {"t": task}, "stages": [stage]}, folder)
        step = GroupStep((TaskBatch("t", np.arange(rows)),), run, state)
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
    worst = 0.0
    for loss in LOSSES:
        least, whole, half, eighth = (
            ask(__file__, "--steps", given.steps, "--one", loss, rows, micro)
            for rows, micro in ((1, 1), (BATCH, BATCH), (BATCH, BATCH // 2), (BATCH, BATCH // 8))
        )
        for micro, found in ((BATCH, whole), (BATCH // 2, half), (BATCH // 8, eighth)):
            more = found["peak"] - least["peak"]
            ratio = more / (whole["peak"] - least["peak"])
            facts = {"loss": loss, "micro_batch": micro, "MiB over one example": round(more / 2**20)}
            times = {"ratio": round(ratio, 3), "time": round(found["seconds"] / whole["seconds"], 2)}
            print(json.dumps({**facts, **times}), flush=True)
        worst = max(worst, ratio)
    sys.exit(int(worst > 0.5))


if __name__ == "__main__":
    main()
