"""A cell's ``log.txt``: what its worker and plugins print, its story, and why it failed. Its size is bounded."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path

#: Bytes at which a log is moved to ``log-old.txt``, replacing what was there.
LIMIT = 4 << 20
NAME, OLD = "log.txt", "log-old.txt"


def append(folder: Path, text: str) -> None:
    """Add text to a cell's log, or nothing if the disk is full: that must not hide what went wrong."""
    with suppress(OSError), (folder / NAME).open("a", encoding="utf-8", errors="replace") as log:
        log.write(text if text.endswith("\n") else text + "\n")


def rotate(folder: Path, limit: int = LIMIT) -> None:
    """Move the end of a log that is larger than the limit to ``log-old.txt``; called at every event of a cell.

    The file is emptied, never renamed: every process that has it open continues in the same log.
    """
    with suppress(OSError):
        if (folder / NAME).stat().st_size > limit:
            with (folder / NAME).open("r+b") as log:
                log.seek(-limit, os.SEEK_END)
                end = log.read()
                log.truncate(0)
            (folder / OLD).write_bytes(end)


@contextmanager
def redirected(folder: Path) -> Iterator[None]:
    """Send what this process prints to a cell's log, also what C libraries print, and what is said of a crash.

    Python's streams are new ones, so that a component that closes them harms nobody else.
    """
    try:
        log = os.open(folder / NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    except OSError:  # a full disk: then what is printed is lost, not the cell
        log = os.open(os.devnull, os.O_WRONLY)
    before = [os.dup(1), os.dup(2)]
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    out, error = (os.fdopen(number, "w", 1, "utf-8", "replace", closefd=False) for number in (1, 2))
    try:
        with redirect_stdout(out), redirect_stderr(error):
            yield
    finally:
        for number, stream, saved in zip((1, 2), (out, error), before, strict=True):
            with suppress(OSError, ValueError):  # a full disk; the component has closed it
                stream.flush()
            os.dup2(saved, number)
            os.close(saved)
