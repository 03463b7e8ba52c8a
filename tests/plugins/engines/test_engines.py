"""What the engines of this machine promise beyond the laws of the kit, with work that takes no time.

Whatever the work or its process does, a job has one end, and the others go on.
"""

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import PATIENCE, until

from taskloom.core import ENDS, Engine, EngineError, Event, Job
from taskloom.core.work import CELL_THREAD
from taskloom.plugins.engines import local as local_engine
from taskloom.plugins.engines import worker
from taskloom.plugins.engines.devices import DEFAULTS, Inventory, assign_slots
from taskloom.plugins.engines.inline import Inline
from taskloom.plugins.engines.local import Local, describe_death


@pytest.fixture(autouse=True)
def _workers_find_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "helpers"), prepend=os.pathsep)


def gone(pid: int) -> bool:
    """Whether a process has ended (a zombie has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


class Watched:
    """An engine with all its events."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine, self.folder, self.events = engine, folder, list[Event]()
        engine.check()
        engine.open("faulty_work:work", folder)

    def submit(self, cell: str, do: str | None = None, **more: Any) -> None:
        self.engine.submit(Job(cell, cell, 0, {"do": do or cell}, str(self.folder), **more))

    def until(self, what: str, cell: str) -> Event:
        """The first event of a cell that is ``what``, or an ``end``."""
        wanted, end = ENDS if what == "end" else {what}, time.monotonic() + PATIENCE
        while not (found := [event for event in self.of(cell) if event.what in wanted]):
            assert time.monotonic() < end, f"no {what!r} of {cell!r}, but {self.events}"
            self.events += self.engine.poll(0.05)
        return found[0]

    def end(self, cell: str) -> Event:
        return self.until("end", cell)

    def pid(self, cell: str) -> int:
        return int(self.until("started", cell).facts["pid"])

    def of(self, cell: str) -> list[Event]:
        return [event for event in self.events if event.cell == cell]

    def log(self, cell: str) -> str:
        return (self.folder / "cells" / cell / "log.txt").read_text()


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Watched]:
    """Two worker processes."""
    watched = Watched(Local(workers=2, devices="cpu", threads=1), tmp_path)
    yield watched
    watched.engine.close()


@pytest.fixture
def inline(tmp_path: Path) -> Iterator[Watched]:
    watched = Watched(Inline(), tmp_path)
    yield watched
    watched.engine.close()


@pytest.mark.parametrize("name", ["local", "inline"])
def test_an_end_says_why_and_the_engine_goes_on(name: str, request: pytest.FixtureRequest) -> None:
    engine: Watched = request.getfixturevalue(name)
    ends = {"raise": "failed", "memory": "oom", "not json": "failed" if name == "local" else "finished"}
    ends |= {"device": "lost"} if name == "local" else {}
    free = engine.engine.free
    for do, end in ends.items():
        engine.submit(do)
        assert engine.end(do).what == end
        assert engine.of(do)[-1] is engine.end(do)
    assert engine.engine.free == free
    assert engine.end("raise").facts["reason"] == "ValueError: a plugin's defect"
    assert "in work" in engine.end("raise").facts["traceback"]
    assert (engine.end("memory").facts["micro_batch"], engine.end("memory").facts["task"]) == (8, "sst")
    if name == "local":
        assert gone(engine.pid("memory")), "its memory is fragmented"
        assert engine.pid("not json") != engine.pid("memory") == engine.pid("raise")
        assert engine.end("device").facts["reason"] == "its device failed: CUDA error: device-side assert triggered"
        assert gone(engine.pid("device")), "every later cell on it would fail the same way"


def test_in_this_process_a_device_that_failed_is_the_end(inline: Watched) -> None:
    inline.submit("device")
    assert inline.end("device").what == "lost"
    with pytest.raises(EngineError, match=r"device-side assert triggered\. .*; --engine local replaces it"):
        inline.submit("fine")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU that torch can use")
def test_a_worker_that_cannot_use_its_gpu_refuses_instead_of_using_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cell may go elsewhere, as long as there is another place; the last one ends the run."""
    monkeypatch.setattr(local_engine, "inventory", lambda: Inventory(cores=2, cuda=("0", "1")))
    watched = Watched(Local(), tmp_path)
    try:
        assert watched.engine.free == 2
        watched.submit("a", "fine")
        end = watched.end("a")
        assert end.what == "lost"
        assert "torch cannot use the GPU that this worker was given (AssertionError: " in end.facts["reason"]
        assert [event.what for event in watched.of("a")] == ["lost"], "it began on the CPU"
        assert watched.engine.free == 1, "it would get the next cell, too"
        watched.submit("b", "fine")
        with pytest.raises(EngineError, match=r"^cuda:1: torch cannot use the GPU .*; --devices cpu trains on"):
            watched.end("b")
    finally:
        watched.engine.close()


def test_where_an_experimental_gpu_is_not_used_the_first_cell_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_engine, "inventory", lambda: Inventory(cores=1, experimental="mps"))
    watched = Watched(Local(), tmp_path)
    try:
        for cell in ("a", "b"):
            watched.submit(cell, "fine", attempt=3)
            watched.end(cell)
    finally:
        watched.engine.close()
    (log,) = [event for event in watched.events if event.what == "log"]
    assert (log.cell, log.attempt) == ("a", 3)
    assert log.facts["message"].startswith(
        "mps is not used: this cell trains on the CPU; `taskloom selftest --devices mps`"
    )


def test_cells_that_share_a_gpu_divide_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []
    monkeypatch.setattr(torch, "empty", lambda *size, device: None)  # a GPU that is not there
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", given.append)
    for slot in assign_slots(Inventory(8, ("0", "1")), cells_per_gpu=3):
        worker.confine(torch.get_num_threads(), slot.device, slot.share)
    assert given == pytest.approx([0.3] * 6), "together 90 %, and CUDA itself takes memory in each process"
    for slot in assign_slots(Inventory(8, ("0", "1"))):
        worker.confine(torch.get_num_threads(), slot.device, slot.share)
    assert len(given) == 6, "a cell that has its GPU for itself may use all of it"


def test_one_warm_process_runs_many_cells_and_two_run_at_once(local: Watched) -> None:
    for cell in ("a", "b"):
        local.submit(cell, "wait")
    pids = {local.pid(cell) for cell in ("a", "b")}
    assert len(pids) == 2
    assert local.until("started", "a").facts["device"] == "cpu"
    kept_in = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "-1"}
    assert local.until("started", "a").facts["environment"] == {**kept_in, **DEFAULTS}
    local.engine.stop("a")
    assert local.end("a").what == "interrupted"
    local.submit("c", "fine")
    assert local.end("c").what == "finished"
    assert local.pid("c") in pids, "the process was not used again"
    local.engine.close()
    assert all(map(gone, pids))


def test_a_user_may_say_how_threads_wait(local: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    local.submit("a", "fine")
    environment = local.until("started", "a").facts["environment"]
    assert environment["GOMP_SPINCOUNT"] == "7"
    assert environment["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_a_worker_that_dies_loses_its_cell_and_nothing_else(local: Watched) -> None:
    local.submit("steady", "wait")
    local.until("started", "steady")
    ways = {"hang": "was killed (SIGKILL)", "crash": "crashed (SIGABRT)", "exit": "ended with exit code 7"}
    for attempt, (do, reason) in enumerate(ways.items()):
        local.submit(do, attempt=attempt)
        pid = local.pid(do)
        if do == "hang":
            os.kill(pid, signal.SIGKILL)
        end = local.end(do)
        assert (end.what, end.attempt, end.facts["reason"]) == ("lost", attempt, f"worker process {pid} {reason}")
        assert local.engine.free == 1
    assert "Fatal Python error: Aborted" in local.log("crash")
    assert "faulty_work.py" in local.log("crash"), "the log does not say where it crashed"
    local.engine.stop("steady")
    assert local.end("steady").what == "interrupted"
    assert describe_death(-64, 5) == "worker process 5 crashed (SIGRTMAX)"


def test_what_hangs_or_does_not_listen_is_ended_at_once_with_its_children(local: Watched) -> None:
    local.submit("child")
    local.submit("deaf")
    child = int(local.until("log", "child").facts["message"])
    local.until("progress", "deaf")
    local.engine.stop("child", at_once=True)
    end = local.end("child")
    assert (end.what, end.facts["reason"]) == ("lost", "stopped at once")
    until(lambda: gone(child))
    local.engine.stop(at_once=True)
    assert local.end("deaf").what == "lost"


@pytest.mark.parametrize("do", ["fork and hang", "fork and exit", "fork and go on"])
def test_what_a_component_forked_neither_hides_a_death_nor_outlives_it(local: Watched, do: str) -> None:
    local.submit("c", do)
    pid = local.pid("c")
    left = [int(number) for number in local.until("log", "c").facts["message"].split()]
    if do == "fork and hang":
        os.kill(pid, signal.SIGKILL)
    end = local.end("c")
    if do == "fork and go on":
        assert end.what == "finished"
        assert not any(map(gone, left)), "the worker goes on, and with it what it started"
        local.engine.close()
    else:
        how = "was killed (SIGKILL)" if do == "fork and hang" else "ended with exit code 5"
        assert (end.what, end.facts["reason"]) == ("lost", f"worker process {pid} {how}")
    until(lambda: all(map(gone, left)))


def test_events_of_a_forked_copy_that_continues_the_work_are_dropped(local: Watched, tmp_path: Path) -> None:
    local.submit("c", "fork and return")
    assert local.end("c").what == "finished"
    until(lambda: gone(int((tmp_path / "copy").read_text())))
    assert {event.facts["message"] for event in local.of("c") if event.what == "log"} == {"parent"}
    local.submit("next", "fine")
    assert local.end("next").what == "finished"
    assert local.pid("next") == local.pid("c")


def test_signals_to_the_whole_job_leave_the_workers_to_the_driver(local: Watched) -> None:
    """systemd and Slurm send SIGTERM to every process: the driver asks for checkpoints, and workers write them."""
    local.submit("c", "wait")
    pid = local.pid("c")
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        os.killpg(pid, number)
    local.engine.stop()
    assert local.end("c").what == "interrupted"
    local.submit("parent", "ends its children")
    assert local.until("log", "parent").facts["message"] == "{-15} -15", "a component cannot end what it started"
    assert local.end("parent").what == "finished"
    assert local.pid("parent") == pid


def test_what_a_cell_prints_is_in_its_log_and_nowhere_else(local: Watched, capfd: pytest.CaptureFixture[str]) -> None:
    local.submit("closes", "close")  # its streams; the next cell of this worker has new ones
    assert local.end("closes").what == "finished"
    for cell in ("one", "other"):
        local.submit(cell, "talk")
    for cell in ("one", "other"):
        local.end(cell)
        assert sorted(local.log(cell).splitlines()) == ["error of C", "out of C", "printed"]
    assert local.pid("closes") in (local.pid("one"), local.pid("other"))
    assert capfd.readouterr() == ("", "")


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


def test_where_no_more_workers_can_be_started_the_present_ones_go_on(local: Watched) -> None:
    before = open_files()
    for files in range(5):  # whichever of those that it needs is the last
        with room_for(files):
            local.submit(f"c{files}", "fine", attempt=4)
        end = local.end(f"c{files}")
        assert (end.what, end.attempt) == ("lost", 4)
        assert end.facts["reason"] == "no worker process could be started: Too many open files"
        assert local.engine.free == 1, "nobody would ever try again"
        until(lambda: open_files() == before)  # garbage of other tests may still be closing, or be opened
    local.submit("next", "fine")
    assert local.end("next").what == "finished"
    assert local.engine.free == 1, "it would be tried again at once, in vain"


def test_a_worker_that_the_system_killed_because_memory_ran_out_ran_out_of_it(
    local: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / "vmstat", tmp_path / "memory.events"]
    monkeypatch.setattr(local_engine, "COUNTERS", files)

    def count(kills: int, counter: int = 1) -> None:
        files[counter].write_text(f"oom 7\noom_kill {kills}\n")

    def killed(cell: str, kills: int, counter: int = 1, by: int = signal.SIGKILL) -> Event:
        pid = local.pid(cell)
        count(kills, counter)
        os.kill(pid, by)
        return local.end(cell)

    for counter in (0, 1):  # the system counts it, or the container
        count(1, counter)
        local.submit(f"large {counter}", "hang", attempt=5, micro_batch=4)
        end = killed(f"large {counter}", 2, counter)
        assert (end.what, end.attempt, end.facts["micro_batch"], end.facts["task"]) == ("oom", 5, 4, None)
        assert "was killed (SIGKILL): the system ran out of memory" in end.facts["reason"]

    local.submit("small", "hang", attempt=6)
    count(3)  # another process, before this one had begun
    end = killed("small", 3)
    assert (end.what, end.attempt) == ("lost", 6)

    local.submit("crashed", "hang")
    assert killed("crashed", 4, by=signal.SIGSEGV).what == "lost", "a crash is a crash"

    local.submit("stopped", "hang", attempt=7)
    local.until("started", "stopped")
    count(5)
    local.engine.stop("stopped", at_once=True)
    end = local.end("stopped")
    assert (end.what, end.attempt, end.facts["reason"]) == ("lost", 7, "stopped at once")


LOCKED = """
import ctypes, faulty_work, os
from taskloom.core import Event

def work(job, emit):
    if job.spec["do"] != "locked":
        return faulty_work.work(job, emit)
    emit(Event("started", job.cell, {"pid": os.getpid()}))
    ctypes.PyDLL(None).sleep(300)  # in C, with the interpreter's lock
"""


def test_workers_are_as_nice_as_their_driver_and_end_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "locked.py").write_text(LOCKED)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]]))
    script = (
        "import sys, time; from pathlib import Path\n"
        "from taskloom.core import Job; from taskloom.plugins.engines.local import Local\n"
        "engine = Local(workers=4, devices='cpu'); folder = Path(sys.argv[1]); engine.check()\n"
        "engine.open('locked:work', folder)\n"
        "for do in ('hang', 'deaf', 'fork and hang', 'locked'):\n"
        "    engine.submit(Job(do[:4], do, 0, {'do': do}, str(folder)))\n"
        "while True:\n"
        "    for event in engine.poll(0.1):\n"
        "        if event.what == 'started': print(event.facts['pid'], flush=True)\n"
        "        if event.what == 'log': print(event.facts['message'].replace(' ', '\\n'), flush=True)\n"
    )
    command = ["nice", "-n", "5", sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        pids = [int(driver.stdout.readline()) for _ in range(6)]  # of the workers, and what one of them started
        assert not any(map(gone, pids))
        for pid in pids:
            assert os.getpriority(os.PRIO_PROCESS, pid) == 5
            if Path("/proc/sys/kernel/sched_autogroup_enabled").is_file():
                assert Path(f"/proc/{pid}/autogroup").read_text().endswith("nice 5\n")
        driver.kill()
        until(lambda: all(map(gone, pids)))


def test_events_of_an_abandoned_thread_are_dropped_and_it_moves_nobody(
    inline: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inline.submit("deaf", attempt=3)
    inline.until("progress", "deaf")
    (thread,) = (thread for thread in threading.enumerate() if thread.name.startswith(CELL_THREAD))
    inline.engine.stop(at_once=True)
    (tmp_path / "next").mkdir()
    monkeypatch.chdir(tmp_path / "next")
    assert inline.end("deaf").what == "lost"
    inline.events.clear()
    inline.submit("fine", attempt=4)
    assert inline.end("fine").what == "finished"
    assert {event.cell for event in inline.events} == {"fine"}
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert Path.cwd() == tmp_path / "next"
