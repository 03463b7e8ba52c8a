"""A cell that the system kills because memory ran out is tried with fewer examples, whatever its sampler is."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from taskloom.plugins.engines import local as local_engine
from taskloom.registry.results.ledger import Ledger
from taskloom.runs import Grid

#: A sampler without the option ``batch_size``, and a loss that the system kills for more than two examples at a time.
PLUGIN = """
import os, signal
from pathlib import Path
import numpy as np
from torch.nn.functional import cross_entropy
from taskloom.core import Loss, Sampler, TaskBatch, hookimpl

class Slices(Sampler):
    \"\"\"Slices of six rows, in the order of the data.\"\"\"
    name, steps = "slices", 2

    def __init__(self) -> None:
        self.done = 0

    def prepare(self, pools, *, generator, epochs=1):
        self.tasks = tuple(pools)

    def epoch(self):
        while self.done < self.steps:
            self.done += 1
            yield tuple(TaskBatch(task, np.arange(6) + 6 * (self.done - 1)) for task in self.tasks)
        self.done = 0

    def state_dict(self):
        return {"done": self.done}

    def load_state_dict(self, state):
        self.done = state["done"]

class Greedy(Loss):
    \"\"\"Cross-entropy that takes all memory for more than two examples.\"\"\"
    name, expects, separable = "greedy", "classes", True

    def __init__(self) -> None:
        super().__init__()

    def forward(self, prediction, target):
        if len(target) > 2:
            counter = Path(os.environ["KILLS"])
            counter.write_text(f"oom_kill {int(counter.read_text().split()[1]) + 1}")
            os.kill(os.getpid(), signal.SIGKILL)
        return cross_entropy(prediction.score, target)

@hookimpl
def taskloom_components():
    return [Slices, Greedy]
"""


def test_a_killed_cell_is_tried_with_half_of_what_its_step_had(
    install: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("slices", PLUGIN)
    kills = tmp_path / "kills"
    kills.write_text("oom_kill 0")
    monkeypatch.setenv("KILLS", str(kills))
    monkeypatch.setattr(local_engine, "COUNTERS", [kills])
    data = {"name": "generated", "task": "sentiment", "size": 12, "dev_size": 8}
    encoder = {"name": "minbert", "layers": 1, "width": 8, "heads": 2, "vocabulary": 64}
    base = {
        "encoder": encoder,
        "tasks": {"sst": {"data": data, "loss": "greedy"}},
        "stages": [{"sampler": "slices", "epochs": 1}],
    }
    path = tmp_path / "killed.json"
    path.write_text(json.dumps({"base": base}))
    grid = Grid(str(path), registry=tmp_path / "registry")
    done = grid.run(engine={"name": "local", "workers": 1, "devices": "cpu", "threads": 1}, progress=False)
    with Ledger.open(tmp_path / "registry", create=False) as ledger:
        (cell,) = ledger.cells()
        attempts = [(attempt.how, attempt.micro_batch) for attempt in ledger.attempts(cell.id)]
    assert attempts == [("oom", 6), ("oom", 3), ("finished", 1)], done
