"""Data and weights that change between the plan and the worker that reads them: no result under the old identity."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.driver.drive import Outcome, run_plan
from taskloom.runs.grid.grid import load_grid
from taskloom.runs.grid.plan import Plan, make_plan

DATA = {"name": "table", "train": "train.csv", "dev": "dev.csv", "text": "text", "label": "label", "classes": 2}
PLUGIN = """
import numpy as np
from pathlib import Path
from taskloom.core import DataSet, Examples, Labels, hookimpl

class Lines(DataSet):
    '''One text a line, every other one good.'''
    name = "lines"
    labels = Labels.of_classes(2)
    path_options = frozenset({"file"})
    def __init__(self, *, file: str) -> None:
        self.file = file
    def _texts(self):
        return tuple(Path(self.file).read_text().splitlines())
    def load(self, split):
        texts = self._texts()
        return Examples((texts,), np.arange(len(texts)) % 2, tuple(map(str, range(len(texts)))))
    def fingerprint(self):
        return f"{len(self._texts())} lines"

@hookimpl
def taskloom_components():
    return [Lines]
"""


def rows(number: int) -> str:
    return "text,label\n" + "".join(f"film {row},{row % 2}\n" for row in range(number))


def planned(folder: Path, data: dict[str, Any], **encoder: Any) -> Plan:
    """A grid of one row on a data set, planned and recorded."""
    sizes = {} if encoder else {"layers": 1, "width": 8, "heads": 2, "vocabulary": 64}
    base = {
        "encoder": {"name": "minbert", **sizes, **encoder},
        "tasks": {"reviews": {"data": data, "head": {"name": "linear"}}},
        "stages": [{"epochs": 1}, {"epochs": 1}],
    }
    (folder / "grid.json").write_text(json.dumps({"base": base, "cells": [{"label": "row"}]}))
    with Ledger.open(folder / "registry", create=True) as ledger:
        plan = make_plan(load_grid(str(folder / "grid.json")), load_catalogue(), ledger)
        ledger.record_grid(plan.grid.name, plan.grid.raw, plan.cells)
    return plan


def run(folder: Path, plan: Plan, engine: str = "inline") -> Outcome:
    with Ledger.open(folder / "registry", create=False) as ledger:
        return run_plan(plan, load_catalogue(), ledger, engine=engine)


def kept(folder: Path) -> list[str]:
    """What cells and shared stages have left, beside logs and locks."""
    files = (path for room in ("cells", "stages") for path in (folder / "registry" / room).rglob("*"))
    return [path.name for path in files if path.is_file() and path.suffix not in (".lock", ".txt")]


@pytest.mark.parametrize("engine", ["inline", "local"])
def test_a_cell_whose_data_were_edited_after_planning_fails(tmp_path: Path, engine: str) -> None:
    (tmp_path / "train.csv").write_text(rows(60))
    (tmp_path / "dev.csv").write_text(rows(60))
    plan = planned(tmp_path, DATA)
    (cell,) = plan.cells
    (tmp_path / "dev.csv").write_text(rows(29))
    (reason,) = run(tmp_path, plan, engine).reasons.values()
    message = re.fullmatch(
        "the data of task 'reviews' changed after this cell was planned: their fingerprint was ([0-9a-f]{12}) and is "
        "([0-9a-f]{12}) now; run the same command again",
        reason,
    )
    assert message, reason
    edited = planned(tmp_path, DATA)
    assert message.groups() == tuple(
        each.cells[0].facts["content"]["tasks.reviews.data"][:12] for each in (plan, edited)
    )
    assert kept(tmp_path) == []

    assert edited.cells[0].id != cell.id
    assert run(tmp_path, edited).finished == 1, "as the message says"
    (tmp_path / "dev.csv").write_text(rows(60))
    restored = planned(tmp_path, DATA)
    assert (restored.cells[0].id, restored.cells[0].status) == (cell.id, "failed"), "nothing is served as the same"
    assert run(tmp_path, restored).finished == 1


def test_a_third_partys_data_are_checked_as_well(tmp_path: Path, install: Callable[..., None]) -> None:
    install("lines", PLUGIN)
    (tmp_path / "lines.txt").write_text("good\nbad\n" * 8)
    plan = planned(tmp_path, {"name": "lines", "file": "lines.txt"})
    (tmp_path / "lines.txt").write_text("good\nbad\n" * 4)
    (reason,) = run(tmp_path, plan).reasons.values()
    assert "fingerprint was 16 lines and is 8 lines now" in reason


def test_weights_that_changed_after_planning_fail_the_cell(tmp_path: Path, minilm: Path) -> None:
    for name in ("train.csv", "dev.csv"):
        (tmp_path / name).write_text(rows(16))
    weights = tmp_path / "weights"
    weights.mkdir()
    for path in minilm.iterdir():
        (weights / path.name).symlink_to(path)
    (weights / "config.json").unlink()
    (weights / "config.json").write_text((minilm / "config.json").read_text())
    plan = planned(tmp_path, DATA, weights=str(weights))
    (weights / "config.json").write_text((minilm / "config.json").read_text() + "\n")
    (reason,) = run(tmp_path, plan).reasons.values()
    assert reason.startswith("the encoder's weights changed after this cell was planned"), reason
    assert kept(tmp_path) == []


def test_a_test_split_may_come_later(tmp_path: Path) -> None:
    """It decides nothing about a run, so it is no part of what is compared."""
    for name in ("train.csv", "dev.csv", "test.csv"):
        (tmp_path / name).write_text(rows(16))
    plan = planned(tmp_path, {**DATA, "test": "test.csv"})
    (tmp_path / "test.csv").write_text(rows(20))
    assert run(tmp_path, plan).finished == 1
