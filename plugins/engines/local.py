"""The engine that runs cells in warm worker processes on this machine."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from itertools import pairwise
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path

from taskloom.core import ENDS, Engine, EngineError, Event, Job
from taskloom.core.engine import SPENT
from taskloom.plugins.engines.devices import DEFAULTS, Slot, assign_slots, inventory

#: Where the system and the container count processes that were killed because memory ran out.
COUNTERS = ("/proc/vmstat", "/sys/fs/cgroup/memory.events")


class Local(Engine):
    """Runs the cells in worker processes on this machine, one per GPU, or on the CPU with its threads divided.

    A worker imports torch once and runs one cell after another. If it dies or its device fails, its cell is reported as
    lost and another worker replaces it, as after a cell that ran out of memory; if the driver dies, the workers end.
    Processes that a worker started and left behind end with it. What a cell prints goes to its ``log.txt``.

    Options:
        workers: cells at once; by default one per GPU, and without a GPU one per core, 8 at most
        devices: ``auto``, ``cuda:0,cuda:1``, ``cpu`` or ``cpu:2`` (two cells at once); ``mps`` and ``xpu`` (GPUs of
            Apple and Intel) are experimental, and ``auto`` leaves them alone
        cells_per_gpu: cells that share a GPU
        threads: most CPU threads of a cell; by default the cores divided by the workers, ``OMP_NUM_THREADS`` at most

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
        self._assign_slots = partial(
            assign_slots, workers=workers, devices=devices, cells_per_gpu=cells_per_gpu, threads=threads
        )
        self._slots: tuple[Slot, ...] = ()
        self._experimental = ""  # a GPU of Apple or Intel, until a message has said what became of it
        self._workers: list[_Worker] = []
        self._events: list[Event] = []

    def check(self) -> None:
        machine = inventory()
        self._slots = self._assign_slots(machine)
        self._experimental = machine.experimental

    def open(self, work: str, folder: Path) -> None:
        self._work = work

    @property
    def free(self) -> int:
        return len(self._slots) - sum(worker.job is not None for worker in self._workers)

    def submit(self, job: Job) -> None:
        assert self.free, "every worker has a cell"
        try:
            worker = next((worker for worker in self._workers if worker.job is None), None) or self._start_worker()
        except OSError as error:  # no file descriptors, processes or memory left: the present workers go on
            self._slots = self._slots[: max(1, len(self._workers))]
            reason = f"no worker process could be started: {error.strerror or error}"
            self._events.append(Event("lost", job.cell, {"reason": reason}, job.attempt))
            return
        worker.job = job
        worker.send(vars(job))

    def poll(self, seconds: float) -> list[Event]:
        ready = wait([worker.connection for worker in self._workers], 0 if self._events else seconds)
        for worker in [worker for worker in self._workers if worker.connection in ready]:
            self._read(worker)
        events, self._events = self._events, []
        return events

    def stop(self, cell: str | None = None, *, at_once: bool = False) -> None:
        for worker in self._workers:
            if worker.job is not None and cell in (None, worker.job.cell):
                if at_once:
                    worker.reason = "stopped at once"
                    worker.kill()  # the next poll sees its end
                else:
                    worker.send("stop")

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.release()
        self._workers = []

    def _start_worker(self) -> "_Worker":
        used = {worker.slot for worker in self._workers}
        slot = next(slot for slot in self._slots if slot not in used)
        self._workers.append(_Worker(slot, self._work))
        return self._workers[-1]

    def _read(self, worker: "_Worker") -> None:
        """Read one event of a worker; if the worker is gone, remove it and report its cell."""
        try:
            event = Event(**json.loads(worker.connection.recv_bytes()))
        except (EOFError, OSError):
            self._remove(worker)
            if worker.job is not None:
                self._events.append(worker.last_event(worker.job))
            return
        if event.what in ("started", "resumed"):
            event.facts.update(worker=worker.slot.name, pid=worker.process.pid)
            worker.kernel_kills = kernel_kills()  # the next to be killed may be this worker
        if event.what in ENDS:
            worker.job = None
        if event.what in SPENT:
            self._remove(worker)
        if event.facts.get("unusable"):  # a new worker there would fail too; the others go on
            self._slots = tuple(slot for slot in self._slots if slot != worker.slot)
            if not self._slots:
                why = f"{worker.slot.device}: {event.facts['reason']}"
                raise EngineError(f"{why}, and no other is left; --devices cpu trains on the CPU")
        self._events.append(event)
        if (name := self._experimental) and event.what in ("started", "resumed"):
            device = worker.slot.device
            used = "is experimental" if device == name else f"is not used: this cell trains on the {device.upper()}"
            message = f"{name} {used}; `taskloom selftest --devices {name}` says what works there"
            self._events.append(Event("log", event.cell, {"message": message}, event.attempt))
            self._experimental = ""

    def _remove(self, worker: "_Worker") -> None:
        worker.kill()
        worker.release()
        self._workers.remove(worker)


class _Worker:
    """The driver's end of one worker process, which leads a process group of its own.

    Started by ``subprocess``, not ``multiprocessing.Process``, which has no environment or session per process,
    pickles its arguments and imports the user's main module again.
    """

    def __init__(self, slot: Slot, work: str) -> None:
        self.slot = slot
        self.job: Job | None = None
        self.reason = ""  # why it ends, if this engine ends it
        self.kernel_kills = kernel_kills()
        self.connection, theirs = Pipe()
        arguments = (theirs.fileno(), os.getpid(), work, slot.threads, slot.device.partition(":")[0], slot.share)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "taskloom.plugins.engines.worker", *map(str, arguments)],
                stdin=subprocess.PIPE,  # nothing is ever written: it closes when this process ends
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**DEFAULTS, **os.environ, **slot.environment},
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is the driver's to handle
            )
        except OSError:
            self.connection.close()
            raise
        finally:
            theirs.close()

    def send(self, message: object) -> None:
        with suppress(OSError):  # then it is gone, and the next poll reports it
            self.connection.send_bytes(json.dumps(message).encode())

    def kill(self) -> None:
        """Kill it and whatever it started. Its process id is not reused before ``release``."""
        with suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def release(self) -> None:
        self.connection.close()
        self.process.communicate()  # closes the pipe and waits

    def last_event(self, job: Job) -> Event:
        """The event for the cell that it was running when it ended."""
        code = self.process.returncode
        reason = self.reason or describe_death(code, self.process.pid)
        if not self.reason and code == -signal.SIGKILL and kernel_kills() > self.kernel_kills:
            facts = {"reason": f"{reason}: the system ran out of memory", "micro_batch": job.micro_batch, "task": None}
            return Event("oom", job.cell, facts, job.attempt)
        return Event("lost", job.cell, {"reason": reason}, job.attempt)


def kernel_kills() -> int:
    """The number of processes that were killed because memory ran out, as far as the system counts them."""
    kills = 0
    for path in COUNTERS:
        with suppress(OSError):
            words = Path(path).read_text().split()
            kills += sum(int(number) for name, number in pairwise(words) if name == "oom_kill")
    return kills


def describe_death(code: int, pid: int) -> str:
    """An exit code in words.

    >>> describe_death(-9, 71)
    'worker process 71 was killed (SIGKILL)'
    """
    if code >= 0:
        return f"worker process {pid} ended with exit code {code}"
    name = {number.value: number.name for number in signal.Signals}.get(-code, f"signal {-code}")
    return f"worker process {pid} {'was killed' if name in ('SIGKILL', 'SIGTERM') else 'crashed'} ({name})"
