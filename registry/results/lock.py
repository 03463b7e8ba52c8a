"""Taking turns: who may write to a ledger that other processes write to as well."""

import sqlite3
import time
from contextlib import suppress
from random import SystemRandom

_LONGEST = 0.005  # seconds between two tries
_chance = SystemRandom()


def begin(database: sqlite3.Connection, patience: float) -> None:
    """Begin to write as soon as nobody else does; SQLite's error if that takes more than ``patience`` seconds.

    SQLite's own waiting sleeps up to 0.1 s between tries, all waiters alike: with a few busy writers some would
    starve. This one waits by chance, and briefly.
    """
    until = time.monotonic() + patience
    pause = 0.0005
    database.execute("PRAGMA busy_timeout = 0")
    try:
        while True:
            try:
                database.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic() > until:
                    raise
            time.sleep(_chance.uniform(0, pause))
            pause = min(2 * pause, _LONGEST)
    finally:
        database.execute(f"PRAGMA busy_timeout = {int(1000 * patience)}")


def is_busy(error: sqlite3.OperationalError) -> bool:
    """Whether SQLite only says that another process is at it."""
    return error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY


def roll_back(database: sqlite3.Connection) -> None:
    """Undo what was not committed. After some errors SQLite has done so already, and the first error counts."""
    if database.in_transaction:
        with suppress(sqlite3.Error):
            database.execute("ROLLBACK")
