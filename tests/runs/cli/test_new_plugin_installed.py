"""One new plugin of each kind, built as a wheel, installed into a new environment, tested and run there."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from taskloom.runs.cli import cli
from taskloom.runs.scaffold.kinds import PLUGIN_KINDS

#: A plugin of each kind: kind → name.
NAMES = {kind: f"new_{kind}" for kind in PLUGIN_KINDS}
#: Runs several grids in one process, which imports torch once; prints each table as JSON, with the exit code.
RUN_ALL = """
import json, sys
from taskloom.runs.cli import cli
for arguments in json.loads(sys.argv[1]):
    code = cli.main(["run", *arguments, "--format", "json"], prog_name="taskloom", standalone_mode=False)
    print("\\nended with", code)
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package of each kind."""
    folder = tmp_path_factory.mktemp("packages")
    for kind, name in NAMES.items():
        done = CliRunner().invoke(cli, ["new-plugin", name, "--kind", kind, "--into", str(folder)])
        assert done.exit_code == 0, done.output
    return folder


@pytest.fixture(scope="module")
def installed(new_environment: Any, packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The new environment with all of them in it, from wheels."""
    wheels = tmp_path_factory.mktemp("wheels")
    folders = sorted(map(str, packages.iterdir()))
    done = new_environment.run(["pip", "wheel", "-q", "--no-deps", "-w", str(wheels), *folders], cwd=wheels)
    assert done.returncode == 0, done.stderr
    built = sorted(map(str, wheels.glob("*.whl")))
    assert len(built) == len(PLUGIN_KINDS)
    done = new_environment.run(["pip", "install", "-q", "--no-deps", *built], cwd=wheels)
    assert done.returncode == 0, done.stderr
    return new_environment


def test_their_tests_pass_as_generated(installed: Any, packages: Path) -> None:
    tests = sorted(map(str, packages.glob("*/tests")))
    done = installed.run(["python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests], cwd=packages)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout


def test_their_grids_run(installed: Any, packages: Path, tmp_path: Path) -> None:
    requests = []
    for kind, name in NAMES.items():
        grid = name if kind == "grid" else str(packages / f"taskloom-new-{kind}" / f"{name}.json")
        requests.append([grid, "--engine", name if kind == "engine" else "inline", "--tracker", NAMES["tracker"]])
    command = ["python", "-c", RUN_ALL, json.dumps(requests)]
    done = installed.run(command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    *tables, rest = done.stdout.split("\nended with 0\n")
    assert (len(tables), rest) == (len(PLUGIN_KINDS), ""), done.stdout + done.stderr
    for (kind, name), table in zip(NAMES.items(), tables, strict=True):
        rows = {row["label"]: row for row in json.loads(table)["rows"]}
        assert len(rows) == 2
        assert kind in ("engine", "tracker", "grid") or name in rows
        assert [row["metrics"]["overall"]["n"] for row in rows.values()] == [2, 2]
    files = sorted((tmp_path / "taskloom-runs" / NAMES["tracker"]).glob("*.jsonl"))
    # Every cell once, also those that several grids have in common, and that are told again.
    assert {file.stem for file in files} == {path.name for path in (tmp_path / "taskloom-runs" / "cells").iterdir()}
    for file in files:
        events = [json.loads(line)["what"] for line in file.read_text().splitlines()]
        assert (events[0], {*events[1:-1]}, events[-1]) == ("started", {"epoch"}, "finished")
