"""What the tests of the Ray engine have in common."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from taskloom.core import Job

RAW: dict[str, Any] = {
    "base": {
        "encoder": {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 256},
        "tasks": {"sst": {"data": {"name": "generated", "task": "sentiment", "size": 400, "dev_size": 32}}},
        "stages": [{"epochs": 4, "optimizer": {"lr": 0.001}, "sampler": {"name": "round_robin", "batch_size": 4}}],
    },
    "axes": {"stages.0.optimizer.lr": {"fast": 0.003, "slow": 0.0003}},
    "seeds": [0, 1],
}


def job(folder: Path, number: int = 0, **spec: Any) -> Job:
    made = Job(f"c{number}", f"c{number}", 0, spec, str(folder), attempt=7, micro_batch=4)
    (folder / "cells" / made.cell).mkdir(parents=True, exist_ok=True)
    return made


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)
