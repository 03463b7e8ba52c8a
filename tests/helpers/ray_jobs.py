"""What the tests of the Ray engine have in common."""

import os
from pathlib import Path
from typing import Any

from taskloom.core import Emit, Event, Job

RAW: dict[str, Any] = {
    "base": {
        "encoder": {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 256},
        "tasks": {"sst": {"data": {"name": "generated", "task": "sentiment", "size": 200, "dev_size": 32}}},
        "stages": [{"epochs": 4, "optimizer": {"lr": 0.001}, "sampler": {"name": "round_robin", "batch_size": 4}}],
    },
    "axes": {},
    "seeds": [0, 1, 2],
}


def work(job: Job, emit: Emit) -> None:
    """What an engine runs: the device fails, memory runs out, or all is well."""
    emit(Event("started", job.cell, {"device": job.device, "environment": dict(os.environ)}))
    if job.spec["do"] == "device":
        raise RuntimeError("CUDA error: device-side assert triggered\nand more")
    if job.spec["do"] == "memory":
        raise MemoryError
    emit(Event("finished", job.cell))


def job(folder: Path, number: int = 0, **spec: Any) -> Job:
    made = Job(f"c{number}", f"c{number}", 0, spec, str(folder), attempt=7, micro_batch=4)
    (folder / "cells" / made.cell).mkdir(parents=True, exist_ok=True)
    return made
