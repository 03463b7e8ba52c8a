"""Results outlive releases: real registries and archives of 0.1.0 and 0.2.0 open, show the same, and are added to."""

import fcntl
import json
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from click.testing import CliRunner

from taskloom.core.errors import RegistryError
from taskloom.registry.results import file as ledger_file
from taskloom.registry.results.file import FILE, SCHEMA
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.cli import cli

OLDER = Path(__file__).parent / "older"
GRID = OLDER / "older.json"


def run(*arguments: object, code: int = 0) -> Any:
    done = CliRunner().invoke(cli, [*map(str, arguments)])
    assert done.exit_code == code, done.output
    return done


def planned(registry: Path) -> dict[str, list[str]]:
    """Label → the states of its seeds."""
    states: dict[str, list[str]] = {}
    for cell in json.loads(run("plan", GRID, "--registry", registry, "--json").stdout)["cells"]:
        states.setdefault(cell["label"], []).append(cell["status"])
    return states


@pytest.fixture(params=["0.1.0", "0.2.0"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def registry(version: str, tmp_path: Path) -> Path:
    return unpacked(version, tmp_path / "registry")


def unpacked(version: str, folder: Path) -> Path:
    with ZipFile(OLDER / f"{version}.zip") as archive:
        archive.extractall(folder)
    return folder


def test_a_registry_of_an_older_version_shows_what_it_showed(registry: Path, version: str) -> None:
    before = json.loads((OLDER / f"{version}-table.json").read_text())
    after = json.loads(run("table", "older", "--registry", registry, "--format", "json").stdout)["rows"]
    assert figures(after) == figures(before)
    for command in (["claims", "older"], ["effects", "older"], ["compare", "sum", "pcgrad, mean"], ["errors", "sum"]):
        assert run(*command, "--registry", registry).stdout


def figures(rows: list[dict[str, Any]]) -> list[tuple[str, dict[str, list[Any]]]]:
    """Label and columns of a table's rows."""
    keys = ("mean", "sd", "n")
    return [
        (row["label"], {name: [part[key] for key in keys] for name, part in row["metrics"].items()}) for row in rows
    ]


def dump(path: Path) -> tuple[int, list[str]]:
    """A ledger's version, and all that it holds."""
    with closing(sqlite3.connect(path)) as database:
        return database.execute("PRAGMA user_version").fetchone()[0], list(database.iterdump())


def test_it_is_brought_up_to_date_after_a_copy(registry: Path) -> None:
    before = dump(registry / FILE)
    with Ledger.open(registry, create=False) as ledger:
        cells = ledger.cells()
    assert before[0] == 4
    assert dump(registry / FILE)[0] == SCHEMA
    assert dump(registry / "ledger-4.sqlite") == before
    with Ledger.open(registry, create=False) as ledger:
        assert ledger.cells() == cells, "a second time nothing happens"


def test_all_steps_are_taken_or_none(registry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = dump(registry / FILE)
    monkeypatch.setattr(ledger_file, "STEPS", {**ledger_file.STEPS, 5: "CREATE TABLE cells (id TEXT)"})
    with pytest.raises(RegistryError, match="table cells already exists"):
        Ledger.open(registry, create=False)
    assert dump(registry / FILE) == before


def test_a_driver_that_runs_blocks_nobody(registry: Path) -> None:
    with (registry / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)  # as a driver has it for as long as it runs
        assert run("table", "older", "--registry", registry).stdout
    assert dump(registry / FILE)[0] == SCHEMA


READER = """
import os, sys
from click.testing import CliRunner
from taskloom.runs.cli import cli

# Of a copy, so that all modules are imported: the user below may not read the interpreter's.
CliRunner().invoke(cli, ["table", "older", "--registry", sys.argv[2], "--format", "json"])
if os.geteuid() == 0:  # root may write everywhere
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
done = CliRunner().invoke(cli, ["table", "older", "--registry", sys.argv[1], "--format", "json"])
print(done.output)
sys.exit(done.exit_code)
"""


def test_one_that_may_only_be_read_is_shown_and_stays_as_it_is() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "r"
        unpacked("0.2.0", folder)
        copy = shutil.copytree(folder, Path(temporary) / "copy")
        before = (folder / FILE).read_bytes()
        for path in (Path(temporary), folder, *folder.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        done = subprocess.run([sys.executable, "-c", READER, str(folder), str(copy)], capture_output=True, text=True)
        for path in (Path(temporary), *Path(temporary).rglob("*")):
            path.chmod(0o755)
        assert done.returncode == 0, done.stdout + done.stderr
        assert len(json.loads(done.stdout)["rows"]) == 7
        assert (folder / FILE).read_bytes() == before


def test_cells_of_the_same_trainer_are_cached_but_for_what_is_computed_otherwise(tmp_path: Path) -> None:
    unpacked("0.2.0", tmp_path / "registry")
    states = planned(tmp_path / "registry")
    new = {label for label, seeds in states.items() if set(seeds) == {"new"}}
    assert new == {"smart", "regression"}, "whose results changed since"
    assert {state for label in states if label not in new for state in states[label]} == {"finished"}
    explained = run("explain", GRID, "--registry", tmp_path / "registry").stdout
    assert "loss 'smart' has another revision (1 → 2)" in explained
    assert "an older version decided its predictions otherwise" in explained
    before = json.loads((OLDER / "0.2.0-table.json").read_text())
    done = run("run", GRID, "--registry", tmp_path / "registry", "--format", "json")
    assert "14 of 14 cells done (10 before)" in done.stderr
    rows = {row["label"]: row["metrics"]["overall"] for row in json.loads(done.stdout)["rows"]}
    for row in before:
        assert (rows[row["label"]]["mean"] == row["metrics"]["overall"]["mean"]) == (row["label"] not in new)
    assert {state for seeds in planned(tmp_path / "registry").values() for state in seeds} == {"finished"}
    with Ledger.open(tmp_path / "registry", create=False) as ledger:
        assert all(cell.cell.identity for cell in ledger.grid("older").cells), "what was planned is known by it"


def test_an_archive_of_an_older_version_is_imported_counts_and_can_be_added_to(tmp_path: Path) -> None:
    run("import", OLDER / "0.2.0-archive.zip", "--registry", tmp_path / "r")
    states = planned(tmp_path / "r")
    assert states["sum"] == states["pcgrad"] == states["two stages"] == ["finished", "finished"]
    more = run("run", GRID, "--registry", tmp_path / "r", "--only", "sum", "--seeds", "+2", "--format", "json")
    assert "4 of 4 cells done (2 before)" in more.stderr, more.stderr
    rows = {row["label"]: row for row in json.loads(more.stdout)["rows"]}
    assert rows["sum"]["n"] == 4


def test_an_older_trainer_is_named(tmp_path: Path) -> None:
    unpacked("0.1.0", tmp_path / "registry")
    text = run("table", "older", "--registry", tmp_path / "registry").stdout
    assert "Made by an older trainer (2; today's is 3): 'sum', 'pcgrad'" in text
    assert {state for seeds in planned(tmp_path / "registry").values() for state in seeds} == {"new"}
    noted = run("plan", GRID, "--registry", tmp_path / "registry").stderr
    assert "made by an older trainer" in noted
    explained = json.loads(run("explain", GRID, "--registry", tmp_path / "registry", "--json").stdout)["cells"]
    (own,) = [cell for cell in explained if (cell["label"], cell["seed"]) == ("sum", 0)]
    assert own["state"] == "stale"
    assert own["why"].endswith("it is run again: made by an older trainer")
