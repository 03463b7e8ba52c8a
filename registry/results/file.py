"""The ledger's file: its tables, and how it is opened, made and refused."""

import sqlite3
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from taskloom.core.errors import RegistryError
from taskloom.registry.results.errors import explained, may_write, primary_code, refusal
from taskloom.registry.results.tables import APPLICATION, SCHEMA, TABLES

FILE = "ledger.sqlite"
TIMEOUT = 30.0  # seconds that a writer waits for another
# SQLite's codes where it cannot make or use the files beside a ledger: no permission, a read-only disk, no room.
_HINDERED = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR)


class MissingRegistryError(RegistryError):
    """There is no registry in the folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"no registry in {folder}: nothing was run there yet. `taskloom run GRID` makes one; "
            "--registry or TASKLOOM_REGISTRY names another."
        )


def connect(folder: Path, *, create: bool, timeout: float) -> sqlite3.Connection:
    """Open the ledger of a registry, or make it; every reason why that is impossible is a ``RegistryError``."""
    path = folder / FILE
    _check_place(folder, path, create=create)
    with explained(path):
        if not path.exists() or may_write(path):
            try:
                return _checked(_open(path, "mode=rwc", timeout), path, create=create, timeout=timeout)
            except sqlite3.OperationalError as error:
                if create or primary_code(error) != sqlite3.SQLITE_IOERR:
                    raise
            # The disk is full, say: then the ledger can still be read.
        return _checked(_open_to_read(path, timeout), path, create=False, timeout=timeout)


def _checked(database: sqlite3.Connection, path: Path, *, create: bool, timeout: float) -> sqlite3.Connection:
    """The connection, once its ledger is known to be one of this version, or is made; closed after an error."""
    try:
        database.execute("PRAGMA foreign_keys = ON")
        if not _is_empty(database):
            _check_version(database, path)
        elif create:
            _make(database, timeout)
        else:
            raise MissingRegistryError(path.parent)
    except BaseException:
        database.close()
        raise
    return database


def _open(path: Path, how: str, timeout: float) -> sqlite3.Connection:
    uri = f"file:{quote(str(path.resolve()))}?{how}"
    return sqlite3.connect(uri, uri=True, timeout=timeout, isolation_level=None, check_same_thread=False)


def _open_to_read(path: Path, timeout: float) -> sqlite3.Connection:
    """Open a ledger that may not or cannot be written to; somebody else may be writing to it."""
    database = _open(path, "mode=ro", timeout)
    try:
        _is_empty(database)  # nothing is opened before the first question
        return database
    except sqlite3.OperationalError as error:
        database.close()
        if primary_code(error) not in _HINDERED:
            raise
        # SQLite wants to make the files beside the ledger in which writers and readers meet. Where there are none,
        # nobody writes and they are not needed; where there are, the ledger's own file is not the latest state.
        log = path.with_name(f"{path.name}-wal")
        if log.exists() and log.stat().st_size:
            if may_write(path):  # only room is lacking
                raise
            raise RegistryError(
                f"{log} has what was written last, and reading it takes the permission to write to {path.parent}. "
                "Copy the whole folder to a place of your own and name that with --registry."
            ) from error
    return _open(path, "immutable=1", timeout)


def _check_place(folder: Path, path: Path, *, create: bool) -> None:
    try:
        if create:
            folder.mkdir(parents=True, exist_ok=True)
        elif not folder.exists():
            raise MissingRegistryError(folder)
        if not folder.is_dir():
            raise RegistryError(f"registry {folder} should be a folder; it is a file. Choose another with --registry.")
        if path.is_dir():
            raise RegistryError(f"{path} should be the registry's ledger; it is a folder. Move it away.")
        if not path.exists() and not create:
            raise MissingRegistryError(folder)
    except OSError as error:
        what = f"registry {folder} cannot be {'made' if create else 'read'}"
        raise refusal(what, error, "Choose a folder that you may write to with --registry.") from error


def _is_empty(database: sqlite3.Connection) -> bool:
    return not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]


def _make(database: sqlite3.Connection, timeout: float) -> None:
    _use_wal(database, timeout)
    database.execute("BEGIN IMMEDIATE")
    try:
        if _is_empty(database):  # somebody may have been quicker
            for statement in TABLES.split(";"):  # `executescript` would commit before it begins
                database.execute(statement)
            database.execute("INSERT INTO meta VALUES ('made_by', ?)", [_version()])
            database.execute(f"PRAGMA user_version = {SCHEMA}")
            database.execute(f"PRAGMA application_id = {APPLICATION}")
        database.execute("COMMIT")
    except BaseException:
        roll_back(database)
        raise


def _use_wal(database: sqlite3.Connection, timeout: float) -> None:
    # SQLite does not wait for others while it changes the journal's mode: two first users have to take turns.
    until = time.monotonic() + timeout
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL").fetchone()
            return
        except sqlite3.OperationalError as error:
            if primary_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(0.01)


def roll_back(database: sqlite3.Connection) -> None:
    """Undo what was not committed. After some errors SQLite has done so already, and the first error counts."""
    if database.in_transaction:
        with suppress(sqlite3.Error):
            database.execute("ROLLBACK")


def _check_version(database: sqlite3.Connection, path: Path) -> None:
    if database.execute("PRAGMA application_id").fetchone()[0] != APPLICATION:
        raise RegistryError(f"{path} is a database, but not a taskloom ledger. Choose another folder with --registry.")
    found = database.execute("PRAGMA user_version").fetchone()[0]
    if found != SCHEMA:
        maker = "of another version"
        with suppress(sqlite3.Error, TypeError):
            maker = database.execute("SELECT value FROM meta WHERE key = 'made_by'").fetchone()[0]
        raise RegistryError(
            f"registry {path.parent} has ledger version {found}, made by taskloom {maker}; this is taskloom "
            f"{_version()}, which reads and writes ledger version {SCHEMA}. Use the taskloom that made it, or choose "
            "another folder with --registry and run the grid again."
        )


def _version() -> str:
    from importlib.metadata import version  # slow to import, and rarely asked for

    return version("taskloom")
