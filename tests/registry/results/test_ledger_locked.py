"""A ledger that another process holds: writers wait, then say one sentence; readers do not notice."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from taskloom.core import Event, RegistryError
from taskloom.registry.results.file import FILE
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.cli import cli

HOLDER = """
import sqlite3, sys, time
database = sqlite3.connect(sys.argv[1], isolation_level=None)
for statement in sys.argv[3:]:
    database.execute(statement).fetchall()
print("held", flush=True)
time.sleep(float(sys.argv[2]))
"""
LOCKED = r"is locked: another process holds it, and did not release it in time\. Try again when"


@dataclass(frozen=True)
class Cell:
    id: str
    label: str = "sum"
    seed: int = 0
    spec: dict[str, Any] = field(default_factory=lambda: {"seed": 0})
    reported: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    with Ledger.open(tmp_path / "registry", create=True) as ledger:
        ledger.record_grid("grid", {}, [Cell("aa"), Cell("bb", seed=1)])
        ledger.write(Event("started", "aa", {}))
        ledger.write(Event("finished", "aa", {"scores": {"overall": 0.5}}))
    return tmp_path / "registry"


@contextmanager
def held(registry: Path, *statements: str, seconds: float = 600) -> Iterator[None]:
    """Another process holds the ledger until the block ends, or for some seconds."""
    command = [sys.executable, "-c", HOLDER, str(registry / FILE), str(seconds), *(statements or ("BEGIN EXCLUSIVE",))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield
    finally:
        process.kill()
        process.communicate()


def test_a_writer_waits_until_the_other_is_done(registry: Path) -> None:
    with held(registry, seconds=1.0), Ledger.open(registry, create=True) as ledger:
        ledger.write(Event("started", "bb", {}))
        assert ledger.states() == {"aa": "finished", "bb": "interrupted"}


def test_a_writer_that_waits_in_vain_says_one_sentence_and_writes_nothing(registry: Path) -> None:
    with Ledger.open(registry, create=True, timeout=0.2) as ledger:
        with held(registry):
            for write in (
                lambda: ledger.write(Event("started", "bb", {})),
                lambda: ledger.record_grid("other", {}, [Cell("cc")]),
            ):
                with pytest.raises(RegistryError, match=LOCKED) as caught:
                    write()
                assert "\n" not in str(caught.value)
            assert ledger.states() == {"aa": "finished"}
        ledger.write(Event("started", "bb", {}))  # and later it goes on


def test_commands_that_read_answer_while_the_ledger_is_held(registry: Path) -> None:
    with held(registry):
        for command in (["cells"], ["table", "grid"], ["grids"]):
            done = CliRunner().invoke(cli, [*command, "--registry", str(registry)])
            assert done.exit_code == 0, done.output
            assert "grid" in done.output or "0.5" in done.output


def test_who_locks_out_readers_too_is_told_of(registry: Path) -> None:
    alone = ("PRAGMA locking_mode = EXCLUSIVE", "BEGIN EXCLUSIVE", "UPDATE meta SET value = value", "COMMIT")
    with held(registry, *alone), pytest.raises(RegistryError, match=LOCKED):
        Ledger.open(registry, create=False, timeout=0.2).states()
    with Ledger.open(registry, create=False) as ledger:
        assert ledger.states() == {"aa": "finished"}
