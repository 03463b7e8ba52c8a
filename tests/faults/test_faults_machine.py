"""A full disk, a locked ledger, a clock that jumps, too little memory: the run ends cleanly or goes on, same result."""

import os
import shlex
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from faults import Driver, assert_same, faulty_rows, moments, run_here, write_grid

from taskloom.core import Event
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.cli import cli


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_ends_the_run_cleanly_and_room_lets_it_go_on(
    undisturbed: tuple[Path, dict[str, Any]], small_disk: Path
) -> None:
    grid, reference = undisturbed
    registry = small_disk / "registry"
    answer = CliRunner().invoke(cli, ["run", str(grid), "--registry", str(registry), "--engine", "inline"])
    print(answer.stderr)
    assert answer.exit_code == 1
    assert answer.exception is None or isinstance(answer.exception, SystemExit)
    assert "Traceback" not in answer.stderr
    assert "the disk is full" in answer.stderr
    with Ledger.open(registry, create=False) as ledger:  # readable, with what was written
        states = [place.cell.status for place in ledger.grid("grid").cells]
    assert len(states) == 3
    assert states.count("finished") < 3, "the disk was not small enough"
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    outcome = run_here(grid, registry)
    assert (outcome.finished + outcome.cached, outcome.failed) == (3, 0)
    assert_same(registry, reference)


def fill(disk: Path) -> None:
    """Leave no room for a single byte."""
    with suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))
    assert shutil.disk_usage(disk).free == 0


def test_a_ledger_on_a_full_disk_is_read_and_a_run_says_how_to_go_on(
    undisturbed: tuple[Path, dict[str, Any]], small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid, _ = undisturbed
    registry = small_disk / "registry"
    registry.mkdir()
    shutil.copy(grid.parent / "registry" / "ledger.sqlite", registry)
    cells, run = ["cells", "--registry", str(registry)], ["run", str(grid), "--registry", str(registry)]
    before = CliRunner().invoke(cli, cells)
    fill(small_disk)
    after = CliRunner().invoke(cli, cells)
    assert (after.exit_code, after.stdout) == (0, before.stdout), after.stderr
    monkeypatch.setattr(sys, "argv", ["taskloom", *run])
    held_up = CliRunner().invoke(cli, run)
    assert held_up.exit_code == 1, held_up.stderr
    assert "the disk is full. Make room and run again" in held_up.stderr
    assert held_up.stderr.endswith(f"\n  taskloom {shlex.join(run)}\n")
    (small_disk / "filler").unlink()
    again = CliRunner().invoke(cli, run)
    assert again.exit_code == 0, again.stderr


@pytest.mark.parametrize(("spare", "missing"), [(2, "/cells"), (4, "/driver.lock")])
def test_a_disk_that_is_full_when_a_cell_begins_holds_the_run_up(
    undisturbed: tuple[Path, dict[str, Any]],
    small_disk: Path,
    monkeypatch: pytest.MonkeyPatch,
    spare: int,
    missing: str,
) -> None:
    grid, _ = undisturbed
    registry = small_disk / "registry"
    Ledger.open(registry, create=True).close()
    subprocess.run(["mount", "-o", "remount,nr_inodes=32", str(small_disk)], check=True)
    with suppress(OSError):  # room is left for content, and none for files
        for number in range(32):
            (small_disk / str(number)).touch()
    for number in range(spare):  # the two that SQLite needs; the two folders of the cell
        (small_disk / str(number)).unlink()
    run = ["run", str(grid), "--registry", str(registry)]
    monkeypatch.setattr(sys, "argv", ["taskloom", *run])
    answer = CliRunner().invoke(cli, run)
    assert answer.exit_code == 1, answer.stderr
    (line,) = [line for line in answer.stderr.splitlines() if "the disk is full" in line]
    assert missing in line
    assert answer.stderr.endswith(f"\n  taskloom {shlex.join(run)}\n")


def test_a_ledger_that_somebody_else_locks_is_waited_for(
    undisturbed: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    grid, reference = undisturbed
    due, heard, locks = moments(31, 2, 12), 0, list[threading.Timer]()

    def lock(event: Event) -> None:
        nonlocal heard
        heard += event.what == "epoch"
        if event.what == "epoch" and heard in due:
            other = sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None, check_same_thread=False)
            other.execute("BEGIN IMMEDIATE")
            print(f"event {heard}: the ledger is locked for a second")
            locks.append(threading.Timer(1.0, other.close))
            locks[-1].start()

    outcome = run_here(grid, tmp_path, listen=lock)
    for timer in locks:
        timer.join()
    assert len(locks) == 2
    assert (outcome.finished, outcome.failed) == (3, 0)
    assert_same(tmp_path, reference)


JUMPY = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
/* The wall clock jumps by up to a week each time somebody looks; the clocks that nobody can set go on as ever. */
static long jump(void) { static unsigned state = SEED; state = state * 1103515245u + 12345u;
    return (long)(state >> 8) % (2 * 604800) - 604800; }
int clock_gettime(clockid_t which, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(which, at);
    if (which == CLOCK_REALTIME && getenv("JUMPY")) at->tv_sec += jump();
    return code; }
"""


def test_a_clock_that_jumps_changes_nothing(undisturbed: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("a clock that jumps is made with a C compiler")
    (tmp_path / "jumpy.c").write_text(JUMPY)
    library = tmp_path / "jumpy.so"
    command = [compiler, "-shared", "-fPIC", "-DSEED=47", "-o", str(library), str(tmp_path / "jumpy.c"), "-ldl"]
    subprocess.run(command, check=True)
    jumpy = {"LD_PRELOAD": str(library), "JUMPY": "1"}
    look = "import time; print(max(abs(time.time() - time.time()) for _ in range(9)) > 3600)"
    seen = subprocess.run([sys.executable, "-c", look], env={**os.environ, **jumpy}, capture_output=True, text=True)
    assert seen.stdout == "True\n", "the clock does not jump"
    grid, reference = undisturbed
    with Driver(grid, tmp_path / "registry", "--timeout", "100", **jumpy) as driver:
        code, _, text = driver.finish()
    assert code == 0, text
    assert_same(tmp_path / "registry", reference)
    with Ledger.open(tmp_path / "registry", create=False) as ledger:
        for cell in ledger.cells():
            assert [attempt.how for attempt in ledger.attempts(cell.id)] == ["finished"]
            assert cell.seconds is not None
            assert 0 < cell.seconds < 3600


def test_out_of_memory_halves_the_micro_batch_until_it_fits(faulty: None, tmp_path: Path) -> None:
    rows = {"fits by threes": {"do": "memory", "at": 3}, "never fits": {"do": "memory", "at": 0}}
    events: list[Event] = []

    def die_of_the_first(event: Event) -> None:
        events.append(event)
        if event.what == "oom":
            raise RuntimeError("the driver dies")

    grid = write_grid(tmp_path, **faulty_rows(**rows))
    with pytest.raises(RuntimeError, match="the driver dies"):
        run_here(grid, tmp_path / "registry", listen=die_of_the_first)
    outcome = run_here(grid, tmp_path / "registry", listen=events.append)
    with Ledger.open(tmp_path / "registry", create=False) as ledger:
        cells = {place.label: place.cell for place in ledger.grid("grid").cells}
        attempts = {label: ledger.attempts(cell.id) for label, cell in cells.items()}
    again = run_here(grid, tmp_path / "registry", retry_failed=False)
    assert (outcome.finished + outcome.cached, outcome.failed) == (2, 1)
    assert {label: cell.status for label, cell in cells.items()} == {
        "fine": "finished",
        "fits by threes": "finished",
        "never fits": "oom",
    }
    tried = {label: [(one.how, one.micro_batch) for one in each] for label, each in attempts.items()}
    assert tried["fine"] == [("finished", None)]
    assert tried["fits by threes"] == [("oom", 8), ("oom", 4), ("finished", 2)]
    assert tried["never fits"] == [("oom", 8), ("oom", 4), ("oom", 2), ("oom", 1)]
    assert "one example at a time" in str(cells["never fits"].reason)
    assert "'sst'" in str(cells["never fits"].reason)
    told = [event for event in events if event.what == "oom" and event.facts.get("again")]
    assert {event.facts["task"] for event in told} == {"sst"}
    assert (again.cached, again.failed) == (2, 1)
