"""A cell's ``log.txt``: what its worker and plugins print, and why it failed. It does not grow without bound."""

import os
from contextlib import suppress
from io import FileIO
from pathlib import Path

#: Bytes after which a log is put aside; what was put aside before goes. So a cell's logs take twice this at most, and
#: until the next event what is printed meanwhile: of that the end is kept.
LIMIT = 4 << 20
NAME, OLD = "log.txt", "log-old.txt"


def append(folder: Path, text: str, *, limit: int = LIMIT) -> None:
    """Add text to a cell's log. A full disk or a missing right must not hide what went wrong: then nothing is added."""
    line = (text if text.endswith("\n") else text + "\n").encode(errors="replace")[-limit:]
    rotate(folder, limit, room=len(line))
    with suppress(OSError), (folder / NAME).open("ab") as file:
        file.write(line)


def rotate(folder: Path, limit: int = LIMIT, *, room: int = 0) -> None:
    """Put aside what a log holds if there is no ``room`` for so many bytes more.

    The file is emptied, never renamed: whoever has it open, in this process or another, goes on in the same log.
    """
    with suppress(OSError):
        if (folder / NAME).stat().st_size + room > limit:
            with FileIO(folder / NAME, "r+") as log:
                _lock(log)
                if os.fstat(log.fileno()).st_size + room > limit:  # nobody else was quicker
                    _put_aside(folder / OLD, _emptied(log, limit))


def _lock(log: FileIO) -> None:
    """Wait for one's turn. (Windows has no such locks, nor do some disks of other machines.)"""
    with suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(log, fcntl.LOCK_EX)


def _emptied(log: FileIO, limit: int) -> bytes:
    """Empty a file; gives its last bytes, from the beginning of a line if there is one."""
    before = max(0, log.seek(0, os.SEEK_END) - limit)
    log.seek(before)
    end = log.readall()
    log.truncate(0)  # at once: what somebody prints between these two is lost
    if not before and len(end) <= limit:
        return end
    end = end[-limit:]
    return end[end.find(b"\n") + 1 :] or end


def _put_aside(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)  # nothing is written through a link that somebody put there
    with path.open("xb") as file:
        file.write(content)


class Redirected:
    """Lets file descriptors 1 and 2 of this process go into a cell's log: prints of any library, and crashes too.

    Example::

        with Redirected(folder) as log:
            ...  # now and then: log.rotate()
    """

    def __init__(self, folder: Path, *, limit: int = LIMIT) -> None:
        self.folder, self.limit = folder, limit

    def __enter__(self) -> "Redirected":
        self._saved = [os.dup(1), os.dup(2)]
        self.rotate()
        try:
            file = os.open(self.folder / NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError:  # a full disk, say: then what is printed is lost, not the cell
            file = os.open(os.devnull, os.O_WRONLY)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.close(file)
        return self

    def __exit__(self, *_: object) -> None:
        for saved, standard in zip(self._saved, (1, 2), strict=True):
            os.dup2(saved, standard)
            os.close(saved)

    def rotate(self) -> None:
        """Make room if the log has grown too large."""
        rotate(self.folder, self.limit)
