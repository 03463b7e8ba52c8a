"""A worker process of the local engine: ``python -m taskloom.plugins.engines.worker SOCKET PARENT THREADS WORK``.

It imports torch once, then runs one cell after another. Jobs come as JSON lines through the socket and events go back
the same way. When the other end closes, the driver is gone and the worker ends at once, in the middle of whatever it
does, with all that it started: somebody else may take the cell up. What a component forks has no part in the cell: it
cannot report or go on with the training, and ends with the worker.
"""

import ctypes
import faulthandler
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

from taskloom.core import Event, Job, find_work, perform
from taskloom.core.cell_log import Redirected

#: Exit code of a worker whose driver is gone.
ORPHANED = 3
#: Exit code of a forked copy of a worker that would go on with the cell.
COPY = 4
#: Signals that a whole job is sent: by a terminal, systemd, Slurm.
SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


class Line:
    """The worker's end of the socket; the ``Emit`` of its cells."""

    def __init__(self, connection: socket.socket) -> None:
        self.jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self.cell = ""
        self.rotate: Callable[[], None] = lambda: None
        self._stopped: set[str] = set()
        self._connection = connection
        self._forked = False
        threading.Thread(target=self._listen, name="driver", daemon=True).start()

    @property
    def stop_asked(self) -> bool:
        self._refuse_copies()
        return self.cell in self._stopped

    def __call__(self, event: Event) -> None:
        self._refuse_copies()
        self.rotate()
        self.send({"event": event.as_json()})

    def send(self, message: dict[str, Any]) -> None:
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def forget(self) -> None:
        """In a forked copy of this process: the driver is not to hear of it."""
        if not self._forked:
            self._forked = True
            with suppress(OSError):
                os.close(self._connection.detach())

    def _refuse_copies(self) -> None:
        if self._forked:  # and it came back into the training, which the other one does
            os._exit(COPY)

    def _listen(self) -> None:
        with suppress(OSError), self._connection.makefile("rb") as lines:
            for line in lines:
                message = json.loads(line)
                if "job" in message:
                    job = Job.of_json(message["job"])
                    self._stopped.discard(job.cell)
                    self.jobs.put(job)
                else:
                    self._stopped.add(message["stop"])
        _end_all()


def main() -> None:
    handle, parent, threads = map(int, sys.argv[1:4])
    work = sys.argv[4]
    for number in SIGNALS:  # the driver gets them, too, and decides what they mean
        signal.signal(number, _unheeded)  # not ignored: what a component executes would ignore it as well
        signal.siginterrupt(number, False)
    _end_with(parent)
    _guard_group()
    faulthandler.enable(2)  # a crash is told in the log of the cell that has the descriptor then
    os.set_inheritable(handle, False)
    _open_streams()
    line = Line(socket.socket(fileno=handle))
    _keep_copies_apart(line)
    try:
        _serve(line, threads, work)
    except Exception as error:
        line.send({"broken": f"{type(error).__name__}: {error}"})
        raise


def _serve(line: Line, threads: int, work: str) -> None:
    """Warm up, then run what comes."""

    function = find_work(work)
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(threads)
    line.send({"ready": os.getpid()})
    while True:
        job = line.jobs.get()
        with Redirected(job.cell_folder()) as log:
            line.cell, line.rotate = job.cell, log.rotate
            _open_streams()
            perform(function, job, line)
            line.cell, line.rotate = "", lambda: None
            for stream in (sys.stdout, sys.stderr):
                with suppress(Exception):  # a component may have closed or replaced it
                    stream.flush()


def _open_streams() -> None:
    """Python's streams on descriptors 1 and 2, whatever the last cell has made of them."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = open(descriptor, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _unheeded(number: int, frame: FrameType | None) -> None:
    """A signal that changes nothing."""


def _end_with(parent: int) -> None:
    """Be killed when the parent ends, even while no Python runs here (Linux; elsewhere the socket tells)."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(ORPHANED)


def _guard_group() -> None:
    """Let the group of this process end with the driver: what a component started, too, and however the driver ends.

    The guard is a shell of the same group that nobody is the parent of. It waits for the end of our standard input,
    which the driver holds; then it ends the group.
    """
    if _leads_group():
        with suppress(OSError):
            guard = "trap '' HUP INT TERM; exec 3<&0; (read _ <&3; kill -KILL 0) &"
            subprocess.run(["/bin/sh", "-c", guard], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def _end_all() -> None:
    """End this process and all that it started."""
    if _leads_group():
        os.killpg(0, signal.SIGKILL)
    os._exit(ORPHANED)


def _leads_group() -> bool:
    return os.getpgid(0) == os.getpid()


def _keep_copies_apart(line: Line) -> None:
    """Let what this process forks, or a library in it, neither speak for it nor outlive it."""
    worker, by_main = os.getpid(), False

    def before() -> None:
        # The system means the end of the thread that forks. One that may end before the process does is no measure.
        nonlocal by_main
        by_main = threading.current_thread() is threading.main_thread()
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until the copy heeds them

    def in_worker() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def in_copy() -> None:
        line.forget()
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)  # who forks may want to end it so
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        if by_main and os.getppid() == worker:  # a copy of a copy is somebody else's
            _end_with(worker)

    os.register_at_fork(before=before, after_in_parent=in_worker, after_in_child=in_copy)


if __name__ == "__main__":
    main()
