"""What the kit tells a tracker is what real runs tell it, and what the hooks' documentation says."""

import inspect
import json
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from taskloom.core import hookspecs
from taskloom.core.testing import check, plugins
from taskloom.core.testing.plugins import run_calls
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.driver.drive import run_plan
from taskloom.runs.grid.grid import load_grid
from taskloom.runs.grid.plan import make_plan

#: A plugin that keeps every call.
RECORDER = "from taskloom.core import hookimpl\nTOLD = []\n" + "".join(
    f"@hookimpl\ndef {hook}({', '.join(inspect.signature(getattr(hookspecs, hook)).parameters)}):\n"
    f"    TOLD.append(({hook!r}, locals()))\n"
    for hook in plugins.TRACKER_HOOKS
)


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


def documented(hook: str) -> list[str]:
    """The keys of ``facts`` in a hook's docstring."""
    return re.findall(r"``(\w+)``", re.split(r"\n +facts: |Example::", getattr(hookspecs, hook).__doc__)[1])


def test_the_kit_tells_what_real_runs_tell(install: Callable[..., None], tmp_path: Path) -> None:
    install("recorder", RECORDER)
    (tmp_path / "told.json").write_text(json.dumps(GRID))
    catalogue = load_catalogue()
    plan = make_plan(load_grid(str(tmp_path / "told.json")), catalogue, None)
    with Ledger.open(tmp_path / "runs", create=True) as ledger:
        run_plan(plan, catalogue, ledger, attempts=1)
    told = sys.modules["taskloom_recorder"].TOLD
    kit = {"good": run_calls(), "untrained": run_calls(last=0), "bad": run_calls(fails=True)}
    assert {hook for calls in kit.values() for hook, _ in calls} == set(plugins.TRACKER_HOOKS)
    for label, calls in kit.items():
        real = [(hook, arguments) for hook, arguments in told if arguments["label"] == label]
        if label == "bad":  # how far it gets is chance
            calls = [call for call in calls if call[0] != "taskloom_epoch_ended"]
            real = [call for call in real if call[0] != "taskloom_epoch_ended"]
        assert [hook for hook, _ in calls] == [hook for hook, _ in real]
        for (hook, found), (_, expected) in zip(calls, real, strict=True):
            assert form(found) == form(expected), f"{hook} of {label}"
            assert len(found["cell"]) == len(expected["cell"])
            if "spec" in found:
                assert [len(stage["tasks"]) for stage in found["spec"]["stages"]] == [1, 2]
            if "facts" in found:
                assert set(found["facts"]) == set(documented(hook)) - {"overall"}
                assert "overall" in documented(hook)
            assert list(found) == list(inspect.signature(getattr(hookspecs, hook)).parameters)


@pytest.mark.parametrize("hook", ["taskloom_run_started", "taskloom_epoch_ended"])
def test_the_documented_example_keeps_every_law(hook: str, install: Callable[..., None]) -> None:
    code = inspect.cleandoc(getattr(hookspecs, hook).__doc__).partition("Example::")[2]
    imports = "import sys\nfrom typing import Any\nfrom taskloom.core import hookimpl\n"
    install("example", f"{imports}{inspect.cleandoc(code)}\n")
    check(import_module("taskloom_example"))
