"""A cell's ``log.txt``: what its worker and plugins print, and why it failed. It does not grow without bound."""

import os
from contextlib import suppress
from pathlib import Path

#: Bytes after which a log is put aside; the one put aside before goes. So a cell's logs take twice this at most, and
#: until the next event what is printed meanwhile: of that the end is kept.
LIMIT = 4 << 20
NAME, OLD = "log.txt", "log-old.txt"


def append(folder: Path, text: str) -> None:
    """Add text to a cell's log. A full disk or a missing right must not hide what went wrong: then nothing is added."""
    with suppress(OSError):
        rotate(folder)
        with (folder / NAME).open("a", encoding="utf-8", errors="replace") as file:
            file.write(text if text.endswith("\n") else text + "\n")


def rotate(folder: Path, limit: int = LIMIT) -> bool:
    """Put a log that has grown too large aside; says whether it did."""
    path = folder / NAME
    try:
        size = path.stat().st_size
        if size <= limit:
            return False
        path.replace(folder / OLD)
        if size > 2 * limit:
            _keep_end(folder / OLD, limit)
    except OSError:
        return False
    return True


def _keep_end(path: Path, limit: int) -> None:
    """Cut a file down to its last bytes, from the beginning of a line if there is one."""
    with path.open("r+b") as file:
        file.seek(-limit, os.SEEK_END)
        end = file.read(limit)
        file.seek(0)
        file.write(end[end.find(b"\n") + 1 :] or end)
        file.truncate()


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
        rotate(self.folder, self.limit)
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        for saved, standard in zip(self._saved, (1, 2), strict=True):
            os.dup2(saved, standard)
            os.close(saved)

    def rotate(self) -> None:
        """Begin a new file if this one has grown too large."""
        if rotate(self.folder, self.limit):
            self._open()

    def _open(self) -> None:
        try:
            file = os.open(self.folder / NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError:  # a full disk, say: then what is printed is lost, not the cell
            file = os.open(os.devnull, os.O_WRONLY)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.close(file)
