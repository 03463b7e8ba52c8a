"""What the benchmarks of training steps share: runs stepped by hand, and figures from a process of their own."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from taskloom.core import Job
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.runs.training.cell import Run
from taskloom.runs.training.stage import StageState


def course_run(data: str, combiners: list[Any], wrap: Callable[[str], Any] = lambda loss: loss) -> dict[str, Any]:
    """MiniLM with SST, Quora and STS, and one stage per combiner; ``wrap`` makes a loss of another."""

    def task(name: str, loss: str, **rest: Any) -> dict[str, Any]:
        return {"data": {"name": "cs224n", "task": name, "dir": data}, "loss": wrap(loss), **rest}

    pair = {"name": "linear", "reads": "pair"}
    return {
        "encoder": {"name": "minbert", "weights": "minilm"},
        "tasks": {
            "sst": task("sst", "cross_entropy"),
            "para": task("para", "binary_cross_entropy", head=pair),
            "sts": task("sts", "mse", head=pair, metric="pearson"),
        },
        "stages": [{"combiner": combiner} for combiner in combiners],
    }


def build(run: dict[str, Any], folder: str) -> tuple[Run, list[StageState]]:
    """A run in training mode, and its stages."""
    spec, problems = load_catalogue().resolve_run(run)
    if problems:
        sys.exit("\n".join(map(str, problems)))
    built = Run.build(Job("bench", "bench", 0, spec, folder), lambda event: None, load_catalogue())
    built.model.freeze_encoder(False)
    built.model.train()
    return built, [StageState.build(built, index) for index in range(len(spec["stages"]))]


def ask(file: str, *arguments: object) -> Any:
    """What a benchmark prints, as JSON, in a process of its own."""
    command = [sys.executable, file, *map(str, arguments)]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
