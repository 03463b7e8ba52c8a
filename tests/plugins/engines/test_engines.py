"""What engines promise, with work that takes no time: one end for every job, whatever the work or its process does."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from taskloom.core import ENDS, Engine, Event, Job, perform
from taskloom.plugins.engines import local as local_engine
from taskloom.plugins.engines.inline import Inline
from taskloom.plugins.engines.local import Local

HERE = Path(__file__).parents[2] / "faults"
WORK = "faulty_work:work"
PATIENCE = 120.0


@pytest.fixture(autouse=True)
def _workers_find_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.syspath_prepend(str(HERE))


def job(cell: str, do: str, folder: Path, **more: Any) -> Job:
    return Job(cell, cell, 0, {"do": do}, str(folder), **more)


def gone(pid: int) -> bool:
    """Whether a process has ended (a zombie has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def wait_until(condition: Callable[[], Any]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.01)


class Watched:
    """An engine with all its events."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine, self.events = engine, list[Event]()
        engine.check()
        engine.open(WORK, folder)

    def poll(self) -> None:
        self.events += self.engine.poll(0.05)

    def until(self, what: str, cell: str, count: int = 1) -> Event:
        until = time.monotonic() + PATIENCE
        while len(found := [event for event in self.of(cell) if event.what == what]) < count:
            assert time.monotonic() < until, f"no {what!r} of {cell!r}; heard {self.events}"
            self.poll()
        return found[-1]

    def end(self, cell: str) -> Event:
        until = time.monotonic() + PATIENCE
        while not (ends := [event for event in self.of(cell) if event.what in ENDS]):
            assert time.monotonic() < until, f"no end of {cell!r}; heard {self.events}"
            self.poll()
        return ends[-1]

    def of(self, cell: str) -> list[Event]:
        return [event for event in self.events if event.cell == cell]


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Watched]:
    watched = Watched(Local(workers=2, devices="cpu", threads=1), tmp_path)
    yield watched
    watched.engine.close()


@pytest.fixture
def inline(tmp_path: Path) -> Iterator[Watched]:
    watched = Watched(Inline(), tmp_path)
    yield watched
    watched.engine.close()


@pytest.mark.parametrize("name", ["local", "inline"])
def test_every_end_is_told_once_and_the_engine_goes_on(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    engine: Watched = request.getfixturevalue(name)
    expected = {
        "fine": "finished",
        "raise": "failed",
        "memory": "oom",
        "nothing": "failed",
        "not json": "failed" if name == "local" else "finished",
        "wait": "interrupted",
    }
    for place, (do, end) in enumerate(expected.items()):
        cell = do.replace(" ", "-")
        engine.engine.submit(job(cell, do, tmp_path, fence=place + 1))
        engine.until("started", cell)
        if do == "wait":
            engine.engine.stop(cell)
        assert engine.end(cell).what == end
        assert [event.fence for event in engine.of(cell)] == [place + 1] * len(engine.of(cell))
        assert sum(event.what in ENDS for event in engine.of(cell)) == 1
        assert engine.of(cell)[-1].what in ENDS
    assert engine.engine.free == engine.engine.slots
    assert engine.end("raise").facts["reason"] == "ValueError: a plugin's defect"
    assert "in work" in engine.end("raise").facts["traceback"]
    assert engine.end("memory").facts["micro_batch"] == 8
    assert engine.end("memory").facts["task"] == "sst"


def test_one_warm_process_runs_many_cells_and_two_run_at_once(local: Watched, tmp_path: Path) -> None:
    assert (local.engine.slots, local.engine.free) == (2, 2)
    for cell in ("a", "b"):
        local.engine.submit(job(cell, "wait", tmp_path))
    pids = {local.until("started", cell).facts["pid"] for cell in ("a", "b")}
    assert len(pids) == 2
    assert local.engine.free == 0
    assert local.until("started", "a").facts["environment"] == {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    local.engine.stop("a")
    assert local.end("a").what == "interrupted"
    assert local.engine.free == 1
    assert not any(event.what in ENDS for event in local.of("b")), "only one was asked to stop"
    local.engine.submit(job("c", "fine", tmp_path))
    assert local.end("c").what == "finished"
    assert local.until("started", "c").facts["pid"] in pids, "the process was not used again"
    local.engine.close()
    local.engine.close()
    wait_until(lambda: all(gone(pid) for pid in pids))


def test_a_worker_that_dies_loses_its_cell_and_nothing_else(local: Watched, tmp_path: Path) -> None:
    local.engine.submit(job("steady", "wait", tmp_path))
    local.until("started", "steady")
    deaths = {"killed": "was killed (SIGKILL)", "crash": "crashed (SIGABRT)", "exit": "ended with exit code 7"}
    for place, (cell, reason) in enumerate(deaths.items()):
        do = "hang" if cell == "killed" else cell
        local.engine.submit(job(cell, do, tmp_path, fence=place))
        pid = local.until("started", cell).facts["pid"]
        if cell == "killed":
            os.kill(pid, signal.SIGKILL)
        end = local.end(cell)
        assert (end.what, end.fence) == ("lost", place)
        assert end.facts["reason"] == f"worker process {pid} {reason}"
        assert local.engine.free == 1
    log = (tmp_path / "cells" / "crash" / "log.txt").read_text()
    assert "Fatal Python error: Aborted" in log
    assert "faulty_work.py" in log, "the log does not say where it crashed"
    local.engine.stop("steady")
    assert local.end("steady").what == "interrupted"


def test_what_hangs_or_does_not_listen_is_ended_at_once_with_its_children(local: Watched, tmp_path: Path) -> None:
    local.engine.submit(job("child", "child", tmp_path))
    local.engine.submit(job("deaf", "deaf", tmp_path))
    child = int(local.until("log", "child").facts["message"])
    local.until("progress", "deaf")
    local.engine.stop("child", at_once=True)
    end = local.end("child")
    assert (end.what, end.facts["reason"]) == ("lost", "stopped at once")
    wait_until(lambda: gone(child))
    local.engine.stop(at_once=True)
    assert local.end("deaf").what == "lost"


def test_what_a_component_forked_neither_hides_a_death_nor_outlives_it(local: Watched, tmp_path: Path) -> None:
    for place, do in enumerate(("fork and hang", "fork and exit", "fork and go on")):
        cell = f"c{place}"
        local.engine.submit(job(cell, do, tmp_path))
        pid = local.until("started", cell).facts["pid"]
        left = [int(number) for number in local.until("log", cell).facts["message"].split()]
        if do == "fork and hang":
            os.kill(pid, signal.SIGKILL)
        end = local.end(cell)
        if do == "fork and go on":
            assert end.what == "finished"
            assert not any(map(gone, left)), "the worker goes on, and with it what it started"
            local.engine.close()
        else:
            how = "was killed (SIGKILL)" if do == "fork and hang" else "ended with exit code 5"
            assert (end.what, end.facts["reason"]) == ("lost", f"worker process {pid} {how}")
        wait_until(lambda left=left: all(map(gone, left)))


def test_a_forked_copy_that_goes_on_with_the_work_is_not_heard(local: Watched, tmp_path: Path) -> None:
    local.engine.submit(job("c", "fork and return", tmp_path))
    assert local.end("c").what == "finished"
    wait_until(lambda: gone(int((tmp_path / "copy").read_text())))
    assert {event.facts["message"] for event in local.of("c") if event.what == "log"} == {"parent"}
    local.engine.submit(job("next", "fine", tmp_path))
    assert local.end("next").what == "finished"
    assert local.until("started", "next").facts["pid"] == local.until("started", "c").facts["pid"]


def test_signals_to_the_whole_job_leave_the_workers_to_the_driver(local: Watched, tmp_path: Path) -> None:
    """systemd and Slurm send SIGTERM to every process: the driver asks for checkpoints, and workers write them."""
    local.engine.submit(job("c", "wait", tmp_path))
    pid = local.until("started", "c").facts["pid"]
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        os.killpg(pid, number)
    local.engine.stop()
    assert local.end("c").what == "interrupted"
    local.engine.submit(job("parent", "ends its children", tmp_path))
    assert local.until("log", "parent").facts["message"] == "{-15} -15", "a component cannot end what it started"
    assert local.end("parent").what == "finished"
    assert local.until("started", "parent").facts["pid"] == pid
    local.engine.submit(job("child", "child", tmp_path))
    child = int(local.until("log", "child").facts["message"])
    local.engine.close()
    wait_until(lambda: gone(child))


def test_closed_streams_are_open_again_for_the_next_cell(local: Watched, tmp_path: Path) -> None:
    local.engine.submit(job("closes", "close", tmp_path))
    assert local.end("closes").what == "finished"
    local.engine.submit(job("next", "talk", tmp_path))
    assert local.end("next").what == "finished"
    assert local.until("started", "next").facts["pid"] == local.until("started", "closes").facts["pid"]
    assert "printed" in (tmp_path / "cells" / "next" / "log.txt").read_text()


def open_files() -> set[int]:
    return {number for number in range(4096) if Path(f"/proc/self/fd/{number}").is_symlink()}


@contextmanager
def room_for(files: int) -> Iterator[None]:
    """Let this process open so many files more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = sorted(set(range(4096)) - open_files())
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[files], before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


NO_ROOM = "no worker process could be started: Too many open files"


def test_where_no_more_workers_can_be_started_those_that_there_are_go_on(local: Watched, tmp_path: Path) -> None:
    local.engine.submit(job("steady", "wait", tmp_path))
    local.until("started", "steady")
    with room_for(2):
        local.engine.submit(job("c", "fine", tmp_path, fence=4))
    end = local.end("c")
    assert (end.what, end.fence, end.facts["reason"]) == ("lost", 4, NO_ROOM)
    assert (local.engine.slots, local.engine.free) == (1, 0), "it would be tried again at once, in vain"
    local.engine.stop("steady")
    assert local.end("steady").what == "interrupted"
    local.engine.submit(job("next", "fine", tmp_path))
    assert local.end("next").what == "finished"


def test_a_worker_that_cannot_be_started_leaves_nothing_open(local: Watched, tmp_path: Path) -> None:
    before = open_files()
    for files in range(5):  # whichever of those that it takes is the last
        with room_for(files):
            local.engine.submit(job(f"c{files}", "fine", tmp_path))
        assert local.end(f"c{files}").facts["reason"] == NO_ROOM
        assert local.engine.free == 1, "nobody would ever try again"
        assert open_files() == before


def test_a_worker_whose_memory_ran_out_is_replaced(local: Watched, tmp_path: Path) -> None:
    local.engine.submit(job("memory", "memory", tmp_path))
    assert local.end("memory").what == "oom"
    pid = local.until("started", "memory").facts["pid"]
    assert gone(pid)
    assert local.engine.free == 2
    local.engine.submit(job("next", "fine", tmp_path))
    assert local.end("next").what == "finished"
    assert local.until("started", "next").facts["pid"] != pid


@pytest.mark.parametrize("counter", [0, 1])
def test_a_worker_that_the_system_killed_for_want_of_memory_ran_out_of_it(
    counter: int, local: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / "vmstat", tmp_path / "memory.events"]
    monkeypatch.setattr(local_engine, "COUNTERS", files)

    def count(kills: int) -> None:
        files[counter].write_text(f"oom 7\noom_kill {kills}\n")

    def killed(cell: str, kills: int) -> Event:
        pid = local.until("started", cell).facts["pid"]
        count(kills)
        os.kill(pid, signal.SIGKILL)
        return local.end(cell)

    count(1)
    local.engine.submit(job("large", "hang", tmp_path, fence=5, micro_batch=4))
    end = killed("large", 2)
    assert (end.what, end.fence, end.facts["micro_batch"], end.facts["task"]) == ("oom", 5, 4, None)
    assert "was killed (SIGKILL): the system ran out of memory" in end.facts["reason"]

    local.engine.submit(job("small", "hang", tmp_path, fence=6))
    count(3)  # another process, before this one had begun
    end = killed("small", 3)
    assert (end.what, end.fence) == ("lost", 6)

    local.engine.submit(job("told", "hang", tmp_path, fence=7))
    local.until("started", "told")
    count(4)
    local.engine.stop("told", at_once=True)
    end = local.end("told")
    assert (end.what, end.fence, end.facts["reason"]) == ("lost", 7, "stopped at once")


def test_workers_end_with_their_driver(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path\n"
        "from taskloom.core import Job; from taskloom.plugins.engines.local import Local\n"
        "engine = Local(workers=3, devices='cpu'); folder = Path(sys.argv[1]); engine.check()\n"
        "engine.open('faulty_work:work', folder)\n"
        "for do in ('hang', 'deaf', 'fork and hang'): engine.submit(Job(do[:4], do, 0, {'do': do}, str(folder)))\n"
        "while True:\n"
        "    for event in engine.poll(0.1):\n"
        "        if event.what == 'started': print(event.facts['pid'], flush=True)\n"
        "        if event.what == 'log': print(event.facts['message'].replace(' ', '\\n'), flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        pids = [int(driver.stdout.readline()) for _ in range(5)]  # of the workers, and what one of them started
        assert not any(map(gone, pids))
        driver.kill()
        wait_until(lambda: all(map(gone, pids)))


def test_what_a_cell_prints_is_in_its_log_and_nowhere_else(
    local: Watched, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for cell in ("talk", "other"):
        local.engine.submit(job(cell, "talk", tmp_path))
    for cell in ("talk", "other"):
        local.end(cell)
        log = (tmp_path / "cells" / cell / "log.txt").read_text()
        assert sorted(log.splitlines()) == ["error of C", "out of C", "printed"]
    assert capfd.readouterr() == ("", "")


def test_an_abandoned_thread_is_not_heard(inline: Watched, tmp_path: Path) -> None:
    inline.engine.submit(job("deaf", "deaf", tmp_path, fence=3))
    inline.until("progress", "deaf")
    inline.engine.stop(at_once=True)
    assert inline.end("deaf").what == "lost"
    inline.events.clear()
    inline.engine.submit(job("fine", "fine", tmp_path, fence=4))
    assert inline.end("fine").what == "finished"
    assert {event.cell for event in inline.events} == {"fine"}


def test_an_end_is_the_end(tmp_path: Path) -> None:
    class Emit:
        stop_asked = False

        def __init__(self) -> None:
            self.events: list[Event] = []

        def __call__(self, event: Event) -> None:
            self.events.append(event)

    def raises_after(one: Job, emit: Any) -> None:
        emit(Event("finished", one.cell))
        raise RuntimeError("too late")

    def full(one: Job, emit: Any) -> None:
        raise OSError(28, "No space left on device", "checkpoint")

    def allocates(one: Job, emit: Any) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory")

    for work, what in ((raises_after, "finished"), (full, "failed"), (allocates, "oom")):
        emit = Emit()
        perform(work, job("c", "", tmp_path, fence=5), emit)
        assert [(event.what, event.fence) for event in emit.events] == [(what, 5)]
        assert emit.events[0].facts.get("disk_full", False) is (work is full)


def test_jobs_and_events_travel_as_json(tmp_path: Path) -> None:
    one = Job("c", "a row", 3, {"x": [1]}, str(tmp_path), ("k",), {"torch": "2"}, fence=9, micro_batch=4, attempt=2)
    assert Job.of_json(json.loads(json.dumps(one.as_json()))) == one
    event = Event("epoch", "c", {"scores": {"sst": 0.1}}, 7)
    assert Event.of_json(json.loads(json.dumps(event.as_json()))) == event
