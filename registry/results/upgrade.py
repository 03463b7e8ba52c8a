"""Ledgers of older versions: read as they are, and brought up to date by the first who writes to them."""

import sqlite3
from pathlib import Path

from taskloom.registry.results.errors import damaged
from taskloom.registry.results.lock import begin, roll_back
from taskloom.registry.results.tables import ADDED, CELLS, SCHEMA, statements

_OF_VERSION_1 = (
    "id, status, reason, attempts, created, started, finished, seconds, peak_memory, device, best_epoch, versions, spec"
)
# Each stands in for what version 1 lacks, for this connection alone: a temporary name goes before one of the file.
_STAND_INS = (
    f"VIEW cells AS SELECT {_OF_VERSION_1}, '{{}}' AS facts FROM main.cells",
    "VIEW history AS SELECT grid, label, seed, cell, 1 AS turn, updated AS first, updated AS last "
    "FROM main.grid_cells JOIN main.grids ON name = grid",
    "TABLE attempts (cell, number, driver, fence, began, ended, how, reason, micro_batch, worker, versions)",
    "TABLE drivers (id, host, pid, process, boot, began, beat, uptime, patience)",
    "TABLE leases (cell, driver, fence)",
)


def version_of(database: sqlite3.Connection) -> int:
    """The version of the tables in an open ledger."""
    return int(database.execute("PRAGMA user_version").fetchone()[0])


def read_as_it_is(database: sqlite3.Connection) -> None:
    """Let every question be asked of a version 1 ledger, and change nothing in its file."""
    database.execute("PRAGMA temp_store = MEMORY")
    for stand_in in _STAND_INS:
        database.execute(f"CREATE TEMP {stand_in}")


def upgrade(database: sqlite3.Connection, path: Path, *, patience: float) -> None:
    """Bring a version 1 ledger up to date, all of it or nothing; every row stays.

    The statuses that a cell may have are part of its table, so the table is made anew. Meanwhile nothing may follow
    the references to it, or dropping the old one would take along what refers to it.
    """
    for stand_in in _STAND_INS:
        what, name, *_ = stand_in.split()
        database.execute(f"DROP {what} IF EXISTS temp.{name}")
    database.execute("PRAGMA foreign_keys = OFF")  # has no effect inside a transaction
    try:
        begin(database, patience)
        if version_of(database) == 1:  # somebody may have been quicker
            _rewrite(database, path)
        database.execute("COMMIT")
    except BaseException:
        roll_back(database)
        read_as_it_is(database)
        raise
    finally:
        database.execute("PRAGMA foreign_keys = ON")


def _rewrite(database: sqlite3.Connection, path: Path) -> None:
    for statement in statements(CELLS):
        database.execute(statement.replace("TABLE cells", "TABLE new_cells").replace("ON cells", "ON new_cells"))
    database.execute(f"INSERT INTO new_cells ({_OF_VERSION_1}) SELECT {_OF_VERSION_1} FROM cells")
    database.execute("DROP TABLE cells")
    database.execute("ALTER TABLE new_cells RENAME TO cells")
    for statement in statements(ADDED):
        database.execute(statement)
    database.execute(
        "INSERT OR IGNORE INTO history SELECT grid, label, seed, cell, 1, updated, updated "
        "FROM grid_cells JOIN grids ON name = grid"
    )
    if broken := database.execute("PRAGMA foreign_key_check").fetchone():
        raise damaged(path, f"a row of {broken[0]} is about a cell that is not there")
    database.execute(f"PRAGMA user_version = {SCHEMA}")
