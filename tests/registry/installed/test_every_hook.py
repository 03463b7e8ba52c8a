"""A hook that is undocumented or untested fails here: each one is implemented for real, and what it does is seen."""

import inspect
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taskloom.core import hookspecs
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.installed.manager import packaged_grids
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.driver.drive import run_plan
from taskloom.runs.grid.grid import load_grid
from taskloom.runs.grid.plan import make_plan
from taskloom.runs.scaffold import package_files
from taskloom.runs.scaffold.names import Names
from taskloom.runs.show.reference import reference

HOOKS = [name for name in vars(hookspecs) if name.startswith(f"{hookspecs.PROJECT}_")]
#: Kind of component → the method that a run calls.
USED = {
    "encoder": "encode",
    "head": "forward",
    "loss": "forward",
    "sampler": "epoch",
    "combiner": "weights",
    "data": "load",
    "metric": "__call__",
    "engine": "submit",
}
TRACKERS = {
    "taskloom_run_started": "started",
    "taskloom_epoch_ended": "epoch",
    "taskloom_run_finished": "finished",
    "taskloom_run_failed": "failed",
}
#: What a plugin of this test does beside what ``taskloom new-plugin`` wrote: it counts the calls of one method.
COUNTING = """

CALLS = []
_plain = {cls}.{method}

def _counted(self, *arguments, **options):
    CALLS.append(type(self).__name__)
    if getattr(self, "gamma", 0) == 13:
        raise ValueError("13 is unlucky")
    return _plain(self, *arguments, **options)

{cls}.{method} = _counted
"""
GRID = {
    "base": {
        "encoder": {"name": "new_encoder", "width": 8},
        "tasks": {
            "first": {"data": "new_data", "head": "new_head", "loss": "new_loss", "metric": "new_metric"},
            "second": {"data": {"name": "generated", "task": "sentiment", "size": 8, "dev_size": 8}},
        },
        "stages": [{"sampler": "round_robin", "combiner": "new_combiner", "epochs": 2}, {"sampler": "new_sampler"}],
    },
    "cells": [{"label": "good"}, {"label": "bad", "set": {"tasks.first.loss.gamma": 13}}],
}


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_documented(hook: str) -> None:
    doc = inspect.getdoc(getattr(hookspecs, hook)) or ""
    parts = ["Called: ", "Example::", "Arguments:\n" if hook in TRACKERS else "Returns: "]
    for part in parts:
        assert f"\n\n{part}" in doc, f"the docstring of {hook} should have a part {part.strip()!r}"
    for argument in inspect.signature(getattr(hookspecs, hook)).parameters:
        assert f"\n    {argument}: " in doc, f"the docstring of {hook} should explain {argument!r}"
    assert f"def {hook}(" in doc.partition("Example::")[2]
    assert f"### {hook}\n" in reference()


def code_of(kind: str) -> str:
    return package_files(Names(f"new_{kind}"), kind)[f"taskloom_new_{kind}/__init__.py"]


@pytest.fixture
def world(install: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A run with a plugin for every hook; what the tracker wrote."""
    for kind, method in USED.items():
        install(f"new_{kind}", code_of(kind) + COUNTING.format(cls=f"New{kind.capitalize()}", method=method))
    install("new_tracker", code_of("tracker"))
    install("new_grid", code_of("grid"), group="taskloom.grids")
    site = tmp_path / "site"
    for path, text in package_files(Names("new_data"), "data").items():
        if path.endswith(".jsonl"):
            (site / "examples").mkdir(exist_ok=True)
            (site / "examples" / Path(path).name).write_text("\n".join(text.splitlines()[:12]))
    GRID["base"]["stages"][1]["epochs"] = 1  # type: ignore[index]
    (site / "hooked.json").write_text(json.dumps(GRID))
    monkeypatch.setenv("TASKLOOM_NEW_TRACKER_FILE", str(tmp_path / "events.jsonl"))
    catalogue = load_catalogue()
    assert not catalogue.failed
    plan = make_plan(load_grid("hooked"), catalogue, None)
    with Ledger.open(tmp_path / "runs", create=True) as ledger:
        outcome = run_plan(plan, catalogue, ledger, engine="new_engine", attempts=1)
        statuses = {place.label: place.cell.status for place in ledger.grid("hooked").cells}
    assert statuses == {"good": "finished", "bad": "failed"}
    assert outcome.failed
    return [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]


def test_every_hook_does_what_its_documentation_says(world: list[dict[str, Any]]) -> None:
    tested = {"taskloom_grids", "taskloom_components", *TRACKERS}
    assert tested == set(HOOKS), f"no test implements {set(HOOKS) - tested}"
    for kind, method in USED.items():
        assert sys.modules[f"taskloom_new_{kind}"].CALLS, f"no run called {method}() of the new {kind}"
    assert packaged_grids()["hooked"].distribution == "taskloom-new_grid"
    for hook, what in TRACKERS.items():
        events = [event for event in world if event["what"] == what]
        expected = {"started": ["bad", "good"], "epoch": ["good"] * 3, "finished": ["good"], "failed": ["bad"]}[what]
        assert sorted(event["label"] for event in events) == expected
        assert all(re.fullmatch("[0-9a-f]{16,}", event["cell"]) for event in events)
        specification = getattr(hookspecs, hook)
        doc = inspect.getdoc(specification) or ""
        documented = re.findall(r"``(\w+)``", re.split(r"\n    facts: |Example::", doc)[1])
        if "facts" in inspect.signature(specification).parameters:
            for event in events:
                given = set(event) - {"what", "cell", "label"}
                assert given == set(documented) - {"overall"}, f"{hook} gives {given}, documented is {documented}"
                assert "overall" in event["scores"]
    (failed,) = [event for event in world if event["what"] == "failed"]
    assert failed["reason"] == "ValueError: 13 is unlucky"
