"""Adds the results of an archive to a registry, in one transaction; existing results stay unchanged."""

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import isnan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from taskloom.registry.results.archive import ArchivedCell, ArchivedGrid, without_folders
from taskloom.registry.results.artifacts import Artifacts, write_bytes
from taskloom.registry.results.binding import bind
from taskloom.registry.results.errors import refusal
from taskloom.registry.results.events import insert, now, replace_scores
from taskloom.registry.results.file import FILE
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.locks import REGISTRY
from taskloom.registry.results.records import IMPORTED, SOURCE, GridRecord
from taskloom.registry.results.scores import read_scores
from taskloom.registry.results.unpacking import Checks, unpack

#: Columns of a cell that hold its result, as opposed to its identity.
_RESULT = ("status", "reason", "started", "finished", "seconds", "peak_memory", "device", "best_epoch")


@dataclass
class Imported:
    """What an import did.

    ``grids`` says under which name each grid of the archive is here now. ``added`` are cells; ``same`` were here with
    the same result. ``different`` were here with other scores and ``unfinished`` are not done here: both were left as
    they are.
    """

    grids: dict[str, str] = field(default_factory=dict)
    added: list[str] = field(default_factory=list)
    same: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)


def import_archive(path: Path, registry: Path, checks: Checks) -> Imported:
    """Add the grids of an archive to a registry, which is created if there is none; all of them or, on an error, none.

    A cell that is finished here, or that a run has begun, stays as it is. One that was only planned or that failed
    takes the archive's result. A grid of the same name is extended if it is the same grid; otherwise the one of the
    archive comes under a name of its own.
    """
    with TemporaryDirectory(prefix="taskloom-") as temporary:
        folder = Path(temporary)
        archive, digest = unpack(path, folder, registry, checks)
        source = f"{path.name} ({digest[:12]}, taskloom {archive.taskloom})"
        done = Imported()
        with (
            _undone_on_error(registry) as write,
            Ledger.open(registry, create=True) as ledger,
            ledger.transaction() as db,
        ):
            for cell in archive.cells:
                _add_cell(db, cell, source, folder, done)
            for grid in archive.grids:
                done.grids[grid.name] = _add_grid(db, grid, digest)
            try:
                _add_files(folder, Artifacts(registry), done.added, write)
            except OSError as error:
                raise refusal(f"{path} cannot be imported into {registry}", error, "Is it writable?") from error
    return done


def _add_files(folder: Path, artifacts: Artifacts, cells: Iterable[str], write: Callable[[Path, bytes], None]) -> None:
    """Write the cells' score files, and their examples where the registry does not have them."""
    for file in (file for cell in cells for file in sorted((folder / "cells" / cell).glob("*"))):
        write(artifacts.cell(file.parent.name) / file.name, file.read_bytes())
        for facts in read_scores(file).tasks.values():
            target = artifacts.examples() / f"{facts.examples}.safetensors"
            if not target.exists():
                write(target, (folder / "examples" / target.name).read_bytes())


@contextmanager
def _undone_on_error(registry: Path) -> Iterator[Callable[[Path, bytes], None]]:
    """A function that writes files of a registry; after an error, files are restored and a new ledger is removed."""
    before: dict[Path, bytes | None] = {}
    absent = [folder for folder in (registry, *registry.parents) if not folder.exists()]
    is_new = not (registry / FILE).exists()

    def write(path: Path, content: bytes) -> None:
        before.setdefault(path, path.read_bytes() if path.exists() else None)
        write_bytes(path, content)

    try:
        yield write
    except BaseException:
        for path, content in before.items():
            if content is None:
                path.unlink(missing_ok=True)
            else:
                write_bytes(path, content)
        for path in (*registry.glob(f"{FILE}*"), registry / REGISTRY) if is_new else ():
            path.unlink(missing_ok=True)
        for folder in (*{path.parent for path in before}, registry / "cells", registry / "examples", *absent):
            with suppress(OSError):  # it holds something
                folder.rmdir()
        raise


def _add_cell(db: sqlite3.Connection, cell: ArchivedCell, source: str, folder: Path, done: Imported) -> None:
    """Add a cell, with its result unless it has one here; ``folder`` holds its score files."""
    record = cell.record
    here = db.execute("SELECT status FROM cells WHERE id = ?", [record.id]).fetchone()
    if here is not None and record.status != "finished":
        return
    if here is not None and here["status"] == "finished":
        scores = dict(db.execute("SELECT task, value FROM scores WHERE cell = ?", [record.id]).fetchall())
        stated = {task: None if isnan(value) else value for task, value in record.scores.items()}  # NaN is NULL
        (done.same if scores == stated else done.different).append(record.id)
        return
    if here is not None and here["status"] in ("running", "interrupted"):
        done.unfinished.append(record.id)
        return
    # The identity of an older version's cell is set by the next plan.
    plan = {"id": record.id, "status": "planned", "created": record.created, "spec": record.spec, "facts": record.facts}
    insert(db, "cells", {**plan, "identity": record.id if "code" in record.facts else None}, "IGNORE")
    if record.status == "planned":
        return
    origin = {IMPORTED: f"{source}, there from {record.imported}" if record.imported else source}
    values = [getattr(record, name) for name in _RESULT]
    home = folder / "cells" / record.id
    digests = bind(home, "dev", record.scores) | bind(home, "test", record.test)
    values += [json.dumps(part) for part in (record.test, record.costs, {**record.versions, **origin}, digests)]
    columns = ", ".join(f"{name} = ?" for name in (*_RESULT, "test", "costs", "versions", "digests"))
    db.execute(f"UPDATE cells SET {columns} WHERE id = ?", [*values, record.id])
    replace_scores(db, record.id, record.scores)
    for table in ("epochs", "stages"):  # of an attempt here that failed
        db.execute(f"DELETE FROM {table} WHERE cell = ?", [record.id])
    for stage in cell.stages:
        db.execute("INSERT INTO stages VALUES (?, ?, ?, ?, ?)", [record.id, *vars(stage).values()])
    for epoch in cell.epochs:
        insert(db, "epochs", {"cell": record.id, **vars(epoch)})
    first = db.execute("SELECT count(*) FROM attempts WHERE cell = ?", [record.id]).fetchone()[0]
    for attempt in cell.attempts:
        insert(db, "attempts", {"cell": record.id, **vars(attempt), "number": first + attempt.number})
    done.added.append(record.id)


def _add_grid(db: sqlite3.Connection, grid: ArchivedGrid, digest: str) -> str:
    """Add a grid, or extend the one here that is the same; returns the name that it has here."""
    known: list[str] = [row["name"] for row in db.execute("SELECT name FROM grids")]
    names = [grid.name, *(name for name in known if name.endswith(f"/{grid.name}")), f"{grid.name[:91]}-{digest[:8]}"]
    name = next(name for name in names if _fits(db, name, grid))
    cells_here = _cells_of_rows(db, name)
    new_rows = [archived for archived in grid.places if (archived.label, archived.seed) not in cells_here]
    moment = now()
    archived_grid = {"name": name, "spec": grid.spec, "created": grid.created, "updated": grid.updated}
    insert(db, "grids", archived_grid, "IGNORE")
    ours = json.loads(db.execute("SELECT spec FROM grids WHERE name = ?", [name]).fetchone()["spec"])
    for key, added in _parts(grid.spec)[1].items():
        known_here = ours.get(key, [])
        ours[key] = [*known_here, *(entry for entry in added if entry not in known_here)]
    db.execute("UPDATE grids SET spec = ? WHERE name = ?", [json.dumps(ours), name])
    turn = db.execute("SELECT coalesce(max(turn), 0) + 1 FROM history WHERE grid = ?", [name]).fetchone()[0]
    for position, archived in enumerate(new_rows, start=len(cells_here)):
        row = {"grid": name, "label": archived.label, "seed": archived.seed, "cell": archived.cell}
        insert(db, "grid_cells", {**row, "position": position, "reported": archived.reported})
        db.execute("DELETE FROM history WHERE (grid, label, seed, cell) = (?, ?, ?, ?)", [*row.values()])
        insert(db, "history", {**row, "turn": turn, "first": moment, "last": moment})
    for claim, written in grid.claims.items():
        # A claim that is here keeps its moment: when it was written is no stranger's to say.
        db.execute(
            "INSERT INTO claims SELECT ?1, ?2, coalesce(min(written), ?3) FROM claims WHERE claim = ?2 "
            "ON CONFLICT DO NOTHING",
            (name, claim, written),
        )
    seen = {row["moment"] for row in db.execute("SELECT moment FROM looks WHERE grid = ?", [name])}
    db.executemany("INSERT INTO looks VALUES (?, ?)", [[name, look] for look in grid.looks if look not in seen])
    return name


def _cells_of_rows(db: sqlite3.Connection, grid: str) -> dict[tuple[str, int], str]:
    rows = db.execute("SELECT label, seed, cell FROM grid_cells WHERE grid = ? ORDER BY position", [grid])
    return {(without_folders(row["label"]), row["seed"]): row["cell"] for row in rows}


def _fits(db: sqlite3.Connection, name: str, grid: ArchivedGrid) -> bool:
    """Whether the name is free here, or has the same grid: equal as written, and with the same cells in its rows."""
    here = db.execute("SELECT spec FROM grids WHERE name = ?", [name]).fetchone()
    if here is None:
        return True
    ours, theirs = (_parts(spec)[0] for spec in (without_folders(json.loads(here["spec"])), grid.spec))
    cells = _cells_of_rows(db, name)
    return ours == theirs and all(cells.get((row.label, row.seed), row.cell) == row.cell for row in grid.places)


def _parts(spec: dict[str, Any]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Split a recorded grid into what two records of it have in common, and the lists that runs have added to."""
    written = GridRecord("", spec, "", "", ()).written
    lists = {key: value for key, value in spec.items() if key not in written and isinstance(value, list)}
    return {key: value for key, value in spec.items() if key not in lists and key != SOURCE}, lists
