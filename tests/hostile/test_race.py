"""Runs of one grid that are started at once: whatever any of them asked for is in the table."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.api.grid import Grid
from taskloom.runs.grid.grid import load_grid
from taskloom.runs.grid.plan import make_plan

GRID = {
    "base": {
        "encoder": {"name": "minbert", "layers": 1, "width": 8, "heads": 2, "vocabulary": 64},
        "tasks": {"sst": {"data": {"name": "generated", "task": "sentiment", "size": 8, "dev_size": 8}}},
        "stages": [{"epochs": 0}],
    },
    "cells": [{"label": "row"}],
    "seeds": [0],
}
ROUNDS, STARTS = 10, 5
#: Processes that each start a run in every round, as soon as all the others are ready for it.
DRIVERS = """
import os, sys, time
from pathlib import Path
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.runs.api.grid import Grid
import taskloom.runs.driver.drive, taskloom.runs.training.train

load_catalogue()
folder, rounds, starts = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])

def drive(number):
    for round in range(rounds):
        (folder / f"ready-{round}-{number}").touch()
        while len(list(folder.glob(f"ready-{round}-*"))) < starts:
            time.sleep(0.005)
        value = 1 + round * starts + number
        asked = {"seeds": (value,)} if number % 2 else {"settings": {"stages.*.clip": value}}
        ran = Grid(folder / "grid.json", registry=folder / f"registry-{round}").run(progress=False, **asked)
        assert not ran.outcome.failed, ran

children = []
for number in range(starts):  # forked, so that what takes seconds to import is imported once
    children.append(os.fork())
    if not children[-1]:
        try:
            drive(number)
            os._exit(0)
        except BaseException:
            import traceback
            traceback.print_exc()
            for round in range(rounds):
                (folder / f"ready-{round}-{number}").touch()  # nobody waits for it
            os._exit(1)
sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
"""


def test_fifty_runs_started_together_lose_no_seed_and_no_row(tmp_path: Path) -> None:
    (tmp_path / "grid.json").write_text(json.dumps(GRID))
    command = [sys.executable, "-W", "ignore", "-c", DRIVERS, str(tmp_path), str(ROUNDS), str(STARTS)]
    drivers = subprocess.run(command, env={**os.environ, "TASKLOOM_ENGINE": "inline"}, capture_output=True, text=True)
    assert drivers.returncode == 0, drivers.stderr
    for number in range(ROUNDS):
        values = range(1 + number * STARTS, 1 + (number + 1) * STARTS)
        seeds = [value for value in values if (value - 1) % STARTS % 2]
        with Ledger.open(tmp_path / f"registry-{number}", create=False) as ledger:
            grid = ledger.grid("grid")
            assert grid.added_seeds == seeds
            changed = {f"grid+clip={value}" for value in values if value not in seeds}
            assert {*ledger.grid_names()} == {"grid", *changed}
            assert {row.seed for row in grid.cells} == {0, *seeds}
            finished = {cell.id for cell in ledger.cells() if cell.status == "finished"}
            assert finished == {row.cell.id for recorded in ledger.grids() for row in recorded.cells}
            assert len(finished) > len(values)


@pytest.mark.parametrize("change", ["seeds queued", "another plan"])
def test_a_plan_made_from_an_earlier_state_is_not_recorded(tmp_path: Path, change: str) -> None:
    (tmp_path / "grid.json").write_text(json.dumps(GRID))
    grid, registry, catalogue = load_grid(str(tmp_path / "grid.json")), tmp_path / "registry", load_catalogue()
    Grid(tmp_path / "grid.json", registry=registry).run(progress=False)
    with Ledger.open(registry, create=False) as ledger:
        plan = make_plan(grid, catalogue, ledger)
        if change == "seeds queued":
            ledger.queue_seeds("grid", 2)
        else:
            Grid(tmp_path / "grid.json", registry=registry).run(progress=False, seeds=(7,))
        recorded = ledger.grid("grid")
        assert not ledger.record_grid("grid", plan.grid.raw, plan.cells, basis=plan.basis)
        assert ledger.grid("grid") == recorded
        plan = make_plan(grid, catalogue, ledger)
        assert ledger.record_grid("grid", plan.grid.raw, plan.cells, basis=plan.basis)
        assert ledger.grid("grid").added_seeds == ([1, 2] if change == "seeds queued" else [7])
