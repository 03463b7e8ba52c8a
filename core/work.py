"""The worker's part of an engine: find the work, do it, and end with exactly one ending event."""

import errno
import signal
import sys
import threading
import traceback
from contextlib import chdir
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from taskloom.core import cell_log
from taskloom.core.engine import Emit, Work
from taskloom.core.errors import OutOfMemory, TaskloomError
from taskloom.core.events import ENDS, Event, Job

#: How the names of threads begin that run a cell in this process.
CELL_THREAD = "cell "


def find_work(name: str) -> Work:
    """The function that ``"module:function"`` names.

    >>> find_work("taskloom.core.work:find_work").__name__
    'find_work'
    """
    module, _, function = name.partition(":")
    if not module or not function:
        raise ValueError(f'work should be "module:function". Found {name!r}.')
    found = getattr(import_module(module), function)
    assert callable(found)
    return found  # type: ignore[no-any-return]


def logged_work(name: str, threads: int) -> Work:
    """The work of that name for a worker process: torch has so many threads, and prints go to the cell's log."""

    def work(job: Job, emit: Emit) -> None:
        with cell_log.redirected(job.cell_folder()):
            function = find_work(name)  # here, so that an error in its import is the cell's
            if "torch" in sys.modules:
                import torch

                torch.set_num_threads(threads)
            function(job, emit)

    return work


def perform(work: Work, job: Job, emit: Emit) -> None:
    """Run ``work(job, emit)``; whatever it raises becomes the one event that ends the job.

    Every event gets the job's fence, and the cell's log is kept within its bound. Nothing is passed on after the end.
    An exception becomes ``oom`` if memory ran out and ``failed`` otherwise, with the reason and the traceback;
    ``disk_full`` says that the disk is full. ``SystemExit`` is a failure like any other. A component that changes the
    current folder does so for its own job. Raises only what ``emit`` itself raises, and Ctrl-C.
    """
    reports = _Reports(job, emit)
    try:
        with chdir("."):  # and come back
            work(job, reports)
    except BaseException as error:  # SystemExit too: a component may end its cell, and nothing else
        if is_ctrl_c(error):
            raise
        reports(_ending(job, error))  # raises again what `emit` has raised because nobody listens any more
    else:
        if not reports.ended:
            reports(Event("failed", job.cell, {"reason": "the work returned without reporting how it ended"}))


class _Reports:
    """An ``Emit`` that adds the fence, and knows whether the job has ended."""

    def __init__(self, job: Job, emit: Emit) -> None:
        self.ended = False
        self._job, self._emit = job, emit

    def __call__(self, event: Event) -> None:
        if not self.ended:
            cell_log.rotate(Path(self._job.folder, "cells", self._job.cell))
            self._emit(replace(event, fence=self._job.fence))
            self.ended = event.what in ENDS

    @property
    def stop_asked(self) -> bool:
        return self._emit.stop_asked


def _ending(job: Job, error: BaseException) -> Event:
    facts: dict[str, Any] = {"reason": reason_of(error), "traceback": "".join(traceback.format_exception(error))}
    if is_out_of_memory(error):
        tried = getattr(error, "micro_batch", None) or job.micro_batch
        return Event("oom", job.cell, {**facts, "task": getattr(error, "task", None), "micro_batch": tried})
    if lacks_room(error) or lacks_room(error.__cause__) or "No space left" in facts["reason"]:
        facts |= {"disk_full": True, "reason": f"the disk is full: {facts['reason']}"}
    return Event("failed", job.cell, facts)


def lacks_room(error: BaseException | None) -> bool:
    """Whether the system says that a disk is full, or a quota used up."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


#: How torch's CPU allocator, oneDNN and cuBLAS say it: torch has no type for these.
_NO_MEMORY = (
    "DefaultCPUAllocator",
    "could not create a primitive",
    "could not create a memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: Python's, the CPU's or the GPU's."""
    if isinstance(error, MemoryError | OutOfMemory) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in _NO_MEMORY)


def reason_of(error: BaseException) -> str:
    """One line for the table: our own messages as they are, others with their type."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # a third party's error may have no text
        text = ""
    if isinstance(error, TaskloomError):
        return text
    named = f"{type(error).__name__}: {text}".rstrip(": ")
    hint = " (a component called sys.exit; it should raise an error)" if isinstance(error, SystemExit) else ""
    return named + hint


def is_ctrl_c(error: BaseException) -> bool:
    """Whether an error may be the user's Ctrl-C, and not a component's own ``KeyboardInterrupt``.

    Python raises one only in the main thread, and only where nobody else handles the signal, as a run does.
    """
    return (
        isinstance(error, KeyboardInterrupt)
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
