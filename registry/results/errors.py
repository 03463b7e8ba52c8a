"""What SQLite says, as messages that say what to do."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from os import W_OK, access
from pathlib import Path
from shutil import disk_usage

from taskloom.core.errors import RegistryError

_ROOM = 2**16  # bytes that SQLite needs beside a ledger before anybody can write to it


class HeldUpError(RegistryError):
    """The registry cannot be written just now, through no fault of the request: later the same one may succeed."""

    @classmethod
    def full(cls, what: str) -> "HeldUpError":
        """The error for what cannot be done for want of room."""
        return cls(f"{what}: the disk is full. Make room and run again; what was written so far is kept.")


class LostLeaseError(RegistryError):
    """Somebody writes under a lease that another has taken over, or that was given back; nothing was written."""

    def __init__(self, cell: str, fence: int, holder: str | None = None, *, finished: bool = False) -> None:
        if finished:
            how = "is over: the cell is finished. Nothing was written"
        elif holder:
            how = f"is lost: {holder} has the cell now. Nothing was written; the cell goes on there"
        else:
            how = "is lost: nobody has the cell now. Nothing was written; `taskloom run` takes the cell up again"
        super().__init__(f"lease {fence} of cell {cell} {how}.")


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Make SQLite's errors messages that say what to do; those that only our own defects can cause stay."""
    try:
        yield
    except (sqlite3.ProgrammingError, sqlite3.IntegrityError):
        raise
    except sqlite3.DatabaseError as error:
        raise _explanation(path, error) from error
    except UnicodeDecodeError as error:  # in SQLite's own message about it
        raise damaged(path, "it holds bytes that are no text") from error
    except OverflowError as error:
        raise RegistryError(
            f"{path} keeps whole numbers from −2**63 to 2**63 − 1, and was given one beyond; nothing was written. "
            "Choose a smaller seed."
        ) from error
    except UnicodeEncodeError as error:
        raise RegistryError(f"{path} keeps texts as UTF-8, which {error.object[:40]!r} cannot be written in") from error


def damaged(path: Path, what: object) -> RegistryError:
    """The error for a ledger that does not hold what was written to it."""
    words = " ".join(str(what).split())[:200]  # SQLite may quote what it found
    return RegistryError(
        f"{path} is damaged ({words}). Put back a copy of it; or move it away, and `taskloom run GRID` makes a new one."
    )


def _explanation(path: Path, error: sqlite3.DatabaseError) -> RegistryError:
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:  # Python could not make sense of what SQLite gave; its message repeats all of it
        return damaged(path, "it holds bytes that are no text")
    match code & 0xFF:  # what is above says more than anybody can act upon
        case sqlite3.SQLITE_CORRUPT:
            return damaged(path, error)
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return HeldUpError(
                f"{path} is locked: another process holds it, and did not let go in time. Try again when that is done. "
                "If there is none, its disk may not support locks: choose a folder on another with --registry."
            )
        case sqlite3.SQLITE_READONLY:
            if code == sqlite3.SQLITE_READONLY and may_write(path):  # opened only to be read, as the disk was full
                return _held_up(path, error)
            return RegistryError(
                f"{path} can be read and not written: you lack the right, or its disk is read-only. "
                "Choose a folder that you may write to with --registry."
            )
        case sqlite3.SQLITE_FULL:
            return HeldUpError.full(f"{path} cannot grow")
        case sqlite3.SQLITE_IOERR:
            return _held_up(path, error)
    return RegistryError(f"{path} cannot be used as a ledger: {error}. Move it away, or choose another --registry.")


def _held_up(path: Path, error: sqlite3.DatabaseError) -> HeldUpError:
    """The disk did not do what SQLite asked of it: most often it is full."""
    if disk_usage(path.parent).free < _ROOM:
        return HeldUpError.full(f"{path} cannot be written")
    return HeldUpError(
        f"{path} cannot be used just now: {error}. Is its disk there and sound, and your quota not used up? See to "
        "that and run again; what was written so far is kept."
    )


def may_write(path: Path) -> bool:
    """Whether one has the right to write a ledger, and the files beside it."""
    return access(path, W_OK) and access(path.parent, W_OK)
