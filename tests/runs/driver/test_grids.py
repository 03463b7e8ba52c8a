"""Whole grids driven in this process: what is new is run, what fails is reported, what is shared is waited for."""

from pathlib import Path
from typing import Any

from small_runs import run_grid

from taskloom.core import Event
from taskloom.runs.driver.drive import Outcome
from taskloom.runs.grid.plan import Plan

SST: dict[str, Any] = {"data": {"name": "generated", "task": "sentiment", "size": 64, "dev_size": 32}}
STS: dict[str, Any] = {
    "data": {"name": "generated", "task": "similarity", "size": 48, "dev_size": 32},
    "head": "cosine",
    "loss": "mse",
    "metric": "pearson",
}
ENCODER = {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 256}
STAGE = {"epochs": 1, "optimizer": {"lr": 0.001}}


def run(registry: Path, base: dict[str, Any], **rest: Any) -> tuple[Plan, Outcome, list[Event]]:
    return run_grid(registry, {"base": {"encoder": ENCODER, **base}, **rest}, engine="inline")


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


def test_a_damaged_stage_is_trained_again_once(tmp_path: Path) -> None:
    base = {"tasks": {"sst": SST, "sts": STS}, "stages": [{**STAGE, "tasks": ["sst"]}, STAGE]}
    run(tmp_path / "r", base, axes={"stages.1.optimizer.lr": [0.001]})
    (result,) = (tmp_path / "r" / "stages").glob("*/result/tensors.safetensors")
    result.write_bytes(result.read_bytes()[:-1])
    _, outcome, events = run(tmp_path / "r", base, axes={"stages.1.optimizer.lr": [0.002, 0.003]})
    assert (outcome.finished, outcome.failed) == (2, 0)
    assert [e.facts["shared"] for e in of(events, "stage") if e.facts["index"] == 0] == [False, True]
    (said,) = of(events, "log")
    assert "trained again" in said.facts["message"]
