"""Turns SQLite's errors into messages that say what to do."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from os import W_OK, access
from pathlib import Path
from shutil import disk_usage

from taskloom.core.errors import RegistryError
from taskloom.core.work import lacks_room

_ROOM = 2**16  # bytes that SQLite needs beside a ledger before anybody can write to it


class HeldUpError(RegistryError):
    """The registry cannot be written at present, through no fault of the request: the same one may succeed later."""


def full_disk(failure: str) -> HeldUpError:
    """The error for a ``failure`` ("… cannot be written") because the disk is full."""
    return HeldUpError(f"{failure}: the disk is full. Make room and run again; what was written so far is kept.")


def refusal(failure: str, error: OSError, advice: str) -> RegistryError:
    """The error for a ``failure`` ("… cannot be read") with the system's reason and advice; a full disk has its own."""
    if lacks_room(error):
        return full_disk(f"{failure} ({error.strerror})")
    return RegistryError(f"{failure}: {error.strerror}. {advice}")


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into messages that say what to do; those that only a defect of ours can cause stay."""
    try:
        yield
    except (sqlite3.ProgrammingError, sqlite3.IntegrityError):
        raise
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        raise _explanation(path, error) from error
    except UnicodeEncodeError as error:
        raise RegistryError(f"{path} stores UTF-8, which cannot represent {error.object[:40]!r}") from error


def damaged(path: Path, damage: object) -> RegistryError:
    """The error for a ledger whose content is not what was written."""
    words = " ".join(str(damage).split())[:200]  # SQLite may quote the content
    return RegistryError(
        f"{path} is damaged ({words}). Restore a copy of it; or move it away, and `taskloom run GRID` makes a new one."
    )


def primary_code(error: Exception) -> int:
    """SQLite's primary result code; 0 if Python could not decode what SQLite quotes."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _explanation(path: Path, error: Exception) -> RegistryError:
    code = primary_code(error)
    may_write = access(path, W_OK) and access(path.parent, W_OK)
    if code in (0, sqlite3.SQLITE_CORRUPT):
        return damaged(path, error if code else "it has bytes that are not UTF-8")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return HeldUpError(
            f"{path} is locked: another process holds it, and did not release it in time. Try again when that process "
            "is done. If there is none, the disk may lack locks: choose a folder on another disk with --registry."
        )
    if code == sqlite3.SQLITE_CANTOPEN or (code == sqlite3.SQLITE_READONLY and not may_write):
        refused = "opened. It should be a file that you may read" if code == sqlite3.SQLITE_CANTOPEN else "written"
        return RegistryError(
            f"{path} cannot be {refused}: you need permission to write to it and its folder, on a disk that is not "
            "read-only. Copy the whole folder, or choose one that you may write to with --registry."
        )
    # Read-only although one may write: it was opened only to be read, as the disk was full.
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY):
        if code == sqlite3.SQLITE_FULL or disk_usage(path.parent).free < _ROOM:
            return full_disk(f"{path} cannot be written")
        return HeldUpError(
            f"{path} cannot be used at present: {error}. Check its disk and your quota, then run again; what was "
            "written so far is kept."
        )
    return RegistryError(f"{path} cannot be used as a ledger: {error}. Move it away, or choose another --registry.")
