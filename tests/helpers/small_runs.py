"""Small runs that several tests share: a whole grid in this process, and a run that is stepped by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from taskloom.core import Engine, Event, Job, TaskBatch
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.driver.drive import Outcome, run_plan
from taskloom.runs.grid.grid import load_grid
from taskloom.runs.grid.plan import Plan, make_plan
from taskloom.runs.training.cell import Run
from taskloom.runs.training.optimize import GroupStep
from taskloom.runs.training.stage import StageState

ENCODER = {"name": "minbert", "layers": 1, "width": 8, "heads": 2, "vocabulary": 64}
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}
SMART_AND_RANKED = {"name": "total", "losses": [{"name": "smart", "loss": "binary_cross_entropy"}, "mnr"]}
BATCH = 7


def generated(task: str, size: int = 16, dev_size: int = 8, **rest: Any) -> dict[str, Any]:
    """A task on generated text."""
    return {"data": {"name": "generated", "task": task, "size": size, "dev_size": dev_size}, **rest}


def run_grid(
    registry: Path, grid: dict[str, Any], *, name: str = "grid", engine: str | Engine = "inline"
) -> tuple[Plan, Outcome, list[Event]]:
    """Write a grid beside a registry and run it there."""
    registry.parent.mkdir(parents=True, exist_ok=True)
    path = registry.parent / f"{name}.json"
    path.write_text(json.dumps(grid))
    catalogue, events = load_catalogue(), list[Event]()
    with Ledger.open(registry, create=True) as ledger:
        plan = make_plan(load_grid(str(path)), catalogue, ledger)
        ledger.record_grid(plan.grid.name, plan.grid.raw, plan.cells)
        outcome = run_plan(plan, catalogue, ledger, engine=engine, listen=events.append)
    return plan, outcome, events


def job_of(folder: Path, run: dict[str, Any], *, micro_batch: int | None = None) -> Job:
    """A run as the job that an engine is given."""
    spec, problems = load_catalogue().resolve_run(run)
    assert not problems, problems
    return Job("x", "x", 0, spec, str(folder), micro_batch=micro_batch)


def flip(path: Path) -> None:
    """Damage a file: one bit near its end is another."""
    content = bytearray(path.read_bytes())
    content[-3] ^= 64
    path.write_bytes(content)


class Bench:
    """A run over tasks of 16 rows each, whose groups are every task's next rows, over and over."""

    def __init__(self, folder: Path, tasks: dict[str, Any], combiner: Any = "sum", **changes: Any) -> None:
        stage = {"combiner": combiner, "optimizer": {"lr": 0.01}, "clip": 1.0}
        job = job_of(folder, {"encoder": ENCODER, "tasks": tasks, "stages": [stage], **changes})
        self.run = Run.build(job, lambda event: None, load_catalogue())
        self.run.model.train()
        self.state = StageState.build(self.run, 0)
        self.groups = 0

    def step(self, micro: int | None) -> GroupStep:
        """The step of the next group, in parts of ``micro`` examples."""
        rows = (np.arange(BATCH) + BATCH * self.groups) % 16
        self.groups += 1
        self.state.micro_batch = micro
        return GroupStep(tuple(TaskBatch(task, rows) for task in self.run.tasks), self.run, self.state)

    def gradients(self, step: GroupStep, task: str, scale: float = 1.0) -> tuple[Tensor, dict[str, Tensor]]:
        """A task's loss and the gradient of every parameter that it reaches."""
        self.run.model.zero_grad()
        loss = step.backward(task, scale)
        named = self.run.model.named_parameters()
        return loss, {name: p.grad.to_dense().clone() for name, p in named if p.grad is not None}
