"""The engine that runs cells in warm worker processes on this machine."""

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from taskloom.core import ENDS, Engine, Event, Job
from taskloom.runs.engines.deaths import describe_death, kernel_kills, ran_out_of_memory
from taskloom.runs.engines.devices import Slot, inventory, place

#: Seconds that a worker is given to go when its socket is closed.
GRACE = 5.0


class Local(Engine):
    """Runs the cells in worker processes on this machine, one per GPU, or on the CPU with its threads divided.

    A worker imports torch once and runs one cell after another. If it dies, its cell is reported as lost and another
    worker takes its place; if the driver dies, the workers end. What a cell prints goes to its ``log.txt``.

    Options:
        workers: cells at once; by default one per GPU, and without a GPU one per core, 8 at most
        devices: ``auto``, ``cuda:0,cuda:1``, ``cpu`` or ``cpu:2`` (two cells at once)
        cells_per_gpu: cells that share a GPU
        threads: CPU threads of each worker; by default the cores divided by the workers

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
        self._workers: list[_Worker] = []
        self._events: list[Event] = []
        self._selector = selectors.DefaultSelector()

    def check(self) -> None:
        self._slots = place(inventory(), **self._asked)

    def open(self, work: str, folder: Path) -> None:
        if self._slots is None:
            self.check()
        self._command = [work, str(folder.resolve())]

    @property
    def slots(self) -> int:
        return len(self._slots or ())

    @property
    def free(self) -> int:
        return self.slots - sum(worker.job is not None for worker in self._workers)

    def submit(self, job: Job) -> None:
        assert self.free, "every worker has a cell"
        idle = next((worker for worker in self._workers if worker.job is None), None)
        worker = idle or self._spawn()
        worker.job = job
        worker.send({"job": job.as_json()})

    def poll(self, seconds: float) -> list[Event]:
        until = time.monotonic() + seconds
        while not self._events and self._selector.get_map() is not None:
            ready = self._selector.select(max(0.0, until - time.monotonic()))
            for key, _ in ready:
                self._read(key.data)
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
        for worker in self._workers:
            self._selector.unregister(worker.connection)
            worker.connection.close()  # which ends it
        until = time.monotonic() + GRACE
        for worker in self._workers:
            worker.wait(max(0.0, until - time.monotonic()))
        self._workers = []
        self._selector.close()

    def describe(self) -> str:
        slots = self._slots or ()
        places = list(dict.fromkeys(slot.device for slot in slots))
        threads = slots[0].threads if slots else 1
        return (
            f"{len(slots)} worker process{'es' if len(slots) > 1 else ''} on {', '.join(places)}, "
            f"{threads} thread{'s' if threads > 1 else ''} each"
        )

    def _spawn(self) -> "_Worker":
        taken = {worker.name for worker in self._workers}
        slot, name = next((slot, name) for slot, name in named(self._slots or ()) if name not in taken)
        worker = _Worker(slot, name, self._command)
        self._workers.append(worker)
        self._selector.register(worker.connection, selectors.EVENT_READ, worker)
        return worker

    def _read(self, worker: "_Worker") -> None:
        """Take over what a worker said; if it is gone, say so of its cell."""
        try:
            data = worker.connection.recv(1 << 16)
        except OSError:
            data = b""
        *lines, worker.rest = (worker.rest + data).split(b"\n")
        for line in lines:
            self._hear(worker, json.loads(line))
        if data:
            worker.kills = kernel_kills()  # what the system kills from now on may be this one
            return
        self._selector.unregister(worker.connection)
        self._workers.remove(worker)
        worker.connection.close()
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
        self._events.append(event)


class _Worker:
    """The driver's end of one worker process."""

    def __init__(self, slot: Slot, name: str, arguments: Sequence[str]) -> None:
        self.slot, self.name = slot, name
        self.job: Job | None = None
        self.rest = b""
        self.told = ""  # why it ends, if that is known
        self.connection, theirs = socket.socketpair()
        self.kills = kernel_kills()
        self._peak = 0
        handle = str(theirs.fileno())
        command = [sys.executable, "-m", "taskloom.runs.engines.worker", handle, str(os.getpid()), str(slot.threads)]
        with theirs:
            self.process = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **slot.environment},
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is the driver's to handle
            )

    def send(self, message: dict[str, Any]) -> None:
        with suppress(OSError):  # then it is gone, and the next poll says so
            self.connection.sendall(json.dumps(message).encode() + b"\n")

    def kill(self) -> None:
        """End it, and whatever it started, now."""
        if self.process.returncode is None:
            with suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def wait(self, seconds: float) -> None:
        """Wait until it is gone; kill it if that takes too long. Remembers its largest size."""
        until = time.monotonic() + seconds
        while self.process.returncode is None:
            try:
                pid, status, usage = os.wait4(self.process.pid, os.WNOHANG)
            except ChildProcessError:  # somebody else was told how it ended
                self.process.returncode = 255
                return
            if pid:
                self.process.returncode = os.waitstatus_to_exitcode(status)
                self._peak = usage.ru_maxrss * 1024
            elif time.monotonic() > until:
                self.kill()
                until = float("inf")
            else:
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


def named(slots: Sequence[Slot]) -> list[tuple[Slot, str]]:
    """The slots with names of their own: ``cpu:0``, ``cpu:1``; ``cuda:0``, or ``cuda:0/0`` where cells share it.

    >>> [name for _, name in named([Slot("cuda:0", 1), Slot("cuda:1", 1), Slot("cuda:0", 1)])]
    ['cuda:0/0', 'cuda:1', 'cuda:0/1']
    """
    devices = [slot.device for slot in slots]
    names = []
    for index, device in enumerate(devices):
        number = devices[:index].count(device)
        shared = f"{device}/{number}" if devices.count(device) > 1 else device
        names.append(f"cpu:{number}" if device == "cpu" else shared)
    return list(zip(slots, names, strict=True))
