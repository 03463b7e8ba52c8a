"""Many driver processes on one registry: every cell is finished exactly once, and nobody waits in vain."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from drivers import planned

from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.locks import holder

SCRIPT = Path(__file__).parents[2] / "helpers" / "drivers.py"


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
    ledger.record_grid("grid", {}, [planned(f"c{number:04}", f"row {number}") for number in range(count)])
    return ledger


@pytest.mark.parametrize(("count", "cells", "how"), [(8, 320, ()), (2, 40, ("loop",))])
def test_drivers_finish_every_cell_exactly_once(tmp_path: Path, count: int, cells: int, how: tuple[str, ...]) -> None:
    with registry(tmp_path, cells) as ledger:
        with drivers(tmp_path, count, *how) as running:
            for process in running:
                go(process)
            said = [process.communicate(timeout=300) for process in running]
            assert [(process.returncode, err) for process, (_, err) in zip(running, said, strict=True)] == [
                (0, "")
            ] * count
        done = [cell for out, _ in said for cell in out.split()]
        assert len(done) == len(set(done)) == cells, "no cell was run by two, none was left out"
        assert how or sum(bool(out.strip()) for out, _ in said) > 1, "they did share"
        for cell in ledger.cells():
            assert (cell.status, cell.attempts) == ("finished", 1)
            assert holder(tmp_path, cell.id) is None
            if how:
                assert (tmp_path / "cells" / cell.id / "ran").read_text() == "ran\n"


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
        assert ledger._database.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        assert ledger._database.execute("PRAGMA foreign_key_check").fetchall() == []
        for cell in ledger.cells():
            assert cell.status == "finished"
            ends = [attempt.how for attempt in ledger.attempts(cell.id)]
            assert ends in (["finished"], ["lost", "finished"])
