"""The ledger's file: its tables, and how it is opened, made and refused."""

import sqlite3
import time
from contextlib import closing, suppress
from os import W_OK, access
from pathlib import Path
from urllib.parse import quote

from taskloom.core.errors import RegistryError
from taskloom.registry.ledger_errors import explained

FILE = "ledger.sqlite"
#: Raised whenever an older taskloom could no longer read the tables.
SCHEMA = 1
#: Marks the file as ours ("loom"), so that nobody else's database is ever written to.
APPLICATION = 0x6C6F6F6D
PATIENCE = 30.0  # seconds that a writer waits for another

TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE grids (
    name TEXT PRIMARY KEY, spec TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE cells (
    id TEXT PRIMARY KEY, spec TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('planned', 'running', 'finished', 'failed')),
    reason TEXT, attempts INTEGER NOT NULL DEFAULT 0,
    created TEXT NOT NULL, started TEXT, finished TEXT,
    seconds REAL, peak_memory INTEGER, device TEXT, versions TEXT NOT NULL DEFAULT '{}', best_epoch INTEGER
) WITHOUT ROWID;
CREATE TABLE grid_cells (
    grid TEXT NOT NULL REFERENCES grids (name) ON DELETE CASCADE,
    position INTEGER NOT NULL, label TEXT NOT NULL, seed INTEGER NOT NULL,
    cell TEXT NOT NULL REFERENCES cells (id), reported TEXT NOT NULL DEFAULT '{}',
    PRIMARY KEY (grid, position)
) WITHOUT ROWID;
CREATE TABLE scores (
    cell TEXT NOT NULL REFERENCES cells (id) ON DELETE CASCADE,
    task TEXT NOT NULL, value REAL,
    PRIMARY KEY (cell, task)
) WITHOUT ROWID;
CREATE TABLE stages (
    cell TEXT NOT NULL REFERENCES cells (id) ON DELETE CASCADE,
    stage INTEGER NOT NULL, key TEXT NOT NULL, shared INTEGER NOT NULL, seconds REAL,
    PRIMARY KEY (cell, stage)
) WITHOUT ROWID;
CREATE TABLE epochs (
    cell TEXT NOT NULL REFERENCES cells (id) ON DELETE CASCADE,
    stage INTEGER NOT NULL, epoch INTEGER NOT NULL, step INTEGER, seconds REAL,
    PRIMARY KEY (cell, stage, epoch)
) WITHOUT ROWID;
CREATE TABLE metrics (
    cell TEXT NOT NULL, stage INTEGER NOT NULL, epoch INTEGER NOT NULL,
    split TEXT NOT NULL, task TEXT NOT NULL, metric TEXT NOT NULL, value REAL,
    PRIMARY KEY (cell, stage, epoch, split, task, metric),
    FOREIGN KEY (cell, stage, epoch) REFERENCES epochs (cell, stage, epoch) ON DELETE CASCADE
) WITHOUT ROWID;
CREATE TABLE log (
    cell TEXT NOT NULL REFERENCES cells (id) ON DELETE CASCADE, at TEXT NOT NULL, text TEXT NOT NULL
);
CREATE INDEX log_of_cell ON log (cell);
CREATE INDEX grids_of_cell ON grid_cells (cell);
"""


class MissingRegistryError(RegistryError):
    """There is no registry in the folder."""


def connect(folder: Path, *, create: bool) -> sqlite3.Connection:
    """Open the ledger of a registry, or make it; every reason why that cannot be is a ``RegistryError``."""
    path = folder / FILE
    _check_place(folder, path, create=create)
    readonly = path.exists() and not (access(path, W_OK) and access(folder, W_OK))
    with explained(path):
        database = _open_to_read(path) if readonly else _open(path, "mode=rwc")
        try:
            database.execute("PRAGMA foreign_keys = ON")
            _check_version(database, path)
            if _is_empty(database) and not create:
                raise _missing(folder)
            if not readonly:
                _use_wal(database)
            if _is_empty(database):
                _make(database)
        except BaseException:
            database.close()
            raise
    return database


def _open(path: Path, how: str) -> sqlite3.Connection:
    uri = f"file:{quote(str(path.resolve()))}?{how}"
    return sqlite3.connect(uri, uri=True, timeout=PATIENCE, isolation_level=None, check_same_thread=False)


def _open_to_read(path: Path) -> sqlite3.Connection:
    """Open a ledger that may not be written to; somebody else may be writing to it."""
    database = _open(path, "mode=ro")
    try:
        _is_empty(database)  # nothing is opened before the first question
        return database
    except sqlite3.OperationalError as error:
        database.close()
        if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
            raise
    # SQLite wants to make the files beside the ledger in which writers and readers meet. Where there are none, nobody
    # writes and they can be done without; where there are, the ledger alone is not the whole story.
    beside = path.with_name(f"{path.name}-wal")
    if beside.exists() and beside.stat().st_size:
        raise RegistryError(
            f"{beside} holds what was written last, and only who may write to {path.parent} can read it. "
            "Copy the whole folder to a place of your own and name that with --registry."
        )
    return _open(path, "immutable=1")


def _check_place(folder: Path, path: Path, *, create: bool) -> None:
    try:
        if create:
            folder.mkdir(parents=True, exist_ok=True)
        elif not folder.exists():
            raise _missing(folder)
        if not folder.is_dir():
            raise RegistryError(f"registry {folder} should be a folder; it is a file. Choose another with --registry.")
        if path.is_dir():
            raise RegistryError(f"{path} should be the registry's ledger; it is a folder. Move it away.")
        if not path.exists() and not create:
            raise _missing(folder)
    except OSError as error:
        raise RegistryError(
            f"registry {folder} cannot be {'made' if create else 'read'}: {error.strerror}. "
            "Choose a folder that you may write to with --registry."
        ) from error


def _use_wal(database: sqlite3.Connection) -> None:
    # SQLite does not wait for others while it changes the journal's mode: two first users have to take turns.
    until = time.monotonic() + PATIENCE
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL").fetchone()
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(0.01)


def _is_empty(database: sqlite3.Connection) -> bool:
    return not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]


def _make(database: sqlite3.Connection) -> None:
    database.execute("BEGIN IMMEDIATE")
    try:
        if _is_empty(database):  # somebody may have been quicker
            for statement in TABLES.split(";"):
                database.execute(statement)
            database.execute("INSERT INTO meta VALUES ('made_by', ?)", [_version()])
            database.execute(f"PRAGMA user_version = {SCHEMA}")
            database.execute(f"PRAGMA application_id = {APPLICATION}")
        database.execute("COMMIT")
    except BaseException:
        roll_back(database)
        raise


def roll_back(database: sqlite3.Connection) -> None:
    """Undo what was not committed. After some errors SQLite has done so already, and the first error counts."""
    if database.in_transaction:
        with suppress(sqlite3.Error):
            database.execute("ROLLBACK")


def _check_version(database: sqlite3.Connection, path: Path) -> None:
    if _is_empty(database):
        return
    application = database.execute("PRAGMA application_id").fetchone()[0]
    schema = database.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION:
        raise RegistryError(f"{path} is a database, but no ledger of taskloom. Choose another folder with --registry.")
    if schema > SCHEMA:
        maker = "a newer version"
        with (
            suppress(sqlite3.Error),
            closing(database.execute("SELECT value FROM meta WHERE key = 'made_by'")) as rows,
        ):
            maker = f"taskloom {rows.fetchone()[0]}"
        raise RegistryError(
            f"registry {path.parent} was written by {maker} (ledger version {schema}); this is taskloom "
            f"{_version()}, which reads ledger version {SCHEMA}. Upgrade taskloom, or choose another folder "
            "with --registry."
        )


def _version() -> str:
    from importlib.metadata import version  # slow to import, and rarely asked for

    return version("taskloom")


def _missing(folder: Path) -> MissingRegistryError:
    return MissingRegistryError(
        f"no registry in {folder}: nothing was run there yet. `taskloom run GRID` makes one; "
        "--registry or TASKLOOM_REGISTRY names another."
    )
