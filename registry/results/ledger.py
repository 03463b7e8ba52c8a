"""The ledger: grids, cells, their attempts and their results. One SQLite file per registry.

Workers report events and only the driver writes them, each in a transaction of its own, so a killed driver
leaves whole events or none. Other processes may read meanwhile. The tables (``file.py``) are plain SQL::

    sqlite3 taskloom-runs/ledger.sqlite \
        "SELECT grid, label, seed, task, value FROM grid_cells JOIN scores USING (cell)"
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from taskloom.core.engine import Event
from taskloom.core.errors import RegistryError, unknown
from taskloom.registry.results.errors import damaged, explained
from taskloom.registry.results.events import insert, now, write_event
from taskloom.registry.results.file import FILE, MissingRegistryError, connect
from taskloom.registry.results.records import (
    PACKAGED,
    SOURCE,
    AttemptRecord,
    CellRecord,
    EpochRecord,
    GridCell,
    GridRecord,
    PastRow,
    StageRecord,
)
from taskloom.registry.results.shapes import checked

T = TypeVar("T")
_CELLS = (
    "SELECT *, (SELECT count(*) FROM epochs WHERE epochs.cell = cells.id) AS epochs, "
    "(SELECT count(*) FROM attempts WHERE attempts.cell = cells.id) AS attempts FROM cells"
)


class Ledger:
    """Opened with :meth:`open`; a context manager that closes the file.

    Example::

        with Ledger.open("taskloom-runs", create=False) as ledger:
            print(ledger.grid("quickstart").cells[0].cell.scores)
    """

    def __init__(self, folder: Path, database: sqlite3.Connection) -> None:
        self.folder = folder
        self._database = database
        self._database.row_factory = sqlite3.Row

    @classmethod
    def open(cls, folder: str | Path, *, create: bool) -> "Ledger":
        """Open the ledger in a folder; ``create`` makes folder and file where there are none."""
        return cls(Path(folder), connect(Path(folder), create=create))

    @classmethod
    def find(cls, folder: str | Path) -> "Ledger | None":
        """Open the ledger in a folder if there is one."""
        try:
            return cls.open(folder, create=False)
        except MissingRegistryError:
            return None

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction for writing: all of it or nothing."""
        with explained(self.folder / FILE), self._database as db:
            db.execute("BEGIN IMMEDIATE")
            yield db

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """A transaction for reading: all queries see the same state of the ledger."""
        with explained(self.folder / FILE), self._database as db:
            db.execute("BEGIN")
            try:
                yield db
            except UnicodeEncodeError:  # in a query
                raise
            # Not what was written: no JSON, no such cell.
            except (ValueError, TypeError, LookupError, RecursionError) as error:
                raise damaged(self.folder / FILE, f"{type(error).__name__}: {error}") from error

    # Writing

    def record_grid(
        self, name: str, spec: Mapping[str, Any], cells: Iterable[Any], *, basis: str | None = None
    ) -> bool:
        """Record a grid as written (``spec`` is its JSON) and its planned cells; replaces its last plan.

        A planned cell has ``id``, ``label``, ``seed``, ``spec``, ``reported`` and ``facts``, as its records have them,
        ``identity``, its identity in this version, and ``locations``, the parts of its spec that locate files.

        ``basis`` is what the plan was made from (``GridRecord.basis``, "" of a new grid). If another process has
        recorded the grid since, nothing is written and False is returned: plan again, or its rows would be lost.
        """
        moment = now()
        with self.transaction() as db:
            if basis is not None and basis != _basis(db, name):
                return False
            db.execute(
                "INSERT INTO grids VALUES (:name, :spec, :now, :now, 0) "
                "ON CONFLICT (name) DO UPDATE SET spec = :spec, updated = :now, queued = 0",
                {"name": name, "spec": json.dumps(spec), "now": moment},
            )
            for claim in spec.get("claims") or ():
                key = json.dumps({"margin": spec.get("margin"), **claim}, sort_keys=True)
                db.execute("INSERT INTO claims VALUES (?, ?, ?) ON CONFLICT DO NOTHING", [name, key, moment])
            db.execute("DELETE FROM grid_cells WHERE grid = ?", [name])
            turn = db.execute("SELECT coalesce(max(turn), 0) + 1 FROM history WHERE grid = ?", [name]).fetchone()[0]
            for position, cell in enumerate(cells):
                known = db.execute("SELECT spec FROM cells WHERE id = ? AND status != 'planned'", [cell.id]).fetchone()
                # A cell that ran keeps its options and gets today's locations of files.
                recorded_spec = _merged(json.loads(known["spec"]), cell.locations) if known else cell.spec
                db.execute(
                    "INSERT INTO cells (id, spec, facts, status, created, identity) VALUES (?, ?, ?, 'planned', ?, ?) "
                    "ON CONFLICT (id) DO UPDATE "
                    "SET spec = excluded.spec, identity = coalesce(excluded.identity, identity)",
                    [cell.id, json.dumps(recorded_spec), json.dumps(cell.facts), moment, cell.identity or None],
                )
                row = {"grid": name, "label": cell.label, "seed": cell.seed, "cell": cell.id}
                insert(db, "grid_cells", {**row, "position": position, "reported": dict(cell.reported)})
                db.execute(
                    "INSERT INTO history VALUES (:grid, :label, :seed, :cell, :turn, :now, :now) "
                    "ON CONFLICT DO UPDATE SET turn = :turn, last = :now",
                    {**row, "turn": turn, "now": moment},
                )
        return True

    def write(self, event: Event) -> bool:
        """Write an event of a cell, whole or not at all; ``log`` and ``progress`` are not kept.

        Returns whether it is new: False for an epoch or a stage that is ``retold`` and was recorded before.
        """
        if event.what in ("log", "progress"):
            return True
        with self.transaction() as db:
            return write_event(db, event)

    def add_look(self, grid: str) -> int:
        """Record that the test scores of a grid are shown; returns how often they were, this time included."""
        with self.transaction() as db:
            db.execute("INSERT INTO looks VALUES (?, ?)", [grid, now()])
            return int(db.execute("SELECT count(*) FROM looks WHERE grid = ?", [grid]).fetchone()[0])

    def queue_seeds(self, grid: str, count: int) -> None:
        """Let the next run of a grid add ``count`` seeds."""
        with self.transaction() as db:
            db.execute("UPDATE grids SET queued = ? WHERE name = ?", [count, grid])

    # Reading

    def claims(self, grid: str) -> dict[str, str]:
        """Claim (its JSON, with margin and sorted keys) → when it was first recorded in any grid."""
        own = "SELECT claim FROM claims WHERE grid = ?"
        query = f"SELECT claim, MIN(written) FROM claims WHERE claim IN ({own}) GROUP BY claim"
        with self.snapshot() as db:
            return dict(db.execute(query, [grid]).fetchall())

    def grids(self) -> tuple[GridRecord, ...]:
        """Every grid ever recorded, by name."""
        return tuple(self.grid(name) for name in self.grid_names())

    def grid_names(self) -> list[str]:
        with self.snapshot() as db:
            return [row["name"] for row in db.execute("SELECT name FROM grids ORDER BY name")]

    def name_for(self, name: str, source: str, written: Mapping[str, Any] | None) -> str:
        """The name of a file's grid in this registry: prefixed with folders where another grid has its name.

        If the recorded file no longer exists, it was moved, and the name is free for this one. A grid without a file,
        such as an imported one, is the same if it is ``written`` alike. Without a source the name is enough.
        """
        if not source:
            return name
        with self.snapshot() as db:
            specs = {row["name"]: json.loads(row["spec"]) for row in db.execute("SELECT name, spec FROM grids")}
        for folder in (PACKAGED,) if source == PACKAGED else reversed(Path(source).parent.parts):
            if name not in specs:
                break
            known = specs[name].get(SOURCE)
            if known is None and GridRecord(name, specs[name], "", "", ()).written == written:
                break
            if known == source or (known not in (None, PACKAGED) and not Path(known).is_file()):
                break
            name = f"{folder}/{name}"
        return name

    def grid(self, name: str) -> GridRecord:
        """A grid as it was last run, with the records of its cells."""
        names = self.grid_names()
        if name not in names:
            raise RegistryError(unknown("grid", name, names, where=f"run in registry {self.folder} so far"))
        with self.snapshot() as db:
            cells = {cell.id: cell for cell in _cells(db, "id IN (SELECT cell FROM grid_cells WHERE grid = ?)", [name])}
            rows = tuple(
                checked(GridCell(row["label"], row["seed"], json.loads(row["reported"]), cells[row["cell"]]))
                for row in db.execute("SELECT * FROM grid_cells WHERE grid = ? ORDER BY position", [name])
            )
            grid = db.execute("SELECT * FROM grids WHERE name = ?", [name]).fetchone()
            return checked(GridRecord(**_decoded(grid, "spec"), cells=rows))

    def cells(self) -> tuple[CellRecord, ...]:
        """Every cell of every grid, oldest first."""
        with self.snapshot() as db:
            return tuple(sorted(_cells(db, "true", []), key=lambda cell: (cell.created, cell.id)))

    def states(self) -> dict[str, str]:
        """Cell → ``finished``, ``failed``, ``oom`` or ``interrupted``, for a plan; without cells that never ran."""
        with self.snapshot() as db:
            rows = db.execute("SELECT id, status FROM cells WHERE status != 'planned'")
            return {row["id"]: "interrupted" if row["status"] == "running" else row["status"] for row in rows}

    def identities(self) -> dict[str, str]:
        """Identity in this version → cell, for cells that ran; those of older versions only if planned since."""
        with self.snapshot() as db:
            rows = db.execute(
                "SELECT identity, id FROM cells WHERE identity IS NOT NULL AND status != 'planned' "
                "ORDER BY status = 'finished', identity = id"
            )
            return {row["identity"]: row["id"] for row in rows}

    def unidentified(self) -> list[CellRecord]:
        """The cells that an older version ran and that were not planned since."""
        with self.snapshot() as db:
            return _cells(db, "identity IS NULL AND status != 'planned'", [])

    def cell(self, prefix: str) -> CellRecord:
        """A cell by its identity, or by a prefix of it that no other cell shares."""
        with self.snapshot() as db:
            matches = _cells(db, "id = ?", [prefix])
            if prefix and not matches:  # from the prefix itself up to the prefix and the last character of Unicode
                matches = _cells(db, "id > ? AND id < ? || char(1114111)", [prefix, prefix])
        if len(matches) == 1:
            return matches[0]
        if not matches:
            raise RegistryError(f"no cell {prefix!r} in registry {self.folder}; `taskloom cells` lists them")
        listed = ", ".join(cell.id for cell in matches[:8])
        raise RegistryError(f"cell {prefix!r} could be {listed}{', …' if len(matches) > 8 else ''}; give more of it")

    def status(self, cell: str) -> tuple[str, int]:
        """A cell's status and its number of attempts, without decoding any JSON."""
        query = "SELECT status, (SELECT count(*) FROM attempts WHERE cell = id) FROM cells WHERE id = ?"
        with self.snapshot() as db:
            status, attempts = db.execute(query, [cell]).fetchone()
            return status, attempts

    def attempts(self, cell: str) -> tuple[AttemptRecord, ...]:
        """Every attempt at a cell, with how and why it ended."""
        return self._read(AttemptRecord, "SELECT * FROM attempts WHERE cell = ? ORDER BY number", cell, "versions")

    def epochs(self, cell: str) -> tuple[EpochRecord, ...]:
        """The epochs of a cell in the order of training."""
        query = "SELECT * FROM epochs WHERE cell = ? ORDER BY stage, epoch"
        return self._read(EpochRecord, query, cell, "losses", "scores", "metrics", "train", "diagnostics")

    def stages(self, cell: str) -> tuple[StageRecord, ...]:
        """The stages of a cell that are done."""
        columns = "stage AS 'index', key, iif(shared, 'true', 'false') AS shared, seconds"
        return self._read(StageRecord, f"SELECT {columns} FROM stages WHERE cell = ? ORDER BY stage", cell, "shared")

    def rows_of(self, cell: str) -> tuple[PastRow, ...]:
        """Every grid row this cell has occupied."""
        query = (
            "SELECT grid, label, seed, first, last, (SELECT cell FROM grid_cells AS g WHERE g.grid = history.grid "
            "AND g.label = history.label AND g.seed = history.seed LIMIT 1) AS now "
            "FROM history WHERE cell = ? ORDER BY grid, label, seed"
        )
        return self._read(PastRow, query, cell)

    def _read(self, record: type[T], query: str, cell: str, *decoded: str) -> tuple[T, ...]:
        with self.snapshot() as db:
            return tuple(checked(record(**_decoded(row, *decoded))) for row in db.execute(query, [cell]))

    def has_cell(self, prefix: str) -> bool:
        """Whether a cell's identity begins with ``prefix``."""
        with self.snapshot() as db:
            return bool(db.execute("SELECT 1 FROM cells WHERE substr(id, 1, length(?1)) = ?1", (prefix,)).fetchall())

    def history_of(self, grid: str) -> dict[tuple[str, int], list[str]]:
        """Label and seed → every cell that has occupied this row of a grid, the newest last."""
        rows: dict[tuple[str, int], list[str]] = {}
        with self.snapshot() as db:
            for row in db.execute("SELECT label, seed, cell FROM history WHERE grid = ? ORDER BY turn", [grid]):
                rows.setdefault((row["label"], row["seed"]), []).append(row["cell"])
        return rows


def _basis(db: sqlite3.Connection, grid: str) -> str:
    """The current ``GridRecord.basis`` of a grid; "" if there is no such grid."""
    recorded = db.execute("SELECT spec, queued FROM grids WHERE name = ?", [grid]).fetchone()
    rows = db.execute("SELECT label, seed, cell FROM grid_cells WHERE grid = ? ORDER BY position", [grid])
    return repr([json.loads(recorded["spec"]), recorded["queued"], *map(list, rows)]) if recorded else ""


def _cells(db: sqlite3.Connection, condition: str, parameters: list[Any]) -> list[CellRecord]:
    scores: dict[str, dict[str, float]] = {}
    for row in db.execute(f"SELECT * FROM scores WHERE cell IN (SELECT id FROM cells WHERE {condition})", parameters):
        scores.setdefault(row["cell"], {})[row["task"]] = _number(row["value"])
    rows = db.execute(f"{_CELLS} WHERE {condition}", parameters)
    decoded = ("test", "costs", "spec", "versions", "facts", "digests")
    return [checked(CellRecord(**_decoded(row, *decoded), scores=scores.get(row["id"], {}))) for row in rows]


def _merged(spec: dict[str, Any], updates: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with the values of another in place of its own, key by key."""
    return {
        **spec,
        **{
            key: _merged(spec[key], value) if isinstance(value, dict) and isinstance(spec.get(key), dict) else value
            for key, value in updates.items()
        },
    }


def _decoded(row: sqlite3.Row, *names: str) -> dict[str, Any]:
    """A row as a dictionary, with its JSON columns decoded and without the column ``cell``."""
    values = {**dict(row), **{name: json.loads(row[name]) for name in names}}
    values.pop("cell", None)
    return values


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)  # SQLite keeps NaN as NULL
