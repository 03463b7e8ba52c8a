"""The ledger's file: its tables, as plain SQL, and how it is opened, created and migrated."""

import errno
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from taskloom.core.errors import RegistryError
from taskloom.registry.results.binding import bind
from taskloom.registry.results.errors import explained, primary_code, refusal
from taskloom.registry.results.locks import REGISTRY, Lock

FILE = "ledger.sqlite"
TIMEOUT = 30.0  # seconds that a writer waits for another
# SQLite's codes where it cannot create the files beside a ledger that writers and readers share: no permission, a
# read-only disk, no room.
_HINDERED = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR)

#: The version of these tables. An older ledger is brought up to date (:data:`STEPS`); a newer one is refused, and so is
#: a database that is not ours.
SCHEMA = 6
#: Version → what makes a ledger of that version one of the next.
STEPS = {
    4: "ALTER TABLE cells ADD COLUMN identity TEXT; CREATE INDEX cells_by_identity ON cells (identity)",
    5: "ALTER TABLE cells ADD COLUMN digests TEXT NOT NULL DEFAULT '{}'",
}

# What has parts is JSON: specs, facts, versions, the figures of an epoch. The long columns of `cells` come last, so
# that reading statuses need not read them. `identity` is a cell's identity in this version: not its `id` if an older
# version made the cell, and NULL until that is planned again. `digests` bind its score files and scores. `history` has
# every cell that a row of a grid has had, `claims` when each claim of a grid was first seen, `looks` when its test
# scores were shown, `queued` how many seeds its next run adds.
TABLES = """
CREATE TABLE grids (
    name TEXT PRIMARY KEY, spec TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL,
    queued INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE cells (
    id TEXT PRIMARY KEY,
    status TEXT NOT NULL CHECK (status IN ('planned', 'running', 'finished', 'failed', 'oom', 'interrupted')),
    reason TEXT, created TEXT NOT NULL, started TEXT, finished TEXT,
    seconds REAL, peak_memory INTEGER, device TEXT, best_epoch INTEGER,
    test TEXT NOT NULL DEFAULT '{}', costs TEXT NOT NULL DEFAULT '{}',
    versions TEXT NOT NULL DEFAULT '{}', spec TEXT NOT NULL, facts TEXT NOT NULL DEFAULT '{}', identity TEXT,
    digests TEXT NOT NULL DEFAULT '{}'
);
CREATE INDEX cells_by_status ON cells (status, id);
CREATE INDEX cells_by_identity ON cells (identity);
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
    losses TEXT NOT NULL, scores TEXT NOT NULL, metrics TEXT NOT NULL,
    train TEXT NOT NULL, diagnostics TEXT NOT NULL,
    PRIMARY KEY (cell, stage, epoch)
) WITHOUT ROWID;
CREATE INDEX grids_of_cell ON grid_cells (cell);
CREATE TABLE history (
    grid TEXT NOT NULL, label TEXT NOT NULL, seed INTEGER NOT NULL,
    cell TEXT NOT NULL REFERENCES cells (id) ON DELETE CASCADE,
    turn INTEGER NOT NULL, first TEXT NOT NULL, last TEXT NOT NULL,
    PRIMARY KEY (grid, label, seed, cell)
) WITHOUT ROWID;
CREATE INDEX turns ON history (grid, turn);
CREATE INDEX history_of_cell ON history (cell);
CREATE TABLE claims (
    grid TEXT NOT NULL REFERENCES grids (name) ON DELETE CASCADE,
    claim TEXT NOT NULL, written TEXT NOT NULL,
    PRIMARY KEY (grid, claim)
) WITHOUT ROWID;
CREATE TABLE looks (grid TEXT NOT NULL REFERENCES grids (name) ON DELETE CASCADE, moment TEXT NOT NULL);
CREATE TABLE attempts (
    cell TEXT NOT NULL REFERENCES cells (id) ON DELETE CASCADE,
    number INTEGER NOT NULL, driver INTEGER,
    began TEXT NOT NULL, ended TEXT, how TEXT, reason TEXT, micro_batch INTEGER, worker TEXT,
    versions TEXT NOT NULL DEFAULT '{}',
    PRIMARY KEY (cell, number)
) WITHOUT ROWID;
"""


class MissingRegistryError(RegistryError):
    """There is no registry in the folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"no registry in {folder}: nothing was run there yet. `taskloom run GRID` makes one; "
            "--registry or TASKLOOM_REGISTRY names another."
        )


def connect(folder: Path, *, create: bool) -> sqlite3.Connection:
    """Open or create the ledger of a registry; ``RegistryError`` if that is impossible."""
    path = folder / FILE
    try:
        if create:
            folder.mkdir(parents=True, exist_ok=True)
        elif folder.is_file():
            raise NotADirectoryError(errno.ENOTDIR, "it is a file")
        elif not path.exists():
            raise MissingRegistryError(folder)
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise RegistryError(f"{path} is not a regular file; move it away, or choose another --registry")
    except OSError as error:
        failure = f"registry {folder} cannot be {'made' if create else 'read'}"
        raise refusal(failure, error, "Choose a folder that you may write to with --registry.") from error
    with explained(path):
        try:
            return _open(path, "mode=rwc" if create else "mode=rw", create=create)
        except sqlite3.OperationalError as error:
            log = path.with_name(f"{path.name}-wal")
            if create or primary_code(error) not in _HINDERED or (log.exists() and log.stat().st_size):
                raise
        # It cannot be written, and nobody else writes to it: then it can be read without the files beside it.
        return _open(path, "immutable=1", create=False)


def _open(path: Path, mode: str, *, create: bool) -> sqlite3.Connection:
    """Connect to a ledger, checked and brought up to this version, or create it."""
    uri = f"file:{quote(str(path.resolve()))}?{mode}"
    database = sqlite3.connect(uri, uri=True, timeout=TIMEOUT, isolation_level=None, check_same_thread=False)
    try:
        database.execute("PRAGMA foreign_keys = ON")
        database.execute("PRAGMA synchronous = FULL")  # what is written outlives a power cut
        if create and _is_empty(database):
            _make(database, path)
        _check(database, path)
        if (version := _version(database)) < SCHEMA:
            database = _migrated(database, path, version)
    except BaseException:
        database.close()
        raise
    return database


def _is_empty(database: sqlite3.Connection) -> bool:
    return not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]


def _make(database: sqlite3.Connection, path: Path) -> None:
    """Create the tables, all or none, under a lock: SQLite does not wait while its journal mode is changed."""
    with closing(Lock(path.parent / REGISTRY)) as lock:
        lock.take(wait=True)
        if _is_empty(database):  # nobody was quicker
            database.execute("PRAGMA journal_mode = WAL")
            database.executescript(f"BEGIN; {TABLES}; PRAGMA user_version = {SCHEMA}; COMMIT")


def _check(database: sqlite3.Connection, path: Path) -> None:
    if _is_empty(database):
        raise MissingRegistryError(path.parent)
    version = _version(database)
    if not min(STEPS) <= version <= SCHEMA:
        known = f"this taskloom reads versions {min(STEPS)} to {SCHEMA}"
        problem = f"registry {path.parent} has ledger version {version}; {known}"
        advice = (
            "Upgrade taskloom (`pip install --upgrade taskloom`)"
            if version > SCHEMA
            else "Use the taskloom that made it"
        )
        raise RegistryError(f"{problem}. {advice}, or choose another folder with --registry and run the grid again.")


def _version(database: sqlite3.Connection) -> int:
    return int(database.execute("PRAGMA user_version").fetchone()[0])


def _migrated(database: sqlite3.Connection, path: Path, old_version: int) -> sqlite3.Connection:
    """Migrate a ledger to today's tables: back the file up beside it, then take all steps in one transaction.

    A read-only ledger is migrated in memory, so that it can still be shown.
    """
    steps = [step for version in range(old_version, SCHEMA) for step in STEPS[version].split("; ")]
    steps.append(f"PRAGMA user_version = {SCHEMA}")
    try:
        database.execute("BEGIN IMMEDIATE")  # whoever else opens it waits
        if _version(database) == old_version:  # nobody was quicker
            copy = path.with_name(f"{path.stem}-{old_version}{path.suffix}")
            with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
                source.backup(target)
            _take_steps(steps, database, path.parent)
        database.execute("COMMIT")
    except (sqlite3.OperationalError, OSError):
        if database.in_transaction:
            database.execute("ROLLBACK")
        in_memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        database.backup(in_memory)
        _take_steps(steps, in_memory, path.parent)
        in_memory.execute("PRAGMA query_only = ON")
        database.close()
        return in_memory
    return database


def _take_steps(steps: list[str], database: sqlite3.Connection, folder: Path) -> None:
    """Take the steps, and record the digests of the score files, which versions before 6 lack."""
    for step in steps:
        database.execute(step)
    for cell, test in database.execute("SELECT id, test FROM cells WHERE status = 'finished'").fetchall():
        scores = database.execute("SELECT task, coalesce(value, 'nan') FROM scores WHERE cell = ?", [cell]).fetchall()
        try:
            by_split = {"dev": dict(scores), "test": json.loads(test)}
            digests = [bind(folder / "cells" / cell, split, values) for split, values in by_split.items()]
        except (OSError, ValueError, TypeError, AttributeError):
            continue  # reading the file reports what is wrong
        bound = json.dumps({split: digest for part in digests for split, digest in part.items()})
        database.execute("UPDATE cells SET digests = ? WHERE id = ?", [bound, cell])
