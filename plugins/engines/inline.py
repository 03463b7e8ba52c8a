"""The engine that runs cells in this process, one after another."""

import queue
import threading
import time
from contextlib import suppress
from pathlib import Path

from taskloom.core import ENDS, Engine, Event, Job, Work, find_work, perform
from taskloom.core.work import CELL_THREAD, reason_of

#: Seconds that a cell is given to come to its next word when the engine is closed.
LAST_WORD = 5.0


class Inline(Engine):
    """Runs the cells in this process, one after another.

    Each cell has all the cores (or the GPU) to itself. For debugging, and for grids that are done in seconds: what
    ends this process ends its cell too, so that nothing here survives a crash of a plugin.

    Example: ``taskloom run quickstart --engine inline``
    """

    name = "inline"

    def __init__(self) -> None:
        self._thread: _Thread | None = None
        self._events: queue.SimpleQueue[_Said] = queue.SimpleQueue()

    def open(self, work: str, folder: Path) -> None:
        self._work = find_work(work)

    @property
    def slots(self) -> int:
        return 1

    @property
    def free(self) -> int:
        return int(self._thread is None)

    def submit(self, job: Job) -> None:
        assert self._thread is None, "this engine runs one cell at a time"
        self._thread = _Thread(self._work, job, self._events)
        self._thread.start()

    def poll(self, seconds: float) -> list[Event]:
        events: list[Event] = []
        until = time.monotonic() + seconds
        while not events or not self._events.empty():
            try:
                thread, event = self._events.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            if event.what in ENDS and thread is not None and thread is self._thread:
                thread.join(timeout=60)  # it has said its last word
                self._thread = None
            events.append(event)
        return events

    def stop(self, cell: str | None = None, *, at_once: bool = False) -> None:
        thread = self._thread
        if thread is None or cell not in (None, thread.job.cell):
            return
        thread.stop_asked = True
        if at_once:  # a thread cannot be ended from outside: nobody listens to it any more
            thread.heard = False
            self._thread = None
            lost = Event("lost", thread.job.cell, {"reason": "stopped at once"}, thread.job.fence)
            self._events.put((None, lost))

    def close(self) -> None:
        thread = self._thread
        self.stop(at_once=True)
        if thread is not None:  # Python cannot end well while torch works in another thread
            thread.join(timeout=LAST_WORD)

    def describe(self) -> str:
        return "one cell at a time in this process"


class _Abandoned(BaseException):
    """Nobody listens to the thread any more."""


class _Thread(threading.Thread):
    """Runs one job; its own ``Emit``."""

    def __init__(self, work: Work, job: Job, events: "queue.SimpleQueue[_Said]") -> None:
        super().__init__(name=f"{CELL_THREAD}{job.cell[:12]}", daemon=True)
        self.job = job
        self.stop_asked = False
        self.heard = True
        self._cell_work, self._events = work, events

    def __call__(self, event: Event) -> None:
        if not self.heard:
            raise _Abandoned  # ends the thread at its next word
        self._events.put((self, event))

    def run(self) -> None:
        with suppress(_Abandoned):
            try:
                perform(self._cell_work, self.job, self)
            except _Abandoned:
                raise
            except BaseException as error:  # whatever it is, a driver that waits must hear of the end
                self(Event("failed", self.job.cell, {"reason": reason_of(error)}, self.job.fence))


_Said = tuple[_Thread | None, Event]
