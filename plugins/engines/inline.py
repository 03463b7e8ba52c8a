"""The engine that runs cells in this process, one after another."""

import os
import queue
import threading
import time
from contextlib import suppress
from pathlib import Path

from taskloom.core import ENDS, Engine, EngineError, Event, Job, Work, find_work, perform
from taskloom.core.work import CELL_THREAD
from taskloom.plugins.engines.devices import DEFAULTS

#: Seconds that closing waits for a cell to reach its next event.
GRACE = 5.0


class Inline(Engine):
    """Runs the cells in this process, one after another.

    Each cell has all the cores (or the GPU) to itself. For debugging, and for grids that take seconds: whatever ends
    this process ends its cell too, so a run does not survive a crash of a plugin. After a run the random states,
    environment and torch settings of the process are restored, unless a cell that did not stop was abandoned; only
    the C library's thresholds for returning memory, and the peak memory counter, keep the run's values.

    Example: ``taskloom run quickstart --engine inline``
    """

    name = "inline"

    def __init__(self) -> None:
        self._thread: CellThread | None = None
        self._events: list[Event] = []
        self._broken = ""  # why the device of this process can no longer be used
        self._added: list[str] = []  # variables of the environment that were not set before

    def open(self, work: str, folder: Path) -> None:
        self._added = [name for name in DEFAULTS if name not in os.environ]
        for name in self._added:  # cuBLAS looks when it is first used; OpenMP has looked by now
            os.environ[name] = DEFAULTS[name]
        self._work = find_work(work)

    @property
    def free(self) -> int:
        return int(self._thread is None)

    def submit(self, job: Job) -> None:
        assert self._thread is None, "this engine runs one cell at a time"
        if self._broken:
            raise EngineError(f"{self._broken}. Nothing more can be run in this process; --engine local replaces it.")
        self._thread = CellThread(self._work, job)
        self._thread.start()

    def poll(self, seconds: float) -> list[Event]:
        events, self._events = self._events, []
        if self._thread is None and not events:
            time.sleep(seconds)
        with suppress(queue.Empty):
            while self._thread is not None:
                events.append(self._thread.events.get(timeout=0 if events else seconds))
                if events[-1].what in ENDS:
                    self._broken = events[-1].facts["reason"] if events[-1].what == "lost" else ""
                    self._thread.join(timeout=60)
                    self._thread = None
        return events

    def stop(self, cell: str | None = None, *, at_once: bool = False) -> None:
        thread = self._thread
        if thread is None or cell not in (None, thread.job.cell):
            return
        thread.stop_asked = True
        if at_once:  # a thread cannot be ended from outside: it is left alone until its next event
            thread.abandoned = True
            self._thread = None
            self._events.append(Event("lost", thread.job.cell, {"reason": "stopped at once"}, thread.job.attempt))

    def close(self) -> None:
        thread = self._thread
        self.stop(at_once=True)
        if thread is not None:  # Python cannot end well while torch works in another thread
            thread.join(timeout=GRACE)
        for name in self._added:
            os.environ.pop(name, None)


class _AbandonedError(BaseException):
    """Ends a thread whose events are no longer read."""


class CellThread(threading.Thread):
    """Runs one job, and is the ``Emit`` of its events."""

    def __init__(self, work: Work, job: Job) -> None:
        super().__init__(name=f"{CELL_THREAD}{job.cell[:12]}", daemon=True)
        self.job = job
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.stop_asked = False
        self.abandoned = False
        self._cell_work = work

    def __call__(self, event: Event) -> None:
        if self.abandoned:
            raise _AbandonedError
        self.events.put(event)

    def run(self) -> None:
        with suppress(_AbandonedError):
            perform(self._cell_work, self.job, self)
