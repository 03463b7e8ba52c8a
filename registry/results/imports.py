"""Adds the results of an archive to a registry, in one transaction; what is there already stays as it is."""

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from taskloom.registry.results.archive import SPLITS, ArchivedCell, ArchivedGrid, without_folders
from taskloom.registry.results.artifacts import Artifacts, write_bytes
from taskloom.registry.results.errors import refusal
from taskloom.registry.results.events import now
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import IMPORTED, SOURCE, GridRecord
from taskloom.registry.results.unpacking import Identify, unpack

#: Columns of a cell that are its result, not what it is.
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


def import_archive(path: Path, registry: Path, identify: Identify) -> Imported:
    """Add the grids of an archive to a registry, which is made if there is none; all of them or, on an error, nothing.

    A cell that is finished here, or that a run has begun, stays as it is. One that was only planned or that failed
    takes the archive's result. A grid of the same name is extended if it is the same grid; otherwise the one of the
    archive comes under a name of its own. ``identify`` gives the identity that follows from a cell's facts.
    """
    with TemporaryDirectory(prefix="taskloom-") as folder:
        archive, digest = unpack(path, Path(folder), identify)
        source = f"{path.name} ({digest[:12]}, taskloom {archive.taskloom})"
        done, artifacts = Imported(), Artifacts(registry)
        with Ledger.open(registry, create=True) as ledger, ledger.transaction() as db:
            try:
                for name in archive.files:
                    if name.startswith("examples/") and not (target := artifacts.examples() / Path(name).name).exists():
                        write_bytes(target, (Path(folder) / name).read_bytes())
                for cell in archive.cells:
                    if _add_cell(db, cell, source, done):
                        _add_files(Path(folder), artifacts, cell.record.id)
            except OSError as error:
                raise refusal(f"{path} cannot be imported into {registry}", error, "Is it writable?") from error
            for grid in archive.grids:
                done.grids[grid.name] = _add_grid(db, grid, digest)
    return done


def _add_files(folder: Path, artifacts: Artifacts, cell: str) -> None:
    for split in SPLITS:
        file = folder / "cells" / cell / f"scores-{split}.safetensors"
        if file.exists():
            write_bytes(artifacts.cell(cell) / file.name, file.read_bytes())


def _add_cell(db: sqlite3.Connection, cell: ArchivedCell, source: str, done: Imported) -> bool:
    """Whether a result was added."""
    record = cell.record
    here = db.execute("SELECT status FROM cells WHERE id = ?", [record.id]).fetchone()
    if here is not None and record.status != "finished":
        return False
    if here is not None and here["status"] == "finished":
        scores = dict(db.execute("SELECT task, value FROM scores WHERE cell = ?", [record.id]).fetchall())
        (done.same if scores == _stored(record.scores) else done.different).append(record.id)
        return False
    if here is not None and here["status"] in ("running", "interrupted"):
        done.unfinished.append(record.id)
        return False
    db.execute(
        "INSERT INTO cells (id, status, created, spec, facts, identity) VALUES (?, 'planned', ?, ?, ?, ?) "
        "ON CONFLICT DO NOTHING",
        [
            record.id,
            record.created,
            json.dumps(record.spec),
            json.dumps(record.facts),
            record.id if "code" in record.facts else None,  # of an older version's a plan finds out
        ],
    )
    if record.status == "planned":
        return False
    origin = {IMPORTED: f"{source}, there from {record.imported}" if record.imported else source}
    values = [getattr(record, name) for name in _RESULT]
    values += [json.dumps(each) for each in (record.test, record.costs, {**record.versions, **origin})]
    columns = ", ".join(f"{name} = ?" for name in (*_RESULT, "test", "costs", "versions"))
    db.execute(f"UPDATE cells SET {columns} WHERE id = ?", [*values, record.id])
    for table in ("epochs", "stages", "scores"):  # of an attempt here that failed
        db.execute(f"DELETE FROM {table} WHERE cell = ?", [record.id])
    for task, value in _stored(record.scores).items():
        db.execute("INSERT INTO scores VALUES (?, ?, ?)", [record.id, task, value])
    for stage in cell.stages:
        db.execute("INSERT INTO stages VALUES (?, ?, ?, ?, ?)", [record.id, *vars(stage).values()])
    for epoch in cell.epochs:
        _insert(db, "epochs", {"cell": record.id, **vars(epoch)})
    first = db.execute("SELECT count(*) FROM attempts WHERE cell = ?", [record.id]).fetchone()[0]
    for attempt in cell.attempts:
        _insert(db, "attempts", {"cell": record.id, **vars(attempt), "number": first + attempt.number})
    done.added.append(record.id)
    return True


def _stored(scores: Mapping[str, float]) -> dict[str, float | None]:
    return {task: None if value != value else value for task, value in scores.items()}  # NaN is kept as NULL


def _insert(db: sqlite3.Connection, table: str, row: Mapping[str, Any]) -> None:
    values = {name: json.dumps(each) if isinstance(each, dict) else each for name, each in row.items()}
    db.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({', '.join('?' * len(values))})", [*values.values()])


def _add_grid(db: sqlite3.Connection, grid: ArchivedGrid, digest: str) -> str:
    """The name that the grid has here."""
    known: list[str] = [row["name"] for row in db.execute("SELECT name FROM grids")]
    names = [grid.name, *(name for name in known if name.endswith(f"/{grid.name}")), f"{grid.name[:91]}-{digest[:8]}"]
    name = next(name for name in names if _fits(db, name, grid))
    places = _places(db, name)
    missing = [place for place in grid.places if (place.label, place.seed) not in places]
    moment = now()
    db.execute(
        "INSERT INTO grids (name, spec, created, updated) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
        [name, json.dumps(grid.spec), grid.created, grid.updated],
    )
    ours = json.loads(db.execute("SELECT spec FROM grids WHERE name = ?", [name]).fetchone()["spec"])
    for key, added in _parts(grid.spec)[1].items():
        ours[key] = _united(ours.get(key, []), added)
    db.execute("UPDATE grids SET spec = ? WHERE name = ?", [json.dumps(ours), name])
    turn = db.execute("SELECT coalesce(max(turn), 0) + 1 FROM history WHERE grid = ?", [name]).fetchone()[0]
    for position, place in enumerate(missing, start=len(places)):
        row = {"grid": name, "label": place.label, "seed": place.seed, "cell": place.cell}
        _insert(db, "grid_cells", {**row, "position": position, "reported": place.reported})
        db.execute("DELETE FROM history WHERE (grid, label, seed, cell) = (?, ?, ?, ?)", [*row.values()])
        _insert(db, "history", {**row, "turn": turn, "first": moment, "last": moment})
    for claim, written in grid.claims.items():
        db.execute(
            "INSERT INTO claims VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET written = min(written, excluded.written)",
            [name, claim, written],
        )
    seen = {row["moment"] for row in db.execute("SELECT moment FROM looks WHERE grid = ?", [name])}
    db.executemany("INSERT INTO looks VALUES (?, ?)", [[name, look] for look in grid.looks if look not in seen])
    return name


def _united(ours: list[Any], theirs: list[Any]) -> list[Any]:
    """Both lists; the same change of other rows is one change of all of them."""
    united = list(ours)
    for each in theirs:
        same = [place for place, other in enumerate(united) if _without_rows(other) == _without_rows(each)]
        if not same:
            united.append(each)
        elif isinstance(each, dict):
            rows = dict.fromkeys([*united[same[0]]["rows"], *each["rows"]])
            united[same[0]] = {**each, "rows": list(rows)}
    return united


def _without_rows(change: Any) -> Any:
    return {key: value for key, value in change.items() if key != "rows"} if isinstance(change, dict) else change


def _places(db: sqlite3.Connection, grid: str) -> dict[tuple[str, int], str]:
    rows = db.execute("SELECT label, seed, cell FROM grid_cells WHERE grid = ? ORDER BY position", [grid])
    return {(without_folders(row["label"]), row["seed"]): row["cell"] for row in rows}


def _fits(db: sqlite3.Connection, name: str, grid: ArchivedGrid) -> bool:
    """Whether there is no grid of that name here, or the same one: as written, and with the same cells in its rows."""
    here = db.execute("SELECT spec FROM grids WHERE name = ?", [name]).fetchone()
    if here is None:
        return True
    ours, theirs = (_parts(spec)[0] for spec in (without_folders(json.loads(here["spec"])), grid.spec))
    places = _places(db, name)
    return ours == theirs and all(places.get((one.label, one.seed), one.cell) == one.cell for one in grid.places)


def _parts(spec: dict[str, Any]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Of a recorded grid: what two records of the same grid have in common, and lists that runs have added to it."""
    written = GridRecord("", spec, "", "", ()).written
    lists = {key: value for key, value in spec.items() if key not in written and isinstance(value, list)}
    return {key: value for key, value in spec.items() if key not in lists and key != SOURCE}, lists
