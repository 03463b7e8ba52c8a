"""The engine that runs cells in warm worker processes on this machine."""

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from taskloom.core import ENDS, Engine, Event, Job, Problem, RequestError
from taskloom.core.units import largest_size
from taskloom.plugins.engines.deaths import describe_death, kernel_kills, ran_out_of_memory
from taskloom.plugins.engines.devices import Slot, inventory, named, place

#: Seconds that a worker is given to go when its socket is closed.
GRACE = 5.0
#: Seconds between two looks at the workers where the system does not tell of their end.
LOOK = 0.1


class Local(Engine):
    """Runs the cells in worker processes on this machine, one per GPU, or on the CPU with its threads divided.

    A worker imports torch once and runs one cell after another. If it dies, its cell is reported as lost and another
    worker takes its place, as after a cell that ran out of memory; if the driver dies, the workers end. What a worker
    started and left behind ends with it. What a cell prints goes to its ``log.txt``.

    Options:
        workers: cells at once; by default one per GPU, and without a GPU one per core, 8 at most
        devices: ``auto``, ``cuda:0,cuda:1``, ``cpu`` or ``cpu:2`` (two cells at once)
        cells_per_gpu: cells that share a GPU
        threads: CPU threads of each worker; by default the cores divided by the workers, ``OMP_NUM_THREADS`` at most

    Siblings: ``inline`` runs the cells in this process.

    Example: ``taskloom run quickstart --engine local --workers 2``
    """

    name = "local"

    def __init__(
        self,
        *,
        workers: int | None = None,
        devices: str = "auto",
        cells_per_gpu: int = 1,
        threads: int | None = None,
    ) -> None:
        self._asked: dict[str, Any] = {
            "workers": workers,
            "devices": devices,
            "cells_per_gpu": cells_per_gpu,
            "threads": threads,
        }
        self._slots: tuple[Slot, ...] | None = None
        self._most = sys.maxsize  # workers that could be started
        self._workers: list[_Worker] = []
        self._events: list[Event] = []
        self._selector = selectors.DefaultSelector()

    def check(self) -> None:
        if not hasattr(os, "killpg"):
            what = "its workers need process groups, which this system lacks; use `--engine inline`"
            raise RequestError("engine 'local'", [Problem("", what)])
        self._slots = place(inventory(), **self._asked)

    def open(self, work: str, folder: Path) -> None:
        if self._slots is None:
            self.check()
        self._work = work

    @property
    def slots(self) -> int:
        return min(len(self._slots or ()), self._most)

    @property
    def free(self) -> int:
        return self.slots - sum(worker.job is not None for worker in self._workers)

    def submit(self, job: Job) -> None:
        assert self.free, "every worker has a cell"
        idle = next((worker for worker in self._workers if worker.job is None), None)
        try:
            worker = idle or self._spawn()
        except OSError as error:  # no descriptors, processes or memory left: those that there are go on
            self._most = max(1, len(self._workers))
            reason = f"no worker process could be started: {error.strerror or error}"
            self._events.append(Event("lost", job.cell, {"reason": reason}, job.fence))
            return
        worker.job = job
        worker.send({"job": job.as_json()})

    def poll(self, seconds: float) -> list[Event]:
        until = time.monotonic() + seconds
        while not self._events and self._selector.get_map() is not None:
            left = max(0.0, until - time.monotonic())
            told = all(worker.end is not None for worker in self._workers)
            ready = {key.data for key, _ in self._selector.select(left if told else min(left, LOOK))}
            for worker in list(self._workers):
                if worker in ready or (worker.end is None and worker.ended()):
                    self._read(worker)
            if not ready and time.monotonic() >= until:
                break
        events, self._events = self._events, []
        return events

    def stop(self, cell: str | None = None, *, at_once: bool = False) -> None:
        for worker in self._workers:
            if worker.job is not None and cell in (None, worker.job.cell):
                if at_once:
                    worker.told = "stopped at once"
                    worker.kill()
                else:
                    worker.send({"stop": worker.job.cell})

    def close(self) -> None:
        workers = list(self._workers)
        for worker in workers:
            self._let_go(worker)  # which ends it
        until = time.monotonic() + GRACE
        for worker in workers:
            worker.wait(max(0.0, until - time.monotonic()))
        self._selector.close()

    def describe(self) -> str:
        slots = self._slots or ()
        places = list(dict.fromkeys(slot.device for slot in slots))
        threads = slots[0].threads if slots else 1
        where = f"{len(slots)} worker process{'es' if len(slots) > 1 else ''} on {', '.join(places)}"
        return f"{where}, {threads} thread{'s' if threads > 1 else ''} each"

    def _spawn(self) -> "_Worker":
        taken = {worker.name for worker in self._workers}
        slot, name = next((slot, name) for slot, name in named(self._slots or ()) if name not in taken)
        worker = _Worker(slot, name, self._work)
        self._workers.append(worker)
        for ear in worker.ears:
            self._selector.register(ear, selectors.EVENT_READ, worker)
        return worker

    def _let_go(self, worker: "_Worker") -> None:
        """Hear no more of a worker."""
        for ear in worker.ears:
            self._selector.unregister(ear)
        self._workers.remove(worker)
        worker.hang_up()

    def _read(self, worker: "_Worker") -> None:
        """Take over what a worker said; if it is gone, say so of its cell.

        The end of the socket is not enough to tell by: what the worker has forked may hold it open.
        """
        gone = worker.ended()  # asked first, so that all of its words are there
        data, closed = worker.listen()
        *lines, worker.rest = (worker.rest + data).split(b"\n")
        for line in lines:
            self._hear(worker, json.loads(line))
        if not (gone or closed or worker.spent):
            worker.kills = kernel_kills()  # what the system kills from now on may be this one
            return
        self._let_go(worker)
        worker.kill()
        worker.wait(GRACE)
        if worker.job is not None:
            self._events.append(worker.last_word(worker.job))

    def _hear(self, worker: "_Worker", message: dict[str, Any]) -> None:
        if "broken" in message:
            worker.told = f"the worker could not go on: {message['broken']}"
        if "event" not in message or worker.job is None:
            return
        event = Event.of_json(message["event"])
        if event.what in ("started", "resumed"):
            event.facts.update(worker=worker.name, pid=worker.process.pid)
        if event.what in ENDS:
            worker.job = None
            worker.spent = event.what == "oom"  # its memory is in pieces; the next has all of it
        self._events.append(event)


class _Worker:
    """The driver's end of one worker process."""

    def __init__(self, slot: Slot, name: str, work: str) -> None:
        self.slot, self.name = slot, name
        self.job: Job | None = None
        self.rest = b""
        self.told = ""  # why it ends, if that is known
        self.spent = False  # it is to be replaced
        self.end: int | None = None  # readable once the process has ended, where there is such a thing
        self.kills = kernel_kills()
        self._peak = 0
        self.connection, theirs = socket.socketpair()
        numbers = map(str, (theirs.fileno(), os.getpid(), slot.threads))
        try:
            with theirs, open(os.devnull, "wb") as nothing:  # noqa: PTH123 - closed whatever happens
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "taskloom.plugins.engines.worker", *numbers, work],
                    stdin=subprocess.PIPE,  # nothing is ever written: its end is this process's
                    stdout=nothing,
                    stderr=nothing,
                    env={**os.environ, **slot.environment},
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # Ctrl-C is the driver's to handle
                )
        except OSError:
            self.connection.close()
            raise
        with suppress(OSError, AttributeError):
            self.end = os.pidfd_open(self.process.pid)

    @property
    def ears(self) -> list[socket.socket | int]:
        """What has something to read when there is news of it."""
        return [self.connection] if self.end is None else [self.connection, self.end]

    def send(self, message: dict[str, Any]) -> None:
        with suppress(OSError):  # then it is gone, and the next poll says so
            self.connection.sendall(json.dumps(message).encode() + b"\n")

    def listen(self) -> tuple[bytes, bool]:
        """What it has said, and whether it can say no more."""
        data = b""
        try:
            for _ in range(64):  # more than a socket holds; who never stops talking is heard in turns
                more = self.connection.recv(1 << 16, socket.MSG_DONTWAIT)
                if not more:
                    return data, True
                data += more
        except BlockingIOError:
            pass
        except OSError:
            return data, True
        return data, False

    def hang_up(self) -> None:
        self.connection.close()
        if self.process.stdin is not None:
            self.process.stdin.close()
        if self.end is not None:
            os.close(self.end)

    def kill(self) -> None:
        """End it, and whatever it started, now."""
        if self.process.returncode is None:
            with suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def ended(self) -> bool:
        """Whether it is gone. Then what it started is ended too, and its largest size remembered."""
        pid = self.process.pid
        if self.process.returncode is not None:
            return True
        with suppress(ChildProcessError, AttributeError):  # macOS has no waitid before Python 3.13
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return False
            self.kill()  # while nobody else can have been given its number
        try:
            found, status, usage = os.wait4(pid, os.WNOHANG)
        except ChildProcessError:  # somebody else was told how it ended
            self.process.returncode = 255
            return True
        if found:
            self.process.returncode = os.waitstatus_to_exitcode(status)
            self._peak = largest_size(usage.ru_maxrss)
        return bool(found)

    def wait(self, seconds: float) -> None:
        """Wait until it is gone; kill it if that takes too long."""
        until = time.monotonic() + seconds
        while not self.ended():
            if time.monotonic() > until:
                self.kill()
                until = float("inf")
            time.sleep(0.01)

    def last_word(self, job: Job) -> Event:
        """What is said of the cell that it had when it ended."""
        code = self.process.returncode
        reason = self.told or describe_death(code, self.process.pid)
        if not self.told and ran_out_of_memory(code, self._peak, self.kills):
            size = f"it held {self._peak / 2**30:.1f} GiB"
            facts = {"reason": f"{reason}: the system ran out of memory ({size})", "micro_batch": job.micro_batch}
            return Event("oom", job.cell, {**facts, "task": None}, job.fence)
        return Event("lost", job.cell, {"reason": reason}, job.fence)
