"""What the kit tells a tracker is what real runs tell it, and what the documentation of the class says."""

import inspect
import json
import re
from pathlib import Path
from typing import Any

from taskloom.core import Tracker
from taskloom.core.testing.trackers import Call, run_calls
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.driver.drive import run_plan
from taskloom.runs.driver.trackers import METHODS, Trackers
from taskloom.runs.grid.grid import load_grid
from taskloom.runs.grid.plan import make_plan


class Recorder(Tracker):
    """Keeps every call about a run."""

    name = "recorder"

    def __init__(self) -> None:
        self.told: list[Call] = []

    def __getattribute__(self, name: str) -> Any:
        if name in METHODS.values():
            return lambda *arguments: self.told.append((name, arguments))
        return super().__getattribute__(name)


def small(task: str) -> dict[str, Any]:
    return {"name": "generated", "task": task, "size": 16, "dev_size": 8}


#: The runs that the kit tells of, for real.
GRID = {
    "base": {
        "encoder": {"name": "minbert", "layers": 1, "width": 8, "heads": 2, "vocabulary": 50},
        "tasks": {
            "pairs": {"data": small("paraphrase"), "head": "embedding", "loss": "dynamic_margin"},
            "sst": {"data": small("sentiment")},
        },
        "stages": [{"tasks": ["pairs"], "epochs": 1}, {"epochs": 2}],
    },
    "cells": [
        {"label": "good"},
        {"label": "untrained", "set": {"stages.0.epochs": 1, "stages.0.sampler.batch_size": 4, "stages.1.epochs": 0}},
        {"label": "bad", "set": {"stages.0.sampler.batch_size": 2, "stages.1.optimizer.lr": 1e30}},
    ],
}


def form(value: Any) -> Any:
    """A value with its type in place of each figure; of a component only the name's, as each has its own options."""
    if isinstance(value, dict):
        return {key: form(each) for key, each in value.items() if key == "name" or "name" not in value}
    if isinstance(value, list):
        return [form(each) for each in value]
    return type(value).__name__


def documented(method: str) -> list[str]:
    """The keys of ``facts`` in a method's docstring."""
    return re.findall(r"``(\w+)``", re.split(r"\n +facts: ", getattr(Tracker, method).__doc__)[1])


def test_the_kit_tells_what_real_runs_tell(tmp_path: Path) -> None:
    """Now, and again when the grid is run again: then all but the memory is there, and nothing is trained."""
    (tmp_path / "small.json").write_text(json.dumps(GRID))
    catalogue, recorder, again = load_catalogue(), Recorder(), Recorder()
    plan = make_plan(load_grid(str(tmp_path / "small.json")), catalogue, None)
    for one in (recorder, again):
        with Ledger.open(tmp_path, create=True) as ledger, Trackers([one], tmp_path, "small") as trackers:
            ledger.record_grid(plan.grid.name, plan.grid.raw, plan.cells)
            run_plan(plan, catalogue, ledger, attempts=1, retry_failed=False, trackers=trackers)
    kit = {"good": run_calls(), "untrained": run_calls(last=0), "bad": run_calls(fails=True)}
    assert {method for calls in kit.values() for method, _ in calls} == {*METHODS.values()}
    for label, calls in kit.items():
        real, retold = ([call for call in one.told if call[1][0].label == label] for one in (recorder, again))
        assert [*map(as_kept, retold)] == [*map(as_kept, real)]
        if label == "bad":  # how far it gets is chance
            calls, real = ([call for call in some if call[0] != "epoch_ended"] for some in (calls, real))
        assert [method for method, _ in calls] == [method for method, _ in real]
        for (method, found), (_, expected) in zip(calls, real, strict=True):
            assert form(vars(found[0])) == form(vars(expected[0])), f"the run of {label}"
            assert form(list(found[1:])) == form(list(expected[1:])), f"{method} of {label}"
            assert len(found[0].cell) == len(expected[0].cell)
            assert (found[0].grid, found[0].seed) == (expected[0].grid, expected[0].seed) == ("small", 0)
            assert [len(stage["tasks"]) for stage in found[0].spec["stages"]] == [1, 2]
            if "facts" in inspect.signature(getattr(Tracker, method)).parameters:
                assert set(found[1]) == set(documented(method)) - {"overall"}
                assert "overall" in documented(method)


def as_kept(call: Call) -> str:
    """A call, less what the ledger does not keep, as text."""
    method, (run, *rest) = call
    facts = [{**one, "memory": None} if isinstance(one, dict) else one for one in rest]
    return json.dumps([method, vars(run), facts], sort_keys=True)
