"""Components that call sys.exit, raise what nobody expects, or answer what they should not: one message each."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from faults import run_here

from taskloom.core import Event, Job, perform
from taskloom.core.work import reason_of
from taskloom.plugins.engines.inline import Inline
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.runs.cli import cli

Install = Callable[..., None]
DATA = """
import itertools
import sys
import numpy as np
from taskloom.core import DataSet, Examples, Labels, hookimpl

CALLS = itertools.count()

class Bug(DataSet):
    \"\"\"A data set with a bug.

    Options:
        bug: which one
    \"\"\"
    name = "bug"
    labels = Labels.of_classes(2)

    def __init__(self, *, bug: str = "") -> None:
        self.bug = bug

    def load(self, split):
        texts, y, ids = tuple("abcd"), np.array([0.0, 1, 0, 1]), tuple("1234")
        match self.bug:
            case "load exit": sys.exit(0)
            case "test exit" if split == "test": sys.exit(0)
            case "test number" if split == "test": texts = ("a", "b", "c", 4)
            case "test labels" if split == "test": y = None
            case "two lines": raise ZeroDivisionError("oops\\nline2")
            case "no words": raise MemoryError
            case "none": return None
            case "list": return Examples((texts,), [0, 1, 0, 1], ids)
            case "column": y = y[:, None]
            case "no text": texts = (1, 2, 3, 4)
            case "half": texts = ("\\ud800", *texts[1:])
            case "words": y = np.array(list("abcd"))
            case "nan": y = y * np.nan
            case "between": y = y / 2
        return Examples((texts,), y, ids)

    def fingerprint(self):
        match self.bug:
            case "content exit": sys.exit(0)
            case "content none": return None
            case "content number": return 3
            case "content changes": return str(next(CALLS))
        return "v1"

@hookimpl
def taskloom_datasets(): return [Bug]
"""
USED = "data set 'bug' (plugin 'bug' of taskloom-bug 1.2) cannot be used: "
SPLIT = "data set 'bug', split 'train': "
BUGS = {
    "load exit": f"{USED}SystemExit: 0",
    "content exit": f"{USED}SystemExit: 0",
    "two lines": f"{USED}ZeroDivisionError: oops line2\n",
    "no words": f"{USED}MemoryError\n",
    "none": f"{SPLIT}load() should return Examples. Found NoneType.",
    "list": f"{SPLIT}labels should be an array of numbers. Found list.",
    "column": f"{SPLIT}every example should have a label, [4] in all. Found [4, 1].",
    "no text": f"{SPLIT}text 0 should be a string. Found int 1.",
    "half": f"{SPLIT}text 0 holds half a character (a lone surrogate). Found '\\ud800'.",
    "words": f"{SPLIT}labels should be an array of numbers. Found an array of <U1.",
    "nan": f"{SPLIT}labels should be numbers. Found nan.",
    "between": f"{SPLIT}labels are classes and should be integers. Found 0.5.",
    "content none": "data set 'bug': fingerprint() should be a string, a fingerprint. Found null.",
    "content number": "data set 'bug': fingerprint() should be a string, a fingerprint. Found 3.",
    "content changes": "data set 'bug': fingerprint() should be the same every time",
}
LOSS = """
import sys
from torch.nn.functional import cross_entropy
from taskloom.core import Loss, Metric, Sampler, hookimpl

class Leaves(Loss):
    \"\"\"Calls sys.exit.

    Options:
        when: in which method
    \"\"\"
    name = "leaves"
    expects = "classes"
    separable = True

    def __init__(self, *, when: str = "") -> None:
        super().__init__()
        self.when = when

    def prepare(self, *, labels, rows):
        if self.when == "prepare": sys.exit(0)

    def forward(self, prediction, target):
        if self.when == "forward": sys.exit(0)
        if self.when == "interrupt": raise KeyboardInterrupt
        return cross_entropy(prediction.score, target)

class Odd(Metric):
    \"\"\"No number.

    Options:
        truth: whether it is a bool
    \"\"\"
    name = "odd"

    def __init__(self, *, truth: bool = False) -> None:
        self.truth = truth

    def __call__(self, predicted, expected): return True if self.truth else "0.5"

@hookimpl
def taskloom_losses(): return [Leaves]
@hookimpl
def taskloom_metrics(): return [Odd]
"""
TASK: dict[str, Any] = {"data": {"name": "generated", "task": "sentiment", "size": 16, "dev_size": 8}}
ENCODER = {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 64}


def grid(folder: Path, **task: Any) -> Path:
    path = folder / "mine.json"
    base = {"encoder": ENCODER, "tasks": {"sst": {**TASK, **task}}, "stages": [{"epochs": 1}]}
    path.write_text(json.dumps({"base": base}))
    return path


def taskloom(*arguments: object) -> Result:
    load_catalogue.cache_clear()
    given = [str(one) for one in arguments]
    return CliRunner().invoke(cli, given, prog_name="taskloom", color=True)  # as on a terminal: nothing is stripped


def test_data_that_cannot_be_used_are_refused_in_one_line_each(install: Install, tmp_path: Path) -> None:
    install("bug", DATA)
    for bug, message in BUGS.items():
        path = grid(tmp_path, data={"name": "bug", "bug": bug})
        result = taskloom("validate", path)
        assert result.exit_code == 2, (bug, result.stderr, result.exception)
        assert result.stderr.startswith(f"Error: {path}: 1 error\n  tasks.sst.data: {message}"), bug
        assert len(result.stderr.splitlines()) == 2, bug
    assert taskloom("validate", grid(tmp_path, data={"name": "bug"})).exit_code == 0


def test_sys_exit_while_predicting_is_no_success(install: Install, tmp_path: Path) -> None:
    install("bug", DATA)
    registry = tmp_path / "r"
    path = grid(tmp_path, data={"name": "bug", "bug": "test exit"})
    assert taskloom("run", path, "--registry", registry, "--engine", "inline").exit_code == 0
    result = taskloom("predict", path, "--registry", registry, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "a plugin called sys.exit(0)" in result.stderr


def test_a_test_split_is_looked_at_before_it_is_predicted_and_may_lack_labels(install: Install, tmp_path: Path) -> None:
    install("bug", DATA)
    message = "sst: data set 'bug', split 'test': text 3 should be a string. Found int 4."
    for bug, code in (("test number", 2), ("test labels", 0)):
        registry, path = tmp_path / bug, grid(tmp_path, data={"name": "bug", "bug": bug})
        assert taskloom("run", path, "--registry", registry, "--engine", "inline").exit_code == 0
        result = taskloom("predict", path, "--registry", registry, "--out", tmp_path / "out", "--format", "jsonl")
        assert result.exit_code == code, result.stderr
        assert (message in result.stderr) == bool(code)


def test_sys_exit_in_a_check_is_a_problem_of_the_grid(install: Install, tmp_path: Path) -> None:
    install("leaves", LOSS)
    result = taskloom("validate", grid(tmp_path, loss={"name": "leaves", "when": "prepare"}))
    assert result.exit_code == 2
    assert "loss 'leaves', metric 'accuracy' cannot be checked against each other: SystemExit: 0" in result.stderr
    assert "data set 'generated'" in result.stderr


FAILS = {
    "exit": ({"loss": {"name": "leaves", "when": "forward"}}, "SystemExit: 0 (a component called sys.exit;"),
    "interrupt": ({"loss": {"name": "leaves", "when": "interrupt"}}, "KeyboardInterrupt"),
    "text": ({"metric": "odd"}, "the metric 'odd' of task 'sst' should give a number. Found str 0.5."),
    "truth": ({"metric": {"name": "odd", "truth": True}}, "should give a number. Found bool True."),
}


@pytest.mark.parametrize("case", FAILS)
def test_what_a_component_does_in_training_fails_its_cell(install: Install, tmp_path: Path, case: str) -> None:
    install("leaves", LOSS)
    task, message = FAILS[case]
    result = taskloom("run", grid(tmp_path, **task), "--registry", tmp_path / "r", "--engine", "inline")
    assert result.exit_code == 1, (result.stderr, result.exception)
    assert message in result.stdout
    (log,) = (tmp_path / "r" / "cells").glob("*/log.txt")
    assert "Traceback" in log.read_text()


class Heard:
    stop_asked = False

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)


def test_whatever_the_work_raises_becomes_one_end() -> None:
    class Wordless(BaseException):
        def __str__(self) -> str:
            raise ValueError

    for error in (SystemExit(3), GeneratorExit(), Wordless(), MemoryError()):

        def work(job: Job, emit: Any, error: BaseException = error) -> None:
            raise error

        heard = Heard()
        perform(work, Job("c", "label", 0, {}, "folder", fence=7), heard)
        (end,) = heard.events
        assert (end.what, end.fence) == ("oom" if isinstance(error, MemoryError) else "failed", 7)
        assert end.facts["reason"].startswith(type(error).__name__)
        assert not end.facts["reason"].endswith(":")
        assert "Traceback" in end.facts["traceback"]
    assert reason_of(SystemExit(3)).startswith("SystemExit: 3 (a component called sys.exit")


def test_a_ctrl_c_in_the_main_thread_is_no_failure_of_the_work() -> None:
    def work(job: Job, emit: Any) -> None:
        raise KeyboardInterrupt

    heard = Heard()
    with pytest.raises(KeyboardInterrupt):
        perform(work, Job("c", "label", 0, {}, "folder"), heard)
    assert not heard.events


WANDERS = """
import os
from torch.nn.functional import cross_entropy
from taskloom.core import Loss, hookimpl

os.chdir(os.environ["ELSEWHERE"])

class Wanders(Loss):
    \"\"\"Changes the current folder.\"\"\"
    name = "wanders"
    expects = "classes"
    separable = True

    def forward(self, prediction, target):
        os.chdir(os.environ["ELSEWHERE"])
        return cross_entropy(prediction.score, target)

@hookimpl
def taskloom_losses(): return [Wanders]
"""


def test_a_component_that_changes_the_folder_moves_no_result(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    monkeypatch.setenv("ELSEWHERE", str(elsewhere))
    monkeypatch.chdir(home)
    install("wanders", WANDERS)
    grid(home, loss="wanders")
    result = taskloom("run", "mine.json", "--registry", "r", "--engine", "inline")
    assert result.exit_code == 0, result.stderr
    assert not list(elsewhere.iterdir())
    found = [sorted(file.name for file in cell.iterdir()) for cell in Path("r/cells").iterdir()]
    assert found == [["best", "fence", "log.txt", "predictions-sst-dev.jsonl"]]
    assert Path.cwd() == home


class Elsewhere(Inline):
    """Works in another folder, and takes this process there."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._elsewhere = folder

    def submit(self, job: Job) -> None:
        os.chdir(self._elsewhere)
        super().submit(job)


def test_a_registry_stays_where_the_run_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(home)
    path = grid(home)
    path.write_text(json.dumps({**json.loads(path.read_text()), "seeds": [0, 1]}))
    outcome = run_here(path, Path("r"), engine=Elsewhere(elsewhere))
    assert (outcome.finished, outcome.failed) == (2, 0)
    assert not list(elsewhere.iterdir())
    found = [sorted(file.name for file in cell.iterdir()) for cell in (home / "r" / "cells").iterdir()]
    assert found == [["best", "fence", "log.txt", "predictions-sst-dev.jsonl"]] * 2


@pytest.mark.parametrize("how", ["returns", "raises"])
def test_the_next_job_begins_in_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.chdir(tmp_path)

    def work(job: Job, emit: Any) -> None:
        os.chdir("/")
        if how == "raises":
            raise ValueError

    perform(work, Job("c", "label", 0, {}, "folder"), Heard())
    assert Path.cwd() == tmp_path


SPINS = """
import torch
from taskloom.core import Loss, hookimpl

class Spins(Loss):
    \"\"\"Never comes back.\"\"\"
    name = "spins"
    expects = "classes"
    separable = True

    def forward(self, prediction, target):
        while True:
            x = torch.randn(300, 300, requires_grad=True)
            (x @ x).sum().backward()

@hookimpl
def taskloom_losses(): return [Spins]
"""
LATE = """
import atexit, os, threading, time

def late():
    threading.main_thread().join()
    print("a late line")
    os.write(1, b"a late line to the descriptor\\n")

atexit.register(print, "a line at the end")
atexit.register(os.write, 1, b"a line to the descriptor at the end\\n")
threading.Thread(target=late).start()
"""


def command(*arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "taskloom.runs.cli", *map(str, arguments)], capture_output=True, text=True, timeout=300
    )


def test_a_cell_that_never_comes_back_does_not_hold_up_the_end(install: Install, tmp_path: Path) -> None:
    install("spins", SPINS)
    options = ["--engine", "inline", "--timeout", 1, "--attempts", 1]
    result = command("run", grid(tmp_path, loss="spins"), "--registry", tmp_path / "r", *options)
    assert result.returncode == 1, result.stderr  # and no abort, which torch sees fit for when Python ends around it
    assert "said nothing for" in result.stdout


def test_what_plugins_print_after_the_answer_is_no_part_of_it(install: Install) -> None:
    install("late", LATE, group="taskloom.grids")
    result = command("grids", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["packaged"]
    for line in ("a late line", "a late line to the descriptor", "a line at the end", "a line to the descriptor at"):
        assert line in result.stderr


LABEL = "a\n\x1b]0;owned\x07\x1b[2Jrow\x9b1m\u202e"
SHOWN = "a \\u001b]0;owned\\u0007\\u001b[2Jrow\\u009b1m\\u202e"


def test_no_label_steers_a_terminal(tmp_path: Path) -> None:
    path, registry = tmp_path / "mine.json", tmp_path / "r"
    base = {"encoder": ENCODER, "tasks": {"sst": TASK}, "stages": [{"epochs": 1}]}
    path.write_text(json.dumps({"base": base, "cells": [{"label": LABEL, "set": {"stages.0.epochs": 1}}]}))
    for name in ("plan", "run", "table", "cells", "explain"):
        result = taskloom(name, path, "--registry", registry, *(["--engine", "inline"] if name == "run" else []))
        assert result.exit_code == 0, result.stderr
        said = result.stdout + result.stderr
        assert not {each for each in said if each != "\n" and not each.isprintable()}, name
        assert SHOWN in said, name
    for form in ("github", "latex", "html", "csv"):
        text = taskloom("table", path, "--registry", registry, "--format", form).stdout
        assert all(each == "\n" or each.isprintable() for each in text), form
    wrong = taskloom("table", path, "--registry", f"{registry}\x1b[2J")
    assert wrong.exit_code == 2
    assert "\x1b" not in wrong.stderr

    for name in ("plan", "cells", "explain"):
        (row,) = json.loads(taskloom(name, path, "--registry", registry, "--json").stdout)["cells"]
        assert row["label"] == LABEL
    assert json.loads(taskloom("table", path, "--registry", registry, "--format", "json").stdout)[0]["label"] == LABEL
