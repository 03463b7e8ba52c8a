"""The worker's part of an engine: find the work, do it, end with exactly one ending event; and the cell's log.

A cell's ``log.txt`` has what its worker and plugins print, its story, and why it failed. Its size is bounded.
"""

import errno
import os
import re
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from taskloom.core.engine import ENDS, Emit, Event, Job, Work
from taskloom.core.errors import DeviceError, OutOfMemory, TaskloomError

#: Bytes at which a log is moved to ``log-old.txt``, replacing what was there.
LOG_LIMIT = 4 << 20
LOG, OLD_LOG = "log.txt", "log-old.txt"
#: How the reason of a cell begins that failed because the disk is full: trying it again may succeed.
DISK_FULL = "the disk is full"
#: How the names of threads begin that run a cell in this process.
CELL_THREAD = "cell "


def find_work(name: str) -> Work:
    """The function that ``"module:function"`` names.

    >>> find_work("taskloom.core.work:find_work").__name__
    'find_work'
    """
    module, _, function = name.partition(":")
    return cast(Work, getattr(import_module(module), function))


def perform(work: Work, job: Job, emit: Emit) -> None:
    """Run ``work(job, emit)``; whatever it raises becomes the one event that ends the job.

    Every event gets the job's attempt, and the cell's log is kept within its bound. Nothing is passed on after the end.
    An exception becomes ``oom`` if memory ran out, ``lost`` if the device failed, and ``failed`` otherwise, with the
    reason and the traceback; ``disk_full`` says that the disk is full, ``unusable`` that no process can use the device.
    ``SystemExit`` is a failure like any other. A component that changes the current folder does so for its own job.
    Raises only what ``emit`` itself raises, and Ctrl-C.
    """
    reports = _Reports(job, emit)
    try:
        with _same_folder_after(emit):
            work(job, reports)
    except BaseException as error:  # SystemExit too: a component may end its cell, and nothing else
        if is_ctrl_c(error):
            raise
        reports(_ending(job, error))  # raises again what `emit` has raised because nobody listens any more
    else:
        if not reports.ended:
            reports(Event("failed", job.cell, {"reason": "the work returned without reporting how it ended"}))


@contextmanager
def _same_folder_after(emit: Emit) -> Iterator[None]:
    """Come back to the current folder, unless nobody waits for this job any more: the process has gone on since."""
    folder = Path.cwd()
    try:
        yield
    finally:
        if not getattr(emit, "abandoned", False):
            os.chdir(folder)


class _Reports:
    """An ``Emit`` that adds the attempt, and knows whether the job has ended."""

    def __init__(self, job: Job, emit: Emit) -> None:
        self.ended = False
        self._job, self._emit = job, emit

    def __call__(self, event: Event) -> None:
        if not self.ended:
            rotate_log(Path(self._job.folder, "cells", self._job.cell))
            self._emit(replace(event, attempt=self._job.attempt))
            self.ended = event.what in ENDS

    @property
    def stop_asked(self) -> bool:
        return self._emit.stop_asked


def _ending(job: Job, error: BaseException) -> Event:
    facts: dict[str, Any] = {"reason": reason_of(error), "traceback": "".join(traceback.format_exception(error))}
    if is_out_of_memory(error):
        tried = getattr(error, "micro_batch", None) or job.micro_batch
        return Event("oom", job.cell, {**facts, "task": getattr(error, "task", None), "micro_batch": tried})
    if failure := device_failure(error):
        return Event("lost", job.cell, {**facts, "reason": failure, "unusable": isinstance(error, DeviceError)})
    if lacks_room(error) or lacks_room(error.__cause__):
        facts |= {"disk_full": True, "reason": f"{DISK_FULL}: {facts['reason']}"}
    return Event("failed", job.cell, facts)


def lacks_room(error: BaseException | None) -> bool:
    """Whether the system says that a disk is full, or a quota used up; some libraries only quote it."""
    codes = (errno.ENOSPC, errno.EDQUOT)
    quoted = error is not None and any(os.strerror(code) in reason_of(error) for code in codes)
    return quoted or getattr(error, "errno", None) in codes


#: How allocators and the libraries of CUDA and HIP say that memory ran out: torch has no type for these.
_NO_MEMORY = re.compile(
    r"out of memory|DefaultCPUAllocator|failed to map segment|cannot allocate memory"
    r"|could not create a (primitive|memory)"
    r"|(CU|HIP)[A-Z]+_STATUS_(ALLOC_FAILED|NOT_INITIALIZED)|CUDNN_STATUS_\w*ALLOCATION_FAILED"
    r"|miopenStatus(AllocFailed|NotInitialized)|rocblas_status_memory_error",
    re.IGNORECASE,
)
#: How torch begins what CUDA or HIP reported, and what their libraries say of a kernel that did not come through.
_DEVICE_FAILED = re.compile(
    r"\b(CUDA|HIP)( driver)? error\b|_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR)\b|miopenStatus\w*Error"
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: Python's, the CPU's or the GPU's."""
    if isinstance(error, MemoryError | OutOfMemory) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError | ImportError) and _NO_MEMORY.search(str(error)) is not None


def device_failure(error: BaseException | None) -> str:
    """Why the process can no longer use its device; empty if the error says nothing of the kind.

    After a failed assertion or an illegal access on a GPU, every later call in the process fails the same way. It does
    so too if the error was caught and another one raised.
    """
    while error is not None:
        if isinstance(error, DeviceError):
            return str(error)
        text = str(error) if isinstance(error, RuntimeError) else ""
        if type(error).__name__ == "AcceleratorError" or _DEVICE_FAILED.search(text):
            return f"its device failed: {text.partition(chr(10))[0]}"
        error = error.__cause__ or error.__context__
    return ""


def reason_of(error: BaseException) -> str:
    """One line for the table, not too long: our own messages as they are, others with their type."""
    try:
        text = " ".join(str(error).split())
        text = text if len(text) <= 600 else f"{text[:600]}…"
    except Exception:  # a third party's error may have no text
        text = ""
    if isinstance(error, TaskloomError):
        return text
    hint = " (a component called sys.exit; it should raise an error)" if isinstance(error, SystemExit) else ""
    return f"{type(error).__name__}: {text}".rstrip(": ") + hint


def is_ctrl_c(error: BaseException) -> bool:
    """Whether an error may be the user's Ctrl-C, and not a component's own ``KeyboardInterrupt``.

    Python raises one only in the main thread, and only where nobody else handles the signal, as a run does.
    """
    return (
        isinstance(error, KeyboardInterrupt)
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )


def append_log(folder: Path, text: str) -> None:
    """Add text to a cell's log, or nothing if the disk is full: that must not hide what went wrong."""
    with suppress(OSError), os.fdopen(open_log(folder), "a", encoding="utf-8", errors="replace") as log:
        log.write(text if text.endswith("\n") else text + "\n")


def open_log(folder: Path, name: str = LOG, flags: int = os.O_WRONLY | os.O_CREAT | os.O_APPEND) -> int:
    """The descriptor of a cell's log. A link in its place is not followed and a pipe not waited for: ``OSError``."""
    return os.open(folder / name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def rotate_log(folder: Path, limit: int = LOG_LIMIT) -> None:
    """Move the end of a log that is larger than the limit to ``log-old.txt``; called at every event of a cell.

    The file is emptied, never renamed: every process that has it open continues in the same log.
    """
    with suppress(OSError):
        if (folder / LOG).stat().st_size > limit:
            with os.fdopen(open_log(folder, flags=os.O_RDWR), "r+b") as log:
                log.seek(-limit, os.SEEK_END)
                end = log.read()
                log.truncate(0)
            with os.fdopen(open_log(folder, OLD_LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as old:
                old.write(end)
