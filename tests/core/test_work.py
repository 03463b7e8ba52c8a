"""The worker's part of an engine: a cell's log, and the one event that ends a job."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from taskloom.core import Event, Job, perform
from taskloom.core.work import append_log, rotate_log
from taskloom.plugins.engines.worker import redirect_output


def test_a_log_is_bounded_and_its_end_kept_whoever_writes_to_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A worker prints, the driver appends, an attempt that was given up still prints; rotated at every event."""
    limit, line = 5_000, 0
    (tmp_path / "log.txt").touch()
    given_up = os.open(tmp_path / "log.txt", os.O_WRONLY | os.O_APPEND)
    with redirect_output(tmp_path):
        for event in range(30):
            for _ in range(event % 4):
                os.write(1, b"%05d by C\n" % line)
                print(f"{line + 1:05d} by Python", "x" * 300)
                append_log(tmp_path, f"{line + 2:05d} by the driver")
                os.write(given_up, b"%05d by another process\n" % (line + 3))
                line += 4
            rotate_log(tmp_path, limit)
        print("at the end", end="")
    os.write(1, b"outside\n")
    os.close(given_up)
    old, new = ((tmp_path / name).read_text() for name in ("log-old.txt", "log.txt"))
    assert len(old) <= limit
    assert len(new) <= limit
    kept = [int(line[:5]) for line in (old + new).splitlines()[1:-1]]
    assert kept == list(range(line - len(kept), line)), "the newest lines are kept in order"
    assert len(kept) < line, "the bound was put to the test"
    assert new.endswith("at the end")
    assert capfd.readouterr().out == "outside\n"


def test_a_text_larger_than_a_log_is_cut(tmp_path: Path) -> None:
    append_log(tmp_path, "x" * 9_999 + "end")
    rotate_log(tmp_path, 1_000)
    append_log(tmp_path, "after")
    assert (tmp_path / "log-old.txt").read_text() == "x" * 996 + "end\n"
    assert (tmp_path / "log.txt").read_text() == "after\n"


def test_an_end_is_the_end(tmp_path: Path) -> None:
    class Emit:
        stop_asked = False

        def __init__(self) -> None:
            self.events: list[Event] = []

        def __call__(self, event: Event) -> None:
            json.dumps(vars(event))
            self.events.append(event)

    def raises_after(one: Job, emit: Any) -> None:
        emit(Event("finished", one.cell))
        raise RuntimeError("too late")

    def not_json(one: Job, emit: Any) -> None:
        emit(Event("finished", one.cell, {"scores": object()}))

    def full(one: Job, emit: Any) -> None:
        raise OSError(28, "No space left on device", "checkpoint")

    def allocates(one: Job, emit: Any) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory")

    for work, what in ((raises_after, "finished"), (not_json, "failed"), (full, "failed"), (allocates, "oom")):
        emit = Emit()
        perform(work, Job("c", "c", 0, {}, str(tmp_path), attempt=5), emit)
        assert [(event.what, event.attempt) for event in emit.events] == [(what, 5)]
        assert emit.events[0].facts.get("disk_full", False) is (work is full)
