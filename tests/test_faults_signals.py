"""Ctrl-C and SIGTERM: checkpoints, a clean exit and a clear message; twice is at once. No traceback, no orphans."""

import os
import pty
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from faults import assert_same, driving, faulty_rows, no_workers_left, result_of, run_here, write_grid, write_plugin

from taskloom.registry.ledger import Ledger

LOCAL = ("--engine", "local", "--devices", "cpu", "--threads", "1")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("undisturbed")
    grid = write_grid(folder)
    assert run_here(grid, folder / "registry").finished == 3
    return grid, result_of(folder / "registry")


@pytest.mark.parametrize(
    ("options", "number", "moment"),
    [((*LOCAL, "--workers", "2"), signal.SIGINT, 3), (("--engine", "inline"), signal.SIGTERM, 6)],
    ids=["Ctrl-C, worker processes", "SIGTERM, this process"],
)
def test_once_is_a_checkpoint_and_a_way_to_go_on(
    undisturbed: tuple[Path, dict[str, Any]], tmp_path: Path, options: tuple[str, ...], number: int, moment: int
) -> None:
    grid, reference = undisturbed
    with driving(grid, tmp_path, *options) as driver:
        assert driver.wait_for(lambda: len(driver.epochs) >= moment)
        driver.signal(number)
        code, out, text = driver.finish()
        assert no_workers_left(driver.pid)
    assert code == 130, text
    assert out == "", "a table of an interrupted run"
    assert "Stopping: the running cells write a checkpoint. Once more ends them at once." in text
    *_, last = text.splitlines()
    assert last.strip() == shlex.join(["taskloom", "run", str(grid), "--registry", str(tmp_path), *options])
    assert "Interrupted. " in text
    with Ledger.open(tmp_path, create=False) as ledger:
        states = [cell.status for cell in ledger.cells()]
        assert set(states) <= {"finished", "interrupted", "planned"}
        assert "interrupted" in states
        kept = []
        for cell in ledger.cells():
            if cell.status == "interrupted":
                assert [attempt.how for attempt in ledger.attempts(cell.id)] == ["interrupted"]
                found = list((tmp_path / "cells" / cell.id).glob("checkpoint-*"))
                assert found or not cell.epochs, "nothing to go on from"
                kept += found
    resumed: list[str] = []
    outcome = run_here(grid, tmp_path, listen=lambda event: resumed.append(event.what))
    assert outcome.finished + outcome.cached == 3
    assert ("resumed" in resumed) == bool(kept)  # one that was still reading its data begins anew
    assert_same(tmp_path, reference)


def test_twice_is_at_once(tmp_path: Path) -> None:
    write_plugin(tmp_path / "site")
    grid = write_grid(tmp_path, **faulty_rows(hangs={"do": "hang"}))
    path = os.pathsep.join(filter(None, [str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")]))
    options = (*LOCAL, "--workers", "1", "--only", "hangs")
    with driving(grid, tmp_path / "registry", *options, PYTHONPATH=path) as driver:
        driver.wait_for_line("hangs, seed 5: started")
        driver.signal(signal.SIGINT)
        driver.wait_for_line("Stopping: ")
        assert driver.process.poll() is None, "it does not wait for a cell that does not answer"
        driver.signal(signal.SIGINT)
        code, out, text = driver.finish()
        assert no_workers_left(driver.pid)
    assert (code, out) == (130, ""), text
    assert "Ending at once." in text
    with Ledger.open(tmp_path / "registry", create=False) as ledger:
        states = {place.label: place.cell.status for place in ledger.grid("grid").cells}
    assert states == {"fine": "planned", "hangs": "interrupted"}


def test_a_reader_that_goes_away_changes_nothing(undisturbed: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """``taskloom run … 2>&1 >table | head -n 1``: nobody reads on, and the table comes all the same."""
    grid, reference = undisturbed
    command = [sys.executable, "-m", "taskloom.runs.cli", "run", str(grid), "--registry", str(tmp_path)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, "--engine", "inline"], **pipes) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        assert "started" in process.stderr.readline()
        process.stderr.close()
        table = process.stdout.read()
        assert process.wait(timeout=300) == 0
    assert "seeds" in table
    assert_same(tmp_path, reference)


def test_a_terminal_that_is_closed_leaves_checkpoints(undisturbed: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    grid, reference = undisturbed
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "taskloom.runs.cli", "run", str(grid), "--registry", str(tmp_path)]
    own_terminal = "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(2, termios.TIOCSCTTY, 0); "
    own_terminal += "os.execv(sys.argv[1], sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", own_terminal, *command, "--engine", "inline"], stdout=theirs, stderr=theirs, stdin=theirs
    )
    os.close(theirs)
    shown = b""
    while b"epoch 1/" not in shown:  # of a live display
        shown += os.read(ours, 65536)
    os.close(ours)  # its session gets SIGHUP, and what it writes from now on is an error
    assert process.wait(timeout=300) == 130
    with Ledger.open(tmp_path, create=False) as ledger:
        begun = [cell for cell in ledger.cells() if cell.status == "interrupted"]
        assert [attempt.how for attempt in ledger.attempts(begun[0].id)] == ["interrupted"]
    assert list((tmp_path / "cells" / begun[0].id).glob("checkpoint-*"))
    run_here(grid, tmp_path)
    assert_same(tmp_path, reference)
