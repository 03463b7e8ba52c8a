"""--strict-plugins: a broken plugin is an error; without it, nobody notices but stderr."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.cli import cli

Install = Callable[..., None]
BROKEN = "import module_that_is_not_there"
HOOK = "from taskloom.core import hookimpl\n@hookimpl\n"
GRID: dict[str, Any] = {
    "base": {
        "encoder": {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 64},
        "tasks": {"sst": {"data": {"name": "generated", "task": "sentiment", "size": 16, "dev_size": 8}}},
        "stages": [{"epochs": 2}],
    }
}


@pytest.fixture
def grid(tmp_path: Path) -> str:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(GRID))
    return str(path)


def taskloom(*arguments: object, **environment: str) -> Result:
    load_catalogue.cache_clear()  # as in a process of its own
    return CliRunner(env=environment).invoke(cli, [str(one) for one in arguments], prog_name="taskloom")


def commands(grid: str, registry: Path) -> list[list[object]]:
    return [
        ["run", grid, "--registry", registry, "--engine", "inline"],
        ["plan", grid, "--registry", registry],
        ["validate", grid],
        ["schema"],
        ["plugins"],
        ["plugins", "--reference"],
        ["grids", "--registry", registry],
    ]


def test_every_broken_plugin_is_an_error_before_any_work(install: Install, grid: str, tmp_path: Path) -> None:
    install("broken", BROKEN)
    install("misspelt", f"{HOOK}def taskloom_component(): return []")
    registry = tmp_path / "registry"
    for command in commands(grid, registry):
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


def test_without_it_the_others_work_and_what_is_left_out_is_said(install: Install, grid: str, tmp_path: Path) -> None:
    install("broken", BROKEN, group="taskloom.grids")
    registry, out = tmp_path / "registry", tmp_path / "predicted"
    for command in commands(grid, registry):
        result = taskloom(*command, TASKLOOM_STRICT_PLUGINS="0")
        assert result.exit_code == 0, result.stderr
        said = result.stderr.count("left out: plugin 'broken' of taskloom-broken 1.2: ModuleNotFoundError")
        assert said == (command[0] in ("run", "grids", "schema")), command
    predict = ["predict", grid, "--registry", registry, "--split", "dev", "--out", out]
    assert taskloom(*predict, "--strict-plugins").exit_code == 2
    assert not out.exists()
    assert "left out: plugin 'broken'" in taskloom(*predict).stderr
    assert out.exists()


def test_validate_says_it_in_json_too(install: Install, grid: str) -> None:
    install("broken", BROKEN)
    result = taskloom("validate", grid, "--json", "--strict-plugins")
    assert result.exit_code == 2
    (error,) = json.loads(result.stdout)["errors"]
    assert "ModuleNotFoundError" in error["message"]


#: Changes all it gets, prints, and raises in one hook at every epoch.
RUDE = """
import os
from taskloom.core import hookimpl

@hookimpl
def taskloom_run_started(spec, label):
    spec.clear()
    os.write(1, b"straight to the descriptor\\n")

@hookimpl
def taskloom_epoch_ended(facts):
    facts["scores"] = None
    raise SystemExit("enough")

@hookimpl
def taskloom_run_finished():
    raise KeyboardInterrupt
"""
#: Keeps what it is told.
POLITE = """
import json
from pathlib import Path
from taskloom.core import hookimpl

def keep(**facts):
    with Path("heard.jsonl").open("a") as file:
        file.write(json.dumps(facts) + "\\n")

@hookimpl
def taskloom_run_started(spec): keep(tasks=list(spec["tasks"]))

@hookimpl
def taskloom_epoch_ended(facts): keep(scores=facts["scores"])
"""


@pytest.mark.parametrize("strict", [False, True])
def test_a_tracker_that_raises_ends_a_strict_run_with_1_at_its_end(
    install: Install, grid: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strict: bool
) -> None:
    install("a", RUDE)
    install("b", POLITE)
    monkeypatch.chdir(tmp_path)
    options = ["--strict-plugins"] if strict else []
    result = taskloom("run", grid, "--registry", "r", "--engine", "inline", "--format", "json", *options)
    assert result.exit_code == (1 if strict else 0), result.stderr
    assert json.loads(result.stdout)[0]["n"] == 1  # the table, whole, and nothing else
    message = "plugin 'a' of taskloom-a 1.2: taskloom_epoch_ended(): SystemExit: enough"
    assert "taskloom_run_finished(): KeyboardInterrupt (said once; the run goes on)" in result.stderr
    assert result.stderr.count(message) == (2 if strict else 1)  # once when it happened, once as the reason
    assert result.stderr.count(f"--strict-plugins: {message}") == strict
    assert "straight to the descriptor" not in result.stdout

    heard = [json.loads(line) for line in Path("heard.jsonl").read_text().splitlines()]
    assert heard[0] == {"tasks": ["sst"]}
    assert [set(one["scores"]) for one in heard[1:]] == [{"sst", "overall"}] * 2
    with Ledger.open("r", create=False) as ledger:
        (cell,) = ledger.cells()
        assert cell.status == "finished"
        assert set(cell.spec["tasks"]) == {"sst"}
        assert len(ledger.epochs(cell.id)[0].scores) == 2
