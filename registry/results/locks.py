"""Who works on what: locks, which the kernel frees when their holder ends, however it ends.

All drivers of a registry are on one machine, so a cell is taken exactly while its lock is held:

- ``cells/<id>/driver.lock`` is held by the driver that has the cell, ``stages/<key>/driver.lock`` by the driver that
  computes the shared stage. The files contain that process's id.
- ``cells/<id>/worker.lock`` is held by the worker that trains the cell: a worker that is still dying and its successor
  never write at the same time, on whichever machine they are.
- ``lock`` is held by all drivers of the registry, shared.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Self
from weakref import WeakSet

from taskloom.registry.results.artifacts import Artifacts
from taskloom.registry.results.errors import refusal

DRIVER, WORKER, REGISTRY = "driver.lock", "worker.lock", "lock"


class Lock:
    """A lock file, locked from :meth:`take` until :meth:`close` or the end of this process.

    A forked child does not hold it. A symbolic link is not followed: it may lead out of the registry.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def take(self, *, shared: bool = False, wait: bool = False) -> bool:
        """Lock the file, exclusively or ``shared``, and write this process's id into it.

        False if another process has locked it; with ``wait`` it returns when that one has closed it.
        """
        operation = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
                _locks.add(self)
            fcntl.flock(self._file, operation if wait else operation | fcntl.LOCK_NB)
            os.pwrite(self._file, f"{os.getpid():<10}\n".encode(), 0)  # of one length: nobody reads half an id
        except BlockingIOError:
            return False
        except OSError as error:
            advice = "It should be a plain file, in a folder that you may write to, on a disk with locks."
            raise refusal(f"{self._path} cannot be locked", error, advice) from error
        return True

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


_locks: WeakSet[Lock] = WeakSet()


def _leave_to_parent() -> None:
    for lock in list(_locks):
        lock.close()


os.register_at_fork(after_in_child=_leave_to_parent)


def holder(registry: Path, cell: str) -> int | None:
    """The id of the driver process that has a cell; None if no driver has it."""
    try:
        file = os.open(registry / "cells" / cell / DRIVER, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # until it is closed; a driver that comes now tries again
        return None
    except BlockingIOError:
        pid = os.read(file, 64).strip()
        return int(pid) if pid.isdigit() else 0
    finally:
        os.close(file)


@contextmanager
def sole_worker(folder: Path, wait: Callable[[], None]) -> Iterator[None]:
    """Hold the worker lock of a cell's folder; calls ``wait`` repeatedly while an earlier worker still holds it."""
    with closing(Lock(folder / WORKER)) as lock:
        while not lock.take():
            wait()
            time.sleep(0.05)
        yield


class Claims:
    """The cells that this driver has claimed, and the shared stages that they compute; closing releases them all.

    A driver is ``alone`` if the registry had no other when it started. Others wait until it calls :meth:`share`.

    Example::

        with Claims(ledger.folder) as claims:
            claims.share()
            if claims.claim(cell):  # then nobody else runs it
                claims.release(cell)
    """

    def __init__(self, registry: Path) -> None:
        self._artifacts = Artifacts(registry)
        self._held: dict[Path, tuple[Lock, set[str]]] = {}  # folder → its lock, and the cells that it is for
        self._registry = Lock(self._artifacts.folder / REGISTRY)
        self.alone = self._registry.take()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for lock in [self._registry, *(lock for lock, cells in self._held.values())]:
            lock.close()

    def share(self) -> None:
        """Let other drivers start."""
        self._registry.take(shared=True, wait=True)

    def claim(self, cell: str, stages: Sequence[str] = ()) -> bool:
        """Claim a cell, unless another driver has it or computes the first of ``stages``: then nothing is claimed.

        ``stages`` are the keys of the stages that the cell would compute, in their order. Those that no other driver
        computes are claimed with the cell.
        """
        folders = [self._artifacts.stage(key) for key in stages]
        needed = [*folders[:1], self._artifacts.cell(cell)]
        if not all(self._take(folder, cell) for folder in needed):
            self.release(cell)
            return False
        for folder in folders[1:]:
            self._take(folder, cell)
        return True

    def release(self, cell: str) -> None:
        """Release a cell, and the stages that no other cell of this driver computes."""
        for folder, (lock, cells) in list(self._held.items()):
            cells.discard(cell)
            if not cells:
                lock.close()
                del self._held[folder]

    def _take(self, folder: Path, cell: str) -> bool:
        if folder not in self._held:
            lock = Lock(folder / DRIVER)
            if not lock.take():
                lock.close()
                return False
            self._held[folder] = lock, set()
        self._held[folder][1].add(cell)
        return True
