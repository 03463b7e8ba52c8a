"""A worker process of the local engine: ``python -m taskloom.runs.engines.worker SOCKET PARENT THREADS WORK FOLDER``.

It imports torch once, then runs one cell after another. Jobs come as JSON lines through the socket and events go back
the same way. When the other end closes, the driver is gone and the worker ends at once, in the middle of whatever it
does: somebody else may take the cell up.
"""

import ctypes
import faulthandler
import json
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from taskloom.core import Event, Job, find_work, perform
from taskloom.registry.artifacts import Artifacts
from taskloom.runs.engines.cell_log import Redirected

#: Exit code of a worker whose driver is gone.
ORPHANED = 3


class Line:
    """The worker's end of the socket; the ``Emit`` of its cells."""

    def __init__(self, connection: socket.socket) -> None:
        self.jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self.cell = ""
        self.rotate: Callable[[], None] = lambda: None
        self._stopped: set[str] = set()
        self._connection = connection
        threading.Thread(target=self._listen, name="driver", daemon=True).start()

    @property
    def stop_asked(self) -> bool:
        return self.cell in self._stopped

    def __call__(self, event: Event) -> None:
        self.rotate()
        self.send({"event": event.as_json()})

    def send(self, message: dict[str, Any]) -> None:
        self._connection.sendall(json.dumps(message).encode() + b"\n")

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
        os._exit(ORPHANED)


def main() -> None:
    handle, parent, threads = map(int, sys.argv[1:4])
    work, folder = sys.argv[4:]
    _end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver decides what Ctrl-C means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    faulthandler.enable(2)  # a crash is told in the log of the cell that has the descriptor then
    os.set_inheritable(handle, False)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="replace")  # type: ignore[union-attr]
    line = Line(socket.socket(fileno=handle))
    try:
        _serve(line, threads, work, Path(folder))
    except Exception as error:
        line.send({"broken": f"{type(error).__name__}: {error}"})
        raise


def _serve(line: Line, threads: int, work: str, folder: Path) -> None:
    """Warm up, then run what comes."""

    function = find_work(work)
    if "torch" in sys.modules:
        from taskloom.runs.machine import skip_compiler, use_threads

        use_threads(threads)
        skip_compiler()
    line.send({"ready": os.getpid()})
    while True:
        job = line.jobs.get()
        with Redirected(Artifacts(folder).cell(job.cell)) as log:
            line.cell, line.rotate = job.cell, log.rotate
            perform(function, job, line)
            line.cell, line.rotate = "", lambda: None
            sys.stdout.flush()
            sys.stderr.flush()


def _end_with(parent: int) -> None:
    """Be killed when the driver ends, even while no Python runs here (Linux; elsewhere the socket tells)."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(ORPHANED)


if __name__ == "__main__":
    main()
