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
from typing import IO, Any

from taskloom.core.visible import visible

Tell = Callable[[str], None]
SHOWN = 3  # lines of what a plugin prints that are passed on
_LONGEST = 200
_BYTES = 4 * (_LONGEST + 1)  # in which a line that is too long can be told from one that is not


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
        with _descriptor(aside.heard), redirect_stdout(_writer(aside)):
            yield
    finally:
        for line in aside.heard.told(who):
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


class _Heard:
    """What was printed, as far as it is told: the first lines, cut, and the number of all but blank ones."""

    def __init__(self) -> None:
        self._first: list[bytes] = []
        self._count = 0
        self._line, self._blank = b"", True  # the line that has not ended yet

    def add(self, data: bytes) -> None:
        for piece in data.splitlines(keepends=True):
            self._line += piece[: max(0, _BYTES - len(self._line))]
            self._blank = self._blank and not piece.strip()
            if piece.endswith((b"\n", b"\r")):
                self._end_line()

    def _end_line(self) -> None:
        if not self._blank:
            self._count += 1
            self._first += [self._line] if len(self._first) < SHOWN else []
        self._line, self._blank = b"", True

    def told(self, who: str) -> list[str]:
        self._end_line()
        lines = [line.decode(errors="replace").rstrip("\r\n") for line in self._first]
        told = [f"{who} printed: {line if len(line) <= _LONGEST else f'{line[:_LONGEST]}…'}" for line in lines]
        return told + ([f"{who} printed {self._count - SHOWN} lines more"] if self._count > SHOWN else [])


class _Aside(io.RawIOBase):
    """Stands in for stdout: collects while it does, and passes on to stderr what is written to it later."""

    name = "<stdout>"

    def __init__(self) -> None:
        self.heard = _Heard()
        self.done = False

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        held = bytes(data)
        if self.done:
            with suppress(OSError, ValueError, AttributeError):
                sys.stderr.write(held.decode(errors="replace"))
        else:
            self.heard.add(held)
        return len(held)

    def fileno(self) -> int:
        return 1  # which is not stdout's then

    def close(self) -> None:
        """Stays open: whoever kept it may go on."""


def _writer(aside: _Aside) -> io.TextIOWrapper:
    return io.TextIOWrapper(aside, encoding="utf-8", errors="replace", write_through=True)


@contextmanager
def _descriptor(heard: _Heard) -> Iterator[None]:
    """Descriptor 1 leads into a file of nobody's, which is read at the end; where there is none, nothing happens.

    Where no such file can be made (a full disk, no folder for temporary files), it leads to stderr.
    """
    _flush()
    kept = _copy_of_stdout()
    if kept is None:
        yield
        return
    file = _temporary()
    try:
        with suppress(OSError):  # a closed stderr
            os.dup2(2 if file is None else file.fileno(), 1)
        yield
    finally:
        _flush()
        os.dup2(kept, 1)
        os.close(kept)
        if file is not None:
            _hear(file, heard)


def _temporary() -> IO[bytes] | None:
    try:
        return tempfile.TemporaryFile()
    except OSError:
        return None


def _hear(file: IO[bytes], heard: _Heard) -> None:
    with file, suppress(OSError):
        file.seek(0)
        while some := file.read(1 << 16):
            heard.add(some)


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
