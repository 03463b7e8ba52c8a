"""What a plugin prints is no part of a command's answer, however it prints it.

:func:`quiet` takes ``print``, ``os.write(1, …)`` and the output of C code out of stdout and gives it, line by line,
to somebody who says whose it was.
"""

import io
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any

from taskloom.core.visible import visible

Tell = Callable[[str], None]
SHOWN = 3  # lines of what a plugin prints that are passed on
_LONGEST = 200


def to_stderr(text: str) -> None:
    """Say something that is no part of the answer."""
    with suppress(OSError, ValueError, AttributeError):  # a closed stderr is nobody's concern
        print(visible(text), file=sys.stderr, flush=True)


@contextmanager
def quiet(who: str, tell: Tell = to_stderr) -> Iterator[None]:
    """Keep everything that is printed inside out of stdout; afterwards ``tell`` who printed what, cut to a few lines.

    ``sys.stdout`` is the same object afterwards and is never closed, and neither is what stood in for it: a logging
    handler that was made inside goes on, to stderr.

    Both are the whole process's, so only its main thread may move them: two threads that take turns would put each
    other's stand-in back. In another thread nothing happens; whoever starts one uses :func:`aside` around it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    aside = _Aside()
    try:
        with _descriptor(aside.collected), redirect_stdout(_writer(aside)):
            yield
    finally:
        for line in _told(who, b"".join(aside.collected)):
            tell(line)
        aside.done = True


@contextmanager
def aside() -> Iterator[None]:
    """Let everything that is printed inside, by this thread or another, go to stderr at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _flush()
    kept = _copy_of_stdout()
    try:
        with suppress(OSError):  # a closed stderr
            os.dup2(2, 1)
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _flush()
        if kept is not None:
            os.dup2(kept, 1)
            os.close(kept)


class _Aside(io.RawIOBase):
    """Stands in for stdout: collects while it does, and passes on to stderr what is written to it later."""

    name = "<stdout>"

    def __init__(self) -> None:
        self.collected: list[bytes] = []
        self.done = False

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        held = bytes(data)
        if self.done:
            with suppress(OSError, ValueError, AttributeError):
                sys.stderr.write(held.decode(errors="replace"))
        else:
            self.collected.append(held)
        return len(held)

    def fileno(self) -> int:
        return 1  # which is not stdout's then

    def close(self) -> None:
        """Stays open: whoever kept it may go on."""


def _writer(aside: _Aside) -> io.TextIOWrapper:
    return io.TextIOWrapper(aside, encoding="utf-8", errors="replace", write_through=True)


@contextmanager
def _descriptor(collected: list[bytes]) -> Iterator[None]:
    """Descriptor 1 leads into a file of nobody's, which is read at the end; where there is none, nothing happens."""
    _flush()
    kept = _copy_of_stdout()
    if kept is None:
        yield
        return
    try:
        with tempfile.TemporaryFile() as file:
            os.dup2(file.fileno(), 1)
            try:
                yield
            finally:
                _flush()
                os.dup2(kept, 1)
                file.seek(0)
                collected.append(file.read())
    finally:
        os.close(kept)


def _copy_of_stdout() -> int | None:
    try:
        return os.dup(1)
    except OSError:  # closed
        return None


def _flush() -> None:
    """Empty Python's and C's buffers of stdout, so that each byte goes where it was meant to go."""
    with suppress(OSError, ValueError, AttributeError):  # closed, full, or no stream at all
        sys.stdout.flush()
    with suppress(ImportError, OSError, AttributeError, TypeError):  # no C library to ask on this system
        import ctypes

        ctypes.CDLL(None).fflush(None)


def _told(who: str, output: bytes) -> list[str]:
    lines = [line for line in output.decode(errors="replace").splitlines() if line.strip()]
    shown = [line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…" for line in lines[:SHOWN]]
    told = [f"{who} printed: {line}" for line in shown]
    return told + ([f"{who} printed {len(lines) - SHOWN} lines more"] if len(lines) > SHOWN else [])
