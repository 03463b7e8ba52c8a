"""The ledger: what was planned, what ran, and what came of it. One SQLite file per registry.

Workers report events and only the driver writes them, each in a transaction of its own, so a killed driver
leaves whole events or none. Anything may read meanwhile. The tables (``tables.py``) are plain SQL::

    sqlite3 taskloom-runs/ledger.sqlite \
        "SELECT grid, label, seed, task, value FROM grid_cells JOIN scores USING (cell)"
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from types import TracebackType
from typing import Any, Self

from taskloom.core.errors import RegistryError, unknown
from taskloom.core.events import ENDS, Event
from taskloom.registry.results.errors import damaged, explained
from taskloom.registry.results.events import BEGINNINGS, WRITERS, begin_attempt, end_attempt, is_known, now
from taskloom.registry.results.file import FILE, TIMEOUT, MissingRegistryError, connect, roll_back
from taskloom.registry.results.records import (
    AttemptRecord,
    CellRecord,
    EpochRecord,
    GridCell,
    GridRecord,
    Planned,
    StageRecord,
)

_CELLS = "SELECT *, (SELECT count(*) FROM epochs WHERE epochs.cell = cells.id) AS epochs FROM cells"

_ATTEMPT = "number, driver, began, ended, how, reason, micro_batch, worker, versions"


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
        self._turn = RLock()  # an engine may emit from several threads; a connection has one transaction

    @classmethod
    def open(cls, folder: str | Path, *, create: bool, timeout: float = TIMEOUT) -> "Ledger":
        """Open the ledger in a folder; ``create`` makes folder and file where there are none.

        A writer waits ``timeout`` seconds for others.
        """
        return cls(Path(folder), connect(Path(folder), create=create, timeout=timeout))

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def transaction(self, *, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """For writing: all of it or nothing. What is not ``durable`` is quicker; a power cut may undo it."""
        with self._turn, explained(self.folder / FILE):
            self._database.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
                self._database.execute("COMMIT")
            except BaseException:
                roll_back(self._database)
                raise

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """For reading: several questions, and one state of the ledger that answers them."""
        with self._turn, explained(self.folder / FILE):
            self._database.execute("BEGIN")
            try:
                yield self._database
            except UnicodeEncodeError:  # of a question
                raise
            except (ValueError, TypeError, LookupError) as error:  # what nobody wrote: no JSON, no number, no such cell
                raise damaged(self.folder / FILE, f"{type(error).__name__}: {error}") from error
            finally:
                roll_back(self._database)

    # Writing

    def record_grid(self, name: str, spec: Mapping[str, Any], cells: Iterable[Planned]) -> None:
        """Keep a grid as written (``spec`` is its JSON) and its planned cells; replaces its last plan."""
        moment = now()
        with self.transaction() as db:
            db.execute(
                "INSERT INTO grids VALUES (:name, :spec, :now, :now) "
                "ON CONFLICT (name) DO UPDATE SET spec = :spec, updated = :now",
                {"name": name, "spec": json.dumps(spec), "now": moment},
            )
            db.execute("DELETE FROM grid_cells WHERE grid = ?", [name])
            turn = db.execute("SELECT coalesce(max(turn), 0) + 1 FROM history WHERE grid = ?", [name]).fetchone()[0]
            for position, cell in enumerate(cells):
                db.execute(
                    "INSERT INTO cells (id, spec, facts, status, created) VALUES (?, ?, ?, 'planned', ?) "
                    "ON CONFLICT (id) DO NOTHING",
                    [cell.id, json.dumps(cell.spec), json.dumps(cell.facts), moment],
                )
                db.execute(
                    "INSERT INTO grid_cells VALUES (?, ?, ?, ?, ?, ?)",
                    [name, position, cell.label, cell.seed, cell.id, json.dumps(dict(cell.reported))],
                )
                db.execute(
                    "INSERT INTO history VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6) "
                    "ON CONFLICT DO UPDATE SET turn = ?5, last = ?6",
                    (name, cell.label, cell.seed, cell.id, turn, moment),
                )

    def write(self, event: Event) -> bool:
        """Write down what happened to a cell, whole or not at all. ``progress`` is not kept.

        Returns whether it is news: not so an epoch or a stage that is ``retold`` and stands here already.
        """
        if event.what == "progress":
            return True
        writer = WRITERS.get(event.what)
        if writer is None:
            raise ValueError(unknown("event", event.what, [*WRITERS, "progress"]))
        # A power cut may take back that a cell began: it begins again. What a checkpoint relies on has to stay.
        with self.transaction(durable=event.what not in BEGINNINGS) as db:
            if db.execute("SELECT 1 FROM cells WHERE id = ?", [event.cell]).fetchone() is None:
                raise ValueError(f"event {event.what!r} is about cell {event.cell!r}, which no recorded grid has")
            if is_known(db, event):
                return False
            writer(db, event.cell, event.facts)
            if event.what in BEGINNINGS:
                begin_attempt(db, event.cell, event.facts)
            elif event.what in ENDS:
                end_attempt(db, event.cell, event.what, event.facts)
        return True

    # Reading

    def grids(self) -> tuple[GridRecord, ...]:
        """Every grid ever recorded, by name."""
        return tuple(self.grid(name) for name in self.grid_names())

    def grid_names(self) -> list[str]:
        with self.snapshot() as db:
            return _names(db)

    def grid(self, name: str) -> GridRecord:
        """A grid as it was last run, with what is known of each of its cells."""
        with self.snapshot() as db:
            grid = db.execute("SELECT * FROM grids WHERE name = ?", [name]).fetchone()
            if grid is None:
                raise RegistryError(unknown("grid", name, _names(db), where=f"run in registry {self.folder} so far"))
            places = db.execute("SELECT * FROM grid_cells WHERE grid = ? ORDER BY position", [name]).fetchall()
            of_grid = "id IN (SELECT cell FROM grid_cells WHERE grid = ?)"
            cells = {cell.id: cell for cell in _cells(db, of_grid, [name])}
            return GridRecord(
                name=name,
                spec=json.loads(grid["spec"]),
                created=grid["created"],
                updated=grid["updated"],
                cells=tuple(
                    GridCell(place["label"], place["seed"], json.loads(place["reported"]), cells[place["cell"]])
                    for place in places
                ),
            )

    def cells(self) -> tuple[CellRecord, ...]:
        """Every cell of every grid, oldest first."""
        with self.snapshot() as db:
            return tuple(sorted(_cells(db, "true", []), key=lambda cell: (cell.created, cell.id)))

    def states(self) -> dict[str, str]:
        """Cell → ``finished``, ``failed``, ``oom`` or ``interrupted``, for a plan; cells that never ran are no part."""
        with self.snapshot() as db:
            rows = db.execute("SELECT id, status FROM cells WHERE status != 'planned'")
            return {row["id"]: "interrupted" if row["status"] == "running" else row["status"] for row in rows}

    def cell(self, prefix: str) -> CellRecord:
        """One cell by its identity, or by as much of its beginning as no other cell shares."""
        with self.snapshot() as db:
            found = _cells(db, "id = ?", [prefix])
            if prefix and not found:  # what begins with it stands together, from it to before the last of all letters
                found = _cells(db, "id > ? AND id < ? || char(1114111)", [prefix, prefix])
        if len(found) == 1:
            return found[0]
        if not found:
            raise RegistryError(f"no cell {prefix!r} in registry {self.folder}; `taskloom cells` lists them")
        shown = ", ".join(cell.id for cell in found[:8])
        raise RegistryError(f"cell {prefix!r} could be {shown}{', …' if len(found) > 8 else ''}; give more of it")

    def attempts(self, cell: str) -> tuple[AttemptRecord, ...]:
        """Every attempt at a cell with how and why it ended."""
        with self.snapshot() as db:
            rows = db.execute(f"SELECT {_ATTEMPT} FROM attempts WHERE cell = ? ORDER BY number", [cell])
            return tuple(AttemptRecord(**{**dict(row), "versions": json.loads(row["versions"])}) for row in rows)

    def epochs(self, cell: str) -> tuple[EpochRecord, ...]:
        """The epochs of a cell in the order of training."""
        with self.snapshot() as db:
            epochs = db.execute("SELECT * FROM epochs WHERE cell = ? ORDER BY stage, epoch", [cell]).fetchall()
            values = db.execute("SELECT * FROM metrics WHERE cell = ?", [cell]).fetchall()
            kept = {(row["stage"], row["epoch"]): _epoch(row) for row in epochs}
            for row in values:
                epoch, value = kept[row["stage"], row["epoch"]], _number(row["value"])
                match row["split"], row["metric"]:
                    case "train", "loss":
                        epoch.losses[row["task"]] = value
                    case "dev", "score":
                        epoch.scores[row["task"]] = value
                    case _, metric:
                        epoch.metrics.setdefault(row["task"], {})[metric] = value
            return tuple(kept.values())

    def stages(self, cell: str) -> tuple[StageRecord, ...]:
        """The stages of a cell that are done."""
        with self.snapshot() as db:
            rows = db.execute("SELECT * FROM stages WHERE cell = ? ORDER BY stage", [cell])
            return tuple(StageRecord(row["stage"], row["key"], bool(row["shared"]), row["seconds"]) for row in rows)

    def log(self, cell: str) -> list[str]:
        """The last log lines of a cell."""
        with self.snapshot() as db:
            return [row["text"] for row in db.execute("SELECT text FROM log WHERE cell = ? ORDER BY rowid", [cell])]


def _names(db: sqlite3.Connection) -> list[str]:
    return [row["name"] for row in db.execute("SELECT name FROM grids ORDER BY name")]


def _cells(db: sqlite3.Connection, which: str, values: list[Any]) -> list[CellRecord]:
    scores: dict[str, dict[str, float]] = {}
    for row in db.execute(f"SELECT * FROM scores WHERE cell IN (SELECT id FROM cells WHERE {which})", values):
        scores.setdefault(row["cell"], {})[row["task"]] = _number(row["value"])
    records = []
    for row in db.execute(f"{_CELLS} WHERE {which}", values):
        facts = dict(row)
        facts |= {key: json.loads(facts[key]) for key in ("spec", "versions", "facts")}
        records.append(CellRecord(**facts, scores=scores.get(row["id"], {})))
    return records


def _epoch(row: sqlite3.Row) -> EpochRecord:
    return EpochRecord(row["stage"], row["epoch"], row["step"], row["seconds"], {}, {}, {})


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)  # SQLite keeps NaN as NULL
