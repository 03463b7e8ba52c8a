"""The ledger's file: how it is opened, made and refused."""

import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

from taskloom.core.errors import RegistryError
from taskloom.core.work import lacks_room
from taskloom.registry.results.errors import HeldUpError, explained, may_write
from taskloom.registry.results.lock import begin, is_busy, roll_back
from taskloom.registry.results.tables import APPLICATION, SCHEMA, TABLES, statements
from taskloom.registry.results.upgrade import read_as_it_is, version_of

FILE = "ledger.sqlite"
PATIENCE = 30.0  # seconds that a writer waits for another
# What SQLite says where it cannot make or use the files beside a ledger: no right, a read-only disk, no room.
_HINDERED = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR)


class MissingRegistryError(RegistryError):
    """There is no registry in the folder."""


def connect(folder: Path, *, create: bool, patience: float = PATIENCE) -> sqlite3.Connection:
    """Open the ledger of a registry, or make it; every reason why that cannot be is a ``RegistryError``.

    An older ledger is left as it is until something is written to it.
    """
    path = folder / FILE
    _check_place(folder, path, create=create)
    with explained(path):
        if not path.exists() or may_write(path):
            try:
                return _prepared(_open(path, "mode=rwc", patience), path, create, patience, readonly=False)
            except sqlite3.OperationalError as error:
                if create or error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_IOERR:
                    raise
            # The disk is full, say: then the ledger can still be read.
        return _prepared(_open_to_read(path, patience), path, create, patience, readonly=True)


def _prepared(
    database: sqlite3.Connection, path: Path, create: bool, patience: float, *, readonly: bool
) -> sqlite3.Connection:
    """The ledger of a connection, looked at and ready to be used; closed if it cannot be."""
    try:
        database.execute("PRAGMA foreign_keys = ON")
        _check_version(database, path)
        if _is_empty(database) and not create:
            raise _missing(path.parent)
        if not readonly:
            _use_wal(database, patience)
        if _is_empty(database):
            _make(database, patience)
        elif version_of(database) < SCHEMA:
            read_as_it_is(database)
    except BaseException:
        database.close()
        raise
    return database


def _open(path: Path, how: str, patience: float) -> sqlite3.Connection:
    uri = f"file:{quote(str(path.resolve()))}?{how}"
    return sqlite3.connect(uri, uri=True, timeout=patience, isolation_level=None, check_same_thread=False)


def _open_to_read(path: Path, patience: float) -> sqlite3.Connection:
    """Open a ledger that may not or cannot be written to; somebody else may be writing to it."""
    database = _open(path, "mode=ro", patience)
    try:
        _is_empty(database)  # nothing is opened before the first question
        return database
    except sqlite3.OperationalError as error:
        database.close()
        if error.sqlite_errorcode & 0xFF not in _HINDERED:
            raise
        why = error
    # SQLite wants to make the files beside the ledger in which writers and readers meet. Where there are none, nobody
    # writes and they can be done without; where there are, the ledger alone is not the whole story.
    beside = path.with_name(f"{path.name}-wal")
    if beside.exists() and beside.stat().st_size:
        if may_write(path):  # only room is lacking
            raise why
        raise RegistryError(
            f"{beside} holds what was written last, and only who may write to {path.parent} can read it. "
            "Copy the whole folder to a place of your own and name that with --registry."
        )
    return _open(path, "immutable=1", patience)


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
        if lacks_room(error):
            raise HeldUpError.full(f"registry {folder} cannot be made ({error.strerror})") from error
        raise RegistryError(
            f"registry {folder} cannot be {'made' if create else 'read'}: {error.strerror}. "
            "Choose a folder that you may write to with --registry."
        ) from error


def _use_wal(database: sqlite3.Connection, patience: float) -> None:
    # SQLite does not wait for others while it changes the journal's mode: two first users have to take turns.
    until = time.monotonic() + patience
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL").fetchone()
            return
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > until:
                raise
            time.sleep(0.01)


def _is_empty(database: sqlite3.Connection) -> bool:
    return not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]


def _make(database: sqlite3.Connection, patience: float) -> None:
    begin(database, patience)
    try:
        if _is_empty(database):  # somebody may have been quicker
            for statement in statements(TABLES):
                database.execute(statement)
            database.execute("INSERT INTO meta VALUES ('made_by', ?)", [_version()])
            database.execute(f"PRAGMA user_version = {SCHEMA}")
            database.execute(f"PRAGMA application_id = {APPLICATION}")
        database.execute("COMMIT")
    except BaseException:
        roll_back(database)
        raise


def _check_version(database: sqlite3.Connection, path: Path) -> None:
    if _is_empty(database):
        return
    application = database.execute("PRAGMA application_id").fetchone()[0]
    schema = version_of(database)
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
