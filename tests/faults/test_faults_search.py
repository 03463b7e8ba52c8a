"""A run that searches, and its workers, are killed at random: the same settings to the last digit, the same scores."""

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from faults import Driver, result_of, workers_of, write_grid

from taskloom.registry.results.ledger import Ledger

SEARCH: dict[str, Any] = {
    "axes": {},
    "cells": [{"label": "surgery"}, {"label": "sum", "set": {"stages.0.combiner": "sum"}}],
    "seeds": [5, 6],
    "search": {
        "over": {"stages.0.optimizer.lr": {"log": [0.0003, 0.03]}, "tasks.*.head.dropout": {"uniform": [0.0, 0.5]}},
        "trials": 5,
        "hold_out": 0.25,
        "halving": True,
    },
}


def outcome(registry: Path) -> dict[str, Any]:
    """What was chosen, the results of the rows, and what every trial has, whether it went on or paused."""
    with Ledger.open(registry, create=False) as ledger:
        chosen = ledger.grid("grid").spec["tuned"]
        trials = {}
        for row in ledger.grid("grid+trials").cells:
            epochs = [(epoch.epoch, epoch.losses, epoch.scores) for epoch in ledger.epochs(row.cell.id)]
            trials[row.label] = row.cell.id, row.cell.status, row.cell.scores, row.cell.costs, epochs
    return {"chosen": chosen, "trials": trials, "rows": result_of(registry)}


@pytest.fixture(scope="module")
def undisturbed_search(faulty: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], float]:
    """The grid, what comes out of it, and how many seconds a run takes."""
    folder = tmp_path_factory.mktemp("search")
    grid, began = write_grid(folder, **SEARCH), time.monotonic()
    with Driver(grid, folder / "registry") as driver:
        code, _, text = driver.finish()
    assert code == 0, text
    return grid, outcome(folder / "registry"), time.monotonic() - began


@pytest.mark.parametrize("seed", [3, 8])
def test_a_search_that_is_killed_at_random_chooses_the_same_settings(
    undisturbed_search: tuple[Path, dict[str, Any], float], tmp_path: Path, seed: int
) -> None:
    grid, reference, seconds = undisturbed_search
    moments = [random.Random(seed).uniform(0.05, 0.6) * seconds for _ in range(4)]
    print(f"seed {seed}: killed after {', '.join(f'{moment:.1f}' for moment in moments)} of {seconds:.1f} s")
    at_work = []
    for moment in moments:
        with Driver(grid, tmp_path) as driver:
            driver.wait_for(lambda driver=driver: driver.lines)
            time.sleep(moment / 2)
            for worker in workers_of(driver.pid)[:1]:
                with suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)
            time.sleep(moment / 2)
            at_work.append(driver.process.poll() is None)
            driver.kill()
    assert any(at_work)
    with Driver(grid, tmp_path) as driver:
        code, _, text = driver.finish()
    assert code == 0, text
    found = outcome(tmp_path)
    assert found["chosen"] == reference["chosen"]
    assert found["trials"] == reference["trials"]
    assert found["rows"] == reference["rows"]
