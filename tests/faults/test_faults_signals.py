"""Ctrl-C and SIGTERM: checkpoints, a clean exit and a clear message; twice is at once. No traceback, no orphans."""

import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from faults import CELL, EPOCH, PATIENCE, Driver, Hold, assert_same, read_until, run_here, until, workers_of

from taskloom.registry.results.ledger import Ledger
from taskloom.runs.driver.signals import Stop, stop_on_signals

LOCAL = ("--engine", "local", "--devices", "cpu", "--threads", "1")


@pytest.mark.parametrize(
    ("options", "number", "step", "processes"),
    [
        ((*LOCAL, "--workers", "2"), signal.SIGINT, 5, 2),
        (("--engine", "inline"), signal.SIGTERM, CELL + EPOCH + 5, 1),
    ],
    ids=["Ctrl-C, first epoch, worker processes", "SIGTERM, second cell, this process"],
)
def test_once_is_a_checkpoint_and_a_way_to_go_on(
    undisturbed: tuple[Path, dict[str, Any]],
    tmp_path: Path,
    options: tuple[str, ...],
    number: int,
    step: int,
    processes: int,
) -> None:
    grid, reference = undisturbed
    registry, hold = tmp_path / "registry", Hold(tmp_path / "hold", step)
    with Driver(grid, registry, *options, hold=hold) as driver:
        driver.wait_until_held(processes)
        driver.signal(number)
        driver.wait_for_line("Stopping: the running cells write a checkpoint. Another Ctrl-C ends them at once.")
        if number != signal.SIGINT:
            driver.signal(number)  # GNU timeout does it twice, too
        hold.let_go()
        code, out, text = driver.finish()
        until(lambda: not workers_of(driver.pid))
    assert code == 130, text
    assert out == "", "a table of an interrupted run"
    *_, last = text.splitlines()
    assert last.strip() == shlex.join(["taskloom", "run", str(grid), "--registry", str(registry), *options])
    assert "Interrupted. " in text
    assert "at once." not in text.partition("Another Ctrl-C ends them at once.")[2]
    begun = {"finished": step // CELL, "interrupted": processes, "planned": 3 - step // CELL - processes}
    with Ledger.open(registry, create=False) as ledger:
        assert Counter(cell.status for cell in ledger.cells()) == +Counter(begun)
        for cell in ledger.cells():
            if cell.status == "interrupted":
                assert [attempt.how for attempt in ledger.attempts(cell.id)] == ["interrupted"]
                assert list((registry / "cells" / cell.id).glob("checkpoint-*")), "nothing to go on from"
    resumed: list[str] = []
    outcome = run_here(grid, registry, listen=lambda event: resumed.append(event.what))
    assert outcome.finished + outcome.cached == 3
    assert resumed.count("resumed") == processes
    assert_same(registry, reference)


def test_twice_is_at_once(undisturbed: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    grid, _ = undisturbed
    registry, hold = tmp_path / "registry", Hold(tmp_path / "hold", 3)
    with Driver(grid, registry, *LOCAL, "--workers", "1", hold=hold) as driver:
        driver.wait_until_held()
        driver.signal(signal.SIGINT)
        driver.wait_for_line("Stopping: ")
        assert driver.process.poll() is None, "it does not wait for a cell that does not answer"
        driver.signal(signal.SIGINT)
        code, out, text = driver.finish()
        until(lambda: not workers_of(driver.pid))
    assert (code, out) == (130, ""), text
    assert "Ending at once." in text
    with Ledger.open(registry, create=False) as ledger:
        assert sorted(cell.status for cell in ledger.cells()) == ["interrupted", "planned", "planned"]


def test_only_ctrl_c_counts() -> None:
    """A terminal that is closed sends SIGHUP twice, by its shell and by the system; supervisors repeat SIGTERM."""
    stop = Stop()
    with stop_on_signals(stop):
        for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM, signal.SIGTERM):
            signal.raise_signal(number)
            assert stop.asked == 1
        signal.raise_signal(signal.SIGINT)
        assert stop.asked == 2
        signal.raise_signal(signal.SIGTERM)
        assert stop.asked == 2


def test_ctrl_c_is_heard_where_nobody_reads_the_progress(
    undisturbed: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """A full pipe holds up whoever writes into it, for ever: the third Ctrl-C ends the run all the same."""
    grid, _ = undisturbed
    registry, hold = tmp_path / "registry", Hold(tmp_path / "hold", 3)
    unread, full = os.pipe()
    os.set_blocking(full, False)
    with suppress(BlockingIOError):
        while True:
            os.write(full, b"x" * select.PIPE_BUF)
    os.set_blocking(full, True)
    command = [sys.executable, "-m", "taskloom.runs.cli", "run", str(grid), "--registry", str(registry)]
    process = subprocess.Popen(
        [*command, *LOCAL, "--workers", "1"], stderr=full, stdout=subprocess.DEVNULL, env=os.environ | hold.variables
    )
    try:
        until(lambda: hold.pids or process.poll() is not None)
        end = time.monotonic() + PATIENCE
        while process.poll() is None:  # signals that come while another waits count as one
            process.send_signal(signal.SIGINT)
            assert time.monotonic() < end, "Ctrl-C is not heard"
            time.sleep(0.1)
        assert process.returncode == 130
        until(lambda: not workers_of(process.pid))
    finally:
        process.kill()
        process.wait(PATIENCE)
        os.close(unread)
        os.close(full)


#: Ctrl-C while a module of ours is imported, as by somebody who presses it right after the command.
EARLY = """
import signal, sys
from importlib.abc import MetaPathFinder
class Early(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "taskloom.runs.cli.run":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Early())
from taskloom.runs.cli import main
main()
"""


def test_ctrl_c_before_anything_has_begun() -> None:
    answer = subprocess.run([sys.executable, "-c", EARLY, "--help"], capture_output=True, text=True, timeout=PATIENCE)
    assert (answer.returncode, answer.stdout, answer.stderr) == (130, "", "Interrupted.\n")


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


#: Runs its arguments in a session of its own that has this terminal.
OWN_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(2, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


@contextmanager
def on_a_terminal(
    grid: Path, registry: Path, *options: str, **variables: str
) -> Iterator[tuple[int, "subprocess.Popen[bytes]"]]:
    """``taskloom run`` on a terminal of its own: our side of it, and the process."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "taskloom.runs.cli", "run", str(grid), "--registry", str(registry)]
    process = subprocess.Popen(
        [sys.executable, "-c", OWN_TERMINAL, *command, "--engine", "inline", *options],
        **dict.fromkeys(("stdin", "stdout", "stderr"), theirs),
        env={**os.environ, "TERM": "xterm", **variables},
    )
    os.close(theirs)
    try:
        yield ours, process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(PATIENCE)
        with suppress(OSError):
            os.close(ours)


def test_a_terminal_that_is_closed_leaves_checkpoints(undisturbed: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    grid, reference = undisturbed
    registry, hold = tmp_path / "registry", Hold(tmp_path / "hold", EPOCH + 5)
    with on_a_terminal(grid, registry, **hold.variables) as (terminal, process):
        read_until(terminal, "dev ")  # of a live display
        os.close(terminal)  # its session gets SIGHUP, and what it writes from now on is an error
        hold.let_go()
        assert process.wait(PATIENCE) == 130
    with Ledger.open(registry, create=False) as ledger:
        (begun,) = [cell for cell in ledger.cells() if cell.status == "interrupted"]
        assert [attempt.how for attempt in ledger.attempts(begun.id)] == ["interrupted"]
    assert list((registry / "cells" / begun.id).glob("checkpoint-*"))
    run_here(grid, registry)
    assert_same(registry, reference)


def test_a_terminal_that_cannot_redraw_gets_lines(undisturbed: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """The shell of an editor, or a serial console: what is drawn anew elsewhere is told line by line."""
    grid, _ = undisturbed
    with on_a_terminal(grid, tmp_path, "--only", "lr=0.001", TERM="dumb") as (terminal, process):
        shown = read_until(terminal, "not run yet")  # the table's end
        assert process.wait(PATIENCE) == 0
    assert len(re.findall(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  .*: epoch \d/4  loss", shown, re.MULTILINE)) == 4
    assert "\x1b" not in shown, "a command for a terminal that has none"
