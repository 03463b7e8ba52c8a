"""Many driver processes on one registry: every cell is finished exactly once, and nobody waits in vain."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.locks import holder

SCRIPT = Path(__file__).with_name("drivers.py")


@contextmanager
def drivers(folder: Path, count: int, *how: str) -> Iterator[list["subprocess.Popen[str]"]]:
    """Drivers that are ready, and wait for the signal to begin."""
    command = [sys.executable, str(SCRIPT), str(folder), "grid", *how]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = [subprocess.Popen(command, encoding="utf-8", **pipes) for _ in range(count)]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def go(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def registry(folder: Path, count: int) -> Ledger:
    ledger = Ledger.open(folder, create=True)
    facts = {"seed": 0, "spec": {"seed": 0}, "reported": {}, "facts": {}}
    cells = [SimpleNamespace(id=f"c{number:04}", label=f"row {number}", **facts) for number in range(count)]
    ledger.record_grid("grid", {}, cells)
    return ledger


def test_eight_drivers_finish_every_cell_exactly_once(tmp_path: Path) -> None:
    each, count = 200, 8
    with registry(tmp_path, each * count) as ledger:
        with drivers(tmp_path, count) as running:
            for process in running:
                go(process)
            said = [process.communicate(timeout=300) for process in running]
            assert [(process.returncode, err) for process, (_, err) in zip(running, said, strict=True)] == [(0, "")] * 8
        cells = [cell for out, _ in said for cell in out.split()]
        assert len(cells) == len(set(cells)) == each * count, "no cell was run by two, none was left out"
        assert sum(bool(out.strip()) for out, _ in said) > 1, "they did share"
        for cell in ledger.cells():
            (attempt,) = ledger.attempts(cell.id)
            assert (cell.status, cell.attempts, attempt.how) == ("finished", 1, "finished")
            assert holder(tmp_path, cell.id) is None


def test_the_loop_of_taskloom_run_shares_a_grid(tmp_path: Path) -> None:
    count = 60
    with registry(tmp_path, count) as ledger, drivers(tmp_path, 3, "loop") as running:
        for process in running:
            go(process)
        said = [process.communicate(timeout=300) for process in running]
        assert [(process.returncode, err) for process, (_, err) in zip(running, said, strict=True)] == [(0, "")] * 3
        cells = [cell for out, _ in said for cell in out.split()]
        assert len(cells) == len(set(cells)) == count
        for cell in ledger.cells():
            (attempt,) = ledger.attempts(cell.id)
            ran = (tmp_path / "cells" / cell.id / "ran").read_text().split()
            assert (cell.status, attempt.how, ran) == ("finished", "finished", ["ran"])


@pytest.mark.skipif(os.name == "nt", reason="needs the signals of POSIX")
def test_what_a_killed_driver_leaves_the_others_finish(tmp_path: Path) -> None:
    with registry(tmp_path, 200) as ledger, drivers(tmp_path, 3) as (victim, *others):
        assert victim.stdin is not None
        go(victim)
        while sum(state == "finished" for state in ledger.states().values()) < 5:
            assert victim.poll() is None
        victim.send_signal(signal.SIGKILL)
        for process in others:
            go(process)
        for process in others:
            assert process.communicate(timeout=120)[1] == ""
        for cell in ledger.cells():
            assert cell.status == "finished"
            ends = [attempt.how for attempt in ledger.attempts(cell.id)]
            assert ends in (["finished"], ["lost", "finished"])
