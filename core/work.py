"""The worker's part of an engine: find the work, do it, and end with exactly one ending event."""

import errno
import os
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

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


def perform(work: Work, job: Job, emit: Emit) -> None:
    """Run ``work(job, emit)``; whatever it raises becomes the one event that ends the job.

    Every event gets the job's fence. Nothing is passed on after the end. An exception becomes ``oom`` if memory ran
    out and ``failed`` otherwise, with the reason and the traceback; ``disk_full`` says that there was no room on the
    disk. ``SystemExit`` is a failure like any other. A component that changes the current folder does so for its own
    job. Raises only what ``emit`` itself raises, and Ctrl-C.
    """
    told = _Told(job, emit)
    try:
        with coming_back():
            work(job, told)
    except BaseException as error:  # SystemExit too: a component may end its cell, and nothing else
        if told.broken is error or is_ctrl_c(error):  # nobody hears us any more
            raise
        told(_ending(job, error))
    else:
        if not told.ended:
            told(Event("failed", job.cell, {"reason": "the work returned without saying how it ended"}))


@contextmanager
def coming_back() -> Iterator[None]:
    """Return to the current folder at the end, so that relative paths mean to the next what they meant to the first."""
    here = Path()
    with suppress(OSError):  # it was removed
        here = Path.cwd()
    try:
        yield
    finally:
        with suppress(OSError):
            os.chdir(here)


class _Told:
    """An ``Emit`` that adds the fence, and knows whether the job has ended."""

    def __init__(self, job: Job, emit: Emit) -> None:
        self.ended = False
        self.broken: BaseException | None = None
        self._job, self._emit = job, emit

    def __call__(self, event: Event) -> None:
        if self.ended:
            return
        self.ended = event.what in ENDS
        try:
            self._emit(replace(event, fence=self._job.fence))
        except BaseException as error:
            if isinstance(error, OSError) or not isinstance(error, Exception):  # else the event itself is wrong
                self.broken = error
            raise

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


#: torch has no type for the memory of the CPU or of a library: its allocator's words, oneDNN's and cuBLAS's.
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
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _NO_MEMORY)


def reason_of(error: BaseException) -> str:
    """One line for the table: our own messages as they are, others with their type."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # an error of a third party's may not even have words
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
