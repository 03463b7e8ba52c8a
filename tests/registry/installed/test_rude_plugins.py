"""Plugins that misbehave: components that call sys.exit, raise what nobody expects or answer what they should not.

One message each; with --strict-plugins a broken plugin is an error, without it nobody notices but stderr.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from taskloom.core import Event, Job, perform
from taskloom.core.work import reason_of
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.cli import cli

Install = Callable[..., None]
DATA = """
import sys
import numpy as np
from taskloom.core import DataSet, Examples, Labels, hookimpl

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
        return "v1"

@hookimpl
def taskloom_components(): return [Bug]
"""
#: What is wrong with a data set → the fact that its one problem names.
BUGS = {
    "load exit": "(plugin 'bug' of taskloom-bug 1.2) cannot be used: SystemExit: 0",
    "content exit": "SystemExit: 0",
    "two lines": "ZeroDivisionError: oops line2",
    "no words": "MemoryError",
    "none": "Found NoneType",
    "list": "Found list",
    "column": "[4]. Found an array of float64, [4, 1]",
    "no text": "Found 1",
    "half": "Found '\\ud800'",
    "words": "Found an array of <U1",
    "nan": "Found nan",
    "between": "Found 0.5",
    "content none": "Found null",
    "content number": "Found 3",
}
#: Changes the folder at import, and misbehaves in one of its methods; with a metric that gives no number.
LOSS = """
import os
import sys
import torch
from torch.nn.functional import cross_entropy
from taskloom.core import Loss, Metric, hookimpl

os.chdir("/")

class Rude(Loss):
    \"\"\"Misbehaves.

    Options:
        how: in which way
    \"\"\"
    name = "rude"
    expects = "classes"
    separable = True

    def __init__(self, *, how: str = "") -> None:
        super().__init__()
        self.how = how

    def prepare(self, *, labels, rows):
        if self.how == "exits in a check": sys.exit(0)

    def forward(self, prediction, target):
        match self.how:
            case "exits": sys.exit(0)
            case "interrupts": raise KeyboardInterrupt
            case "changes the folder": os.chdir(os.environ["ELSEWHERE"])
            case "hangs":
                while True:
                    x = torch.randn(300, 300, requires_grad=True)
                    (x @ x).sum().backward()
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
def taskloom_components(): return [Rude, Odd]
"""
TASK: dict[str, Any] = {"data": {"name": "generated", "task": "sentiment", "size": 16, "dev_size": 8}}
ENCODER = {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 64}


def grid(folder: Path, epochs: int = 1, **task: Any) -> Path:
    path = folder / "mine.json"
    base = {"encoder": ENCODER, "tasks": {"sst": {**TASK, **task}}, "stages": [{"epochs": epochs}]}
    path.write_text(json.dumps({"base": base}))
    return path


def taskloom(*arguments: object, **environment: str) -> Result:
    load_catalogue.cache_clear()  # as in a process of its own
    runner = CliRunner(env=environment)
    return runner.invoke(cli, [*map(str, arguments)], prog_name="taskloom", color=True)  # as on a terminal


def test_data_that_cannot_be_used_are_refused_in_one_line_each(install: Install, tmp_path: Path) -> None:
    install("bug", DATA)
    for bug, fact in BUGS.items():
        path = grid(tmp_path, data={"name": "bug", "bug": bug})
        result = taskloom("validate", path)
        head, line = result.stderr.splitlines()
        assert (result.exit_code, head) == (2, f"Error: {path}: 1 error"), bug
        assert line.startswith("  tasks.sst.data: data set 'bug'"), bug
        assert fact in line, bug
    assert taskloom("validate", grid(tmp_path, data={"name": "bug"})).exit_code == 0


@pytest.mark.parametrize(
    ("bug", "code", "fact"),
    [
        ("test exit", 2, "a plugin called sys.exit(0)"),
        ("test number", 2, "data set 'bug', split 'test': columns.0.3"),
        ("test labels", 0, "split 'test'"),  # which may lack them
    ],
)
def test_a_test_split_is_checked_before_it_is_predicted(
    install: Install, tmp_path: Path, bug: str, code: int, fact: str
) -> None:
    install("bug", DATA)
    registry, path = tmp_path / "r", grid(tmp_path, data={"name": "bug", "bug": bug})
    assert taskloom("run", path, "--registry", registry, "--engine", "inline").exit_code == 0
    result = taskloom("predict", path, "--registry", registry, "--out", tmp_path / "out", "--format", "jsonl")
    assert result.exit_code == code, result.stderr
    assert (fact in result.stderr) == bool(code)


def test_sys_exit_in_a_check_is_a_problem_of_the_grid(install: Install, tmp_path: Path) -> None:
    install("rude", LOSS)
    result = taskloom("validate", grid(tmp_path, loss={"name": "rude", "how": "exits in a check"}))
    assert result.exit_code == 2
    assert re.search(r"tasks\.sst: .*data set 'generated'.*loss 'rude'.*: SystemExit: 0", result.stderr)


FAILS = {
    "exit": ({"loss": {"name": "rude", "how": "exits"}}, "SystemExit: 0 (a component called sys.exit;"),
    "interrupt": ({"loss": {"name": "rude", "how": "interrupts"}}, "KeyboardInterrupt"),
    "text": ({"metric": "odd"}, "Found str 0.5."),
    "truth": ({"metric": {"name": "odd", "truth": True}}, "Found bool True."),
}


@pytest.mark.parametrize("case", FAILS)
def test_what_a_component_does_in_training_fails_its_cell(install: Install, tmp_path: Path, case: str) -> None:
    install("rude", LOSS)
    task, fact = FAILS[case]
    result = taskloom("run", grid(tmp_path, **task), "--registry", tmp_path / "r", "--engine", "inline")
    assert result.exit_code == 1, (result.stderr, result.exception)
    assert fact in result.stdout
    (log,) = (tmp_path / "r" / "cells").glob("*/log.txt")
    assert "Traceback" in log.read_text()


class Heard:
    stop_asked = False

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)


def test_whatever_the_work_raises_becomes_one_end() -> None:
    class Silent(BaseException):
        def __str__(self) -> str:
            raise ValueError

    for error in (SystemExit(3), GeneratorExit(), Silent(), MemoryError(), ValueError("x\n" * 5000)):

        def work(job: Job, emit: Any, error: BaseException = error) -> None:
            raise error

        heard = Heard()
        perform(work, Job("c", "label", 0, {}, "folder", attempt=7), heard)
        (end,) = heard.events
        assert (end.what, end.attempt) == ("oom" if isinstance(error, MemoryError) else "failed", 7)
        assert end.facts["reason"].startswith(type(error).__name__)
        assert not end.facts["reason"].endswith(":")
        assert len(end.facts["reason"]) < 700
        assert "\n" not in end.facts["reason"]
        assert "Traceback" in end.facts["traceback"]
    assert reason_of(SystemExit(3)).startswith("SystemExit: 3 (a component called sys.exit")


def test_a_ctrl_c_in_the_main_thread_is_no_failure_of_the_work() -> None:
    def work(job: Job, emit: Any) -> None:
        raise KeyboardInterrupt

    heard = Heard()
    with pytest.raises(KeyboardInterrupt):
        perform(work, Job("c", "label", 0, {}, "folder"), heard)
    assert not heard.events


def test_a_component_that_changes_the_folder_moves_no_result(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    monkeypatch.setenv("ELSEWHERE", str(elsewhere))
    monkeypatch.chdir(home)
    install("rude", LOSS)
    grid(home, loss={"name": "rude", "how": "changes the folder"})
    result = taskloom("run", "mine.json", "--registry", "r", "--engine", "inline")
    assert result.exit_code == 0, result.stderr
    assert not list(elsewhere.iterdir())
    (cell,) = Path("r/cells").iterdir()
    assert {"best", "log.txt", "scores-dev.safetensors"} <= {file.name for file in cell.iterdir()}
    assert Path.cwd() == home


def test_a_cell_that_never_comes_back_does_not_hold_up_the_end(install: Install, tmp_path: Path) -> None:
    install("rude", LOSS)
    path = grid(tmp_path, loss={"name": "rude", "how": "hangs"})
    options = ["--engine", "inline", "--timeout", "1", "--attempts", "1"]
    arguments = ["run", str(path), "--registry", str(tmp_path / "r"), *options]
    command = [sys.executable, "-m", "taskloom.runs.cli", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 1, result.stderr  # and not aborted by torch at the end of Python
    assert "no progress for" in result.stdout


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
        assert said.replace("\n", "").isprintable(), name
        assert SHOWN in said, name
    for form in ("github", "latex", "html", "csv"):
        text = taskloom("table", path, "--registry", registry, "--format", form).stdout
        assert text.replace("\n", "").isprintable(), form
    wrong = taskloom("table", path, "--registry", f"{registry}\x1b[2J")
    assert wrong.exit_code == 2
    assert "\x1b" not in wrong.stderr

    for name in ("plan", "cells", "explain"):
        (row,) = json.loads(taskloom(name, path, "--registry", registry, "--json").stdout)["cells"]
        assert row["label"] == LABEL
    (row,) = json.loads(taskloom("table", path, "--registry", registry, "--format", "json").stdout)["rows"]
    assert row["label"] == LABEL


# -- --strict-plugins -------------------------------------------------------------------------------------------------

BROKEN = "import module_that_is_not_there"
HOOK = "from taskloom.core import hookimpl\n@hookimpl\n"


def commands(grid: Path, registry: Path) -> list[list[object]]:
    return [
        ["run", grid, "--registry", registry, "--engine", "inline"],
        ["plan", grid, "--registry", registry],
        ["validate", grid],
        ["schema"],
        ["plugins"],
        ["plugins", "--reference"],
        ["grids", "--registry", registry],
    ]


def test_every_broken_plugin_is_an_error_before_any_work(install: Install, tmp_path: Path) -> None:
    install("broken", BROKEN)
    install("misspelt", f"{HOOK}def taskloom_component(): return []")
    registry = tmp_path / "registry"
    for command in commands(grid(tmp_path), registry):
        for result in (taskloom(*command, "--strict-plugins"), taskloom(*command, TASKLOOM_STRICT_PLUGINS="1")):
            assert result.exit_code == 2, command
            assert result.stdout == ""
            assert "plugin 'broken' of taskloom-broken 1.2: ModuleNotFoundError" in result.stderr
            assert "no hook 'taskloom_component'; did you mean 'taskloom_components'?" in result.stderr
            assert "pip uninstall taskloom-broken" in result.stderr
    assert not registry.exists()


def test_a_name_in_the_limit_that_nothing_has_is_one_of_them(install: Install) -> None:
    install("broken", BROKEN)
    assert taskloom("schema", "--strict-plugins", TASKLOOM_PLUGINS="").exit_code == 0
    result = taskloom("schema", "--strict-plugins", TASKLOOM_PLUGINS="brokn")
    assert result.exit_code == 2
    assert "TASKLOOM_PLUGINS: no plugin 'brokn'; did you mean 'broken'?" in result.stderr


def test_without_it_the_others_work_and_what_is_left_out_is_said(install: Install, tmp_path: Path) -> None:
    install("broken", BROKEN, group="taskloom.grids")
    registry, out = tmp_path / "registry", tmp_path / "predicted"
    for command in commands(grid(tmp_path), registry):
        result = taskloom(*command, TASKLOOM_STRICT_PLUGINS="0")
        assert result.exit_code == 0, result.stderr
        said = result.stderr.count("left out: plugin 'broken' of taskloom-broken 1.2: ModuleNotFoundError")
        assert said == (command[0] in ("run", "grids", "schema")), command
    predict = ["predict", grid(tmp_path), "--registry", registry, "--split", "dev", "--out", out]
    assert taskloom(*predict, "--strict-plugins").exit_code == 2
    assert not out.exists()
    assert "left out: plugin 'broken'" in taskloom(*predict).stderr
    assert out.exists()


def test_validate_says_it_in_json_too(install: Install, tmp_path: Path) -> None:
    install("broken", BROKEN)
    result = taskloom("validate", grid(tmp_path), "--json", "--strict-plugins")
    assert result.exit_code == 2
    (error,) = json.loads(result.stdout)["errors"]
    assert "ModuleNotFoundError" in error["message"]


#: Changes all it gets, prints, and raises at every epoch and at the end.
RUDE_TRACKER = """
import os
from taskloom.core import Tracker, hookimpl

class Rude(Tracker):
    name = "rude"

    def run_started(self, run):
        run.spec.clear()
        os.write(1, b"straight to the descriptor\\n")

    def epoch_ended(self, run, facts):
        facts["scores"] = None
        raise SystemExit("enough")

    def run_finished(self, run, facts):
        raise KeyboardInterrupt

@hookimpl
def taskloom_components(): return [Rude]
"""
#: Keeps what it is told.
POLITE_TRACKER = """
import json
from pathlib import Path
from taskloom.core import Tracker, hookimpl

def keep(**facts):
    with Path("heard.jsonl").open("a") as file:
        file.write(json.dumps(facts) + "\\n")

class Polite(Tracker):
    name = "polite"
    def run_started(self, run): keep(tasks=list(run.spec["tasks"]))
    def epoch_ended(self, run, facts): keep(scores=facts["scores"])

@hookimpl
def taskloom_components(): return [Polite]
"""


@pytest.mark.parametrize("strict", [False, True])
def test_a_tracker_that_raises_ends_a_strict_run_with_1_at_its_end(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strict: bool
) -> None:
    install("a", RUDE_TRACKER)
    install("b", POLITE_TRACKER)
    monkeypatch.chdir(tmp_path)
    options = ["--tracker", "rude", "--tracker", "polite", *(["--strict-plugins"] if strict else [])]
    options += ["--registry", "r", "--engine", "inline", "--format", "json"]
    result = taskloom("run", grid(tmp_path, epochs=2), *options)
    assert result.exit_code == (1 if strict else 0), result.stderr
    assert json.loads(result.stdout)["rows"][0]["n"] == 1  # the table, whole, and nothing else
    message = "tracker 'rude': epoch_ended(): SystemExit: enough"
    assert result.stderr.count(message) == (2 if strict else 1)  # once when it happened, once as the reason
    assert result.stderr.count(f"--strict-plugins: {message}") == strict
    assert "straight to the descriptor" not in result.stdout

    heard = [json.loads(line) for line in Path("heard.jsonl").read_text().splitlines()]
    assert heard[0] == {"tasks": ["sst"]}
    assert [set(facts["scores"]) for facts in heard[1:]] == [{"sst", "overall"}] * 2
    with Ledger.open("r", create=False) as ledger:
        (cell,) = ledger.cells()
        assert cell.status == "finished"
        assert set(cell.spec["tasks"]) == {"sst"}
        assert len(ledger.epochs(cell.id)[0].scores) == 2
