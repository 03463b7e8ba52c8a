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
from taskloom.runs.training.optimize import GroupStep
from taskloom.runs.training.stage import StageState
from taskloom.runs.training.train import Run

ENCODER = {"name": "minbert", "layers": 1, "width": 8, "heads": 2, "vocabulary": 64}
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}
BATCH = 7


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
        outcome = run_plan(plan, catalogue, ledger, engine=engine, listen=events.append)
    return plan, outcome, events


class Bench:
    """A run over tasks of 16 rows each, whose groups are every task's next rows, over and over."""

    def __init__(self, folder: Path, tasks: dict[str, Any], combiner: Any = "sum", **changes: Any) -> None:
        stage = {"combiner": combiner, "optimizer": {"lr": 0.01}}
        catalogue = load_catalogue()
        spec, problems = catalogue.resolve_run({"encoder": ENCODER, "tasks": tasks, "stages": [stage], **changes})
        assert not problems, problems
        self.run = Run.build(Job("x", "x", 0, spec, str(folder)), lambda event: None, catalogue)
        self.run.model.train()
        self.state = StageState.build(self.run, 0, spec["stages"][0], tuple(tasks))
        self.groups = 0

    def step(self, micro: int | None) -> GroupStep:
        """The step of the next group, in parts of ``micro`` examples."""
        rows = (np.arange(BATCH) + BATCH * self.groups) % 16
        self.groups += 1
        return GroupStep(
            tuple(TaskBatch(task, rows) for task in self.run.tasks),
            model=self.run.model,
            feeds=self.run.train,
            shared=self.run.model.shared_parameters(),
            trained=self.state.trained,
            optimizer=self.state.optimizer,
            clip=1.0,
            micro_batch=micro,
        )

    def gradients(self, step: GroupStep, task: str, scale: float = 1.0) -> tuple[Tensor, dict[str, Tensor]]:
        """A task's loss and the gradient of every parameter that it reaches."""
        self.run.model.zero_grad()
        loss = step.backward(task, scale)
        named = self.run.model.named_parameters()
        return loss, {name: p.grad.to_dense().clone() for name, p in named if p.grad is not None}
