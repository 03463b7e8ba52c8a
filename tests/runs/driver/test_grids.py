"""Whole grids driven in this process: what is new is run, what fails is reported, what is shared is waited for."""

from pathlib import Path
from typing import Any

import pytest
from small_runs import run_grid

from taskloom.core import Engine, Event, Job, perform
from taskloom.runs.driver.drive import Outcome
from taskloom.runs.grid.plan import Plan
from taskloom.runs.training.train import train

SST: dict[str, Any] = {"data": {"name": "generated", "task": "sentiment", "size": 64, "dev_size": 32}}
STS: dict[str, Any] = {
    "data": {"name": "generated", "task": "similarity", "size": 48, "dev_size": 32},
    "head": "cosine",
    "loss": "mse",
    "metric": "pearson",
}
ENCODER = {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 256}
STAGE = {"epochs": 1, "optimizer": {"lr": 0.001}}


def run(
    registry: Path, base: dict[str, Any], engine: str | Engine = "inline", **rest: Any
) -> tuple[Plan, Outcome, list[Event]]:
    return run_grid(registry, {"base": {"encoder": ENCODER, **base}, **rest}, engine=engine)


def of(events: list[Event], what: str) -> list[Event]:
    return [event for event in events if event.what == what]


def test_growing_a_grid_runs_only_what_is_new(tmp_path: Path) -> None:
    base = {"tasks": {"sst": SST}, "stages": [STAGE]}
    run(tmp_path / "r", base, axes={"stages.0.epochs": [0, 1]})
    plan, outcome, _ = run(tmp_path / "r", base, axes={"stages.0.epochs": [0, 1, 2]})
    assert [cell.status for cell in plan.cells] == ["finished", "finished", "new"]
    assert (outcome.finished, outcome.cached) == (1, 2)


def test_a_failing_cell_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    base = {"tasks": {"sst": SST, "sts": STS}, "stages": [STAGE]}
    plan, outcome, events = run(tmp_path / "r", base, axes={"stages.0.optimizer.lr": {"wild": 1e30, "tame": 1e-3}})
    assert (outcome.finished, outcome.failed) == (1, 1)
    (failed,) = of(events, "failed")
    assert failed.cell == plan.cells[0].id
    assert "task 'sst'" in failed.facts["reason"] or "task 'sts'" in failed.facts["reason"]
    assert "epoch 1, step " in failed.facts["reason"]
    assert "Traceback" in (tmp_path / "r" / "cells" / failed.cell / "log.txt").read_text()


class TwoAtOnce(Engine):
    """Takes two cells at once; runs the first of them when it is asked for news. Keeps how many it had then."""

    name, slots = "two_at_once", 2

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.had: list[int] = []

    def open(self, work: str, folder: Path) -> None:
        assert work == "taskloom.runs.training.train:train"

    @property
    def free(self) -> int:
        return 2 - len(self.jobs)

    def submit(self, job: Job) -> None:
        self.jobs.append(job)

    def poll(self, seconds: float) -> list[Event]:
        self.had.append(len(self.jobs))
        events: list[Event] = []
        perform(train, self.jobs.pop(0), events.append)
        return events

    def stop(self, cell: str | None = None, *, at_once: bool = False) -> None:
        self.jobs.clear()

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("damaged", "had"), [(False, [2, 1]), (True, [1, 1])])
def test_cells_that_share_a_damaged_stage_wait_for_it_once(tmp_path: Path, damaged: bool, had: list[int]) -> None:
    base = {"tasks": {"sst": SST, "sts": STS}, "stages": [{**STAGE, "tasks": ["sst"]}, STAGE]}
    run(tmp_path / "r", base, axes={"stages.1.optimizer.lr": [0.001]})
    (result,) = (tmp_path / "r" / "stages").glob("*/result/tensors.safetensors")
    if damaged:
        result.write_bytes(result.read_bytes()[:-1])
    engine = TwoAtOnce()
    _, outcome, events = run(tmp_path / "r", base, engine, axes={"stages.1.optimizer.lr": [0.002, 0.003]})
    assert (outcome.finished, outcome.failed) == (2, 0)
    assert engine.had == had
    assert [e.facts["shared"] for e in of(events, "stage") if e.facts["index"] == 0] == [not damaged, True]
    assert ["trained again" in event.facts["message"] for event in of(events, "log")] == [True] * damaged
