"""Nothing that a tracker does, or does not do, holds up or ends a run; what it missed is said in one line."""

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from taskloom.core import TaskloomError, TrackedRun, Tracker
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.cli import cli
from taskloom.runs.driver import trackers as module
from taskloom.runs.driver.drive import run_plan
from taskloom.runs.driver.trackers import Trackers
from taskloom.runs.grid.grid import load_grid
from taskloom.runs.grid.plan import make_plan

GRID: dict[str, Any] = {
    "base": {
        "encoder": {"name": "minbert", "layers": 1, "width": 8, "heads": 2, "vocabulary": 50},
        "tasks": {"sst": {"data": {"name": "generated", "task": "sentiment", "size": 8, "dev_size": 8}}},
        "stages": [{"epochs": 2}],
    },
    "cells": [{"label": "one"}, {"label": "other", "set": {"stages.0.optimizer.lr": 0.01}}],
}
WHOLE = ["open", *("run_started", "epoch_ended", "epoch_ended", "run_finished") * 2, "close"]


class Ear(Tracker):
    """Keeps the names of all calls; does ``what`` in one of them."""

    name = "ear"

    def __init__(self, at: str = "", what: Callable[[], Any] = lambda: None) -> None:
        self.at, self.what, self.heard = at, what, list[str]()

    def __getattribute__(self, name: str) -> Any:
        if name in WHOLE or name == "grid_finished":
            return lambda *arguments: self._hear(name)
        return super().__getattribute__(name)

    def _hear(self, name: str) -> None:
        self.heard.append(name)
        if name == self.at:
            self.what()


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    path = tmp_path / "small.json"
    path.write_text(json.dumps(GRID))
    return path


def followed(grid: Path, *ears: Tracker, meanwhile: Callable[[], None] = lambda: None) -> list[str]:
    """What is said while trackers are told of a grid; ``meanwhile`` is called when everything is trained."""
    said: list[str] = []
    catalogue = load_catalogue()
    plan = make_plan(load_grid(str(grid)), catalogue, None)
    registry = grid.parent / "registry"
    with Ledger.open(registry, create=True) as ledger, Trackers(ears, registry, "small", said.append) as trackers:
        ledger.record_grid(plan.grid.name, plan.grid.raw, plan.cells)
        outcome = run_plan(plan, catalogue, ledger, trackers=trackers)
        assert (outcome.finished + outcome.cached, outcome.reasons) == (2, {})
        meanwhile()
    assert trackers.failures == said
    return said


def fail(error: BaseException) -> Callable[[], None]:
    def raising() -> None:
        raise error

    return raising


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ZeroDivisionError("by zero"), "ZeroDivisionError: by zero"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
@pytest.mark.parametrize("method", ["epoch_ended", "run_finished", "close"])
def test_what_it_raises_is_said_once_and_the_rest_is_told(
    grid: Path, error: BaseException, words: str, method: str
) -> None:
    broken, sound = Ear(method, fail(error)), Ear()
    (line,) = followed(grid, broken, sound)
    assert line.startswith(f"tracker 'ear': {method}(): {words}")
    assert line.endswith("(said once; the run goes on)")
    assert broken.heard == sound.heard == WHOLE


@pytest.mark.parametrize(
    ("method", "error", "line", "calls"),
    [
        ("open", TaskloomError("no licence"), "no licence (the run goes on without it)", ["open"]),
        (
            "run_started",
            ValueError("not this one"),
            "run_started(): ValueError: not this one (said once; the run goes on)",
            ["open", "run_started", "run_started", "close"],
        ),
    ],
)
def test_what_does_not_begin_gets_no_further_calls(
    grid: Path, method: str, error: Exception, line: str, calls: list[str]
) -> None:
    broken, sound = Ear(method, fail(error)), Ear()
    assert followed(grid, broken, sound) == [f"tracker 'ear': {line}"]
    assert (broken.heard, sound.heard) == (calls, WHOLE)


def test_one_that_waits_holds_up_nobody_and_misses_nothing(grid: Path) -> None:
    """Training ends while the tracker still waits in its first call; then it is told everything, in order."""
    go = threading.Event()
    slow = Ear("open", go.wait)
    assert followed(grid, slow, meanwhile=go.set) == []
    assert slow.heard == WHOLE


@pytest.mark.parametrize("method", ["open", "epoch_ended"])
def test_one_that_hangs_is_left_behind(grid: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.3)
    never, sound = threading.Event(), Ear()
    hung = Ear(method, never.wait)
    (line,) = followed(grid, hung, sound)
    left = len(WHOLE) - 1 - WHOLE.index(method)
    assert line == f"tracker 'ear': {method}() has not returned for 0.3 s; {left} calls dropped"
    assert sound.heard == WHOLE
    never.set()


def test_what_it_changes_is_its_own(grid: Path) -> None:
    class Rude(Tracker):
        """Empties what it gets."""

        name = "rude"

        def run_started(self, run: TrackedRun) -> None:
            run.spec.clear()

    specs: list[dict[str, Any]] = []

    class Polite(Tracker):
        """Looks."""

        name = "polite"

        def run_finished(self, run: TrackedRun, facts: dict[str, Any]) -> None:
            specs.append(run.spec)

    assert followed(grid, Rude(), Polite()) == []
    assert [set(spec["tasks"]) for spec in specs] == [{"sst"}] * 2


# On the command line


def taskloom(*arguments: object, **variables: str) -> Result:
    return CliRunner(env=variables).invoke(cli, [str(one) for one in arguments], prog_name="taskloom")


def test_the_environment_names_some(grid: Path) -> None:
    registry = grid.parent / "registry"
    done = taskloom("run", grid, "--registry", registry, TASKLOOM_TRACKERS="jsonl, tensorboard")
    assert (done.exit_code, "tracker" in done.stderr) == (0, False), done.stderr
    assert (registry / "events.jsonl").is_file()
    assert (registry / "tensorboard" / "small" / "table").is_dir()


def test_names_may_have_commas_between_them(grid: Path) -> None:
    done = taskloom("run", grid, "--registry", "r", "--tracker", "jsonl, mlfow")
    assert "--tracker: 1 error\n  mlfow: no tracker 'mlfow'; did you mean 'mlflow'?" in done.stderr


def test_a_path_that_it_cannot_use_is_named_without_python(grid: Path) -> None:
    (line,) = followed(grid, Ear("open", grid.parent.read_text))
    assert line == f"tracker 'ear': {grid.parent}: Is a directory (the run goes on without it)"


def test_all_that_is_wrong_is_said_before_anything_is_done(grid: Path) -> None:
    done = taskloom("run", grid, "--registry", "r", "--tracker", "mlfow", "--tracker", '{"name": "jsonl", "file": 1}')
    assert done.exit_code == 2
    assert "--tracker: 2 errors\n  mlfow: no tracker 'mlfow'; did you mean 'mlflow'?" in done.stderr
    assert "jsonl.file: no option 'file' of tracker 'jsonl'" in done.stderr
    assert not Path("r").exists()


@pytest.mark.parametrize("name", ["mlflow", "tensorboard", "trackio", "wandb"])
@pytest.mark.parametrize("strict", [False, True])
def test_a_missing_package_is_one_line_with_the_command(
    grid: Path, monkeypatch: pytest.MonkeyPatch, name: str, strict: bool
) -> None:
    for package in (name, "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, package, None)  # type: ignore[arg-type]
    options = ["--strict-plugins"] if strict else []
    done = taskloom("run", grid, "--registry", grid.parent / "registry", "--tracker", name, *options)
    assert done.exit_code == (1 if strict else 0)
    assert "other" in done.stdout  # the table
    lines = [line for line in done.stderr.splitlines() if "tracker" in line]
    assert len(lines) == (2 if strict else 1)
    assert f"tracker '{name}': it needs the package {name} (" in lines[0]
    assert f"`pip install 'taskloom[{name}]'` installs it (the run goes on without it)" in lines[0]
    assert not strict or lines[1].startswith(f"--strict-plugins: tracker '{name}': it needs")
