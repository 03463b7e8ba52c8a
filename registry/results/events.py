"""How rows and events are written into the ledger, inside a transaction."""

import json
import os
import sqlite3
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from taskloom.core.engine import ENDS, Event
from taskloom.core.errors import unknown


def now() -> str:
    """The time as the ledger keeps it: UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def insert(db: sqlite3.Connection, table: str, row: Mapping[str, Any], conflict: str = "ABORT") -> bool:
    """Insert a row, its dictionaries as JSON; returns whether it was written (``conflict`` may be to IGNORE it)."""
    values = [json.dumps(value, default=float) if isinstance(value, dict) else value for value in row.values()]
    marks = ", ".join("?" * len(values))
    return db.execute(f"INSERT OR {conflict} INTO {table} ({', '.join(row)}) VALUES ({marks})", values).rowcount > 0


def replace_scores(db: sqlite3.Connection, cell: str, scores: Mapping[str, float]) -> None:
    """Write a cell's dev scores instead of those that it had; SQLite keeps NaN as NULL."""
    db.execute("DELETE FROM scores WHERE cell = ?", [cell])
    db.executemany("INSERT INTO scores VALUES (?, ?, ?)", [[cell, *score] for score in scores.items()])


def write_event(db: sqlite3.Connection, event: Event) -> bool:
    """Write an event of a cell; False if it only repeats (``retold``) a recorded epoch or stage."""
    cell, facts = event.cell, event.facts
    conflict = "IGNORE" if facts.get("retold") else "REPLACE"
    match event.what:
        case "started":  # from the beginning: what an earlier attempt reported no longer counts
            for table in ("epochs", "stages", "scores"):
                db.execute(f"DELETE FROM {table} WHERE cell = ?", [cell])
            db.execute("UPDATE cells SET started = ? WHERE id = ?", [now(), cell])
            _begin(db, cell, facts)
        case "resumed":
            _begin(db, cell, facts)
        case "epoch":
            names = ("losses", "scores", "metrics", "train", "diagnostics")
            row = {name: facts.get(name) for name in ("stage", "epoch", "step", "seconds")}
            row |= {name: dict(facts.get(name, {})) for name in names}
            return insert(db, "epochs", {"cell": cell, **row}, conflict)
        case "stage":
            row = {"stage": facts["index"], "key": facts["key"], "shared": bool(facts.get("shared"))}
            return insert(db, "stages", {"cell": cell, **row, "seconds": facts.get("seconds")}, conflict)
        case end if end in ENDS:
            _end(db, cell, end, facts)
        case name:
            raise ValueError(unknown("event", name, ["started", "resumed", "epoch", "stage", *ENDS]))
    return True


def _begin(db: sqlite3.Connection, cell: str, facts: Mapping[str, Any]) -> None:
    _end_attempt(db, cell, "lost", "its driver or worker was gone before it had ended")
    _begin_attempt(db, cell, facts)
    db.execute(
        "UPDATE cells SET status = 'running', reason = NULL, finished = NULL, "
        "started = coalesce(started, ?), device = coalesce(?, device), versions = coalesce(?, versions) "
        "WHERE id = ?",
        [now(), facts.get("device"), json.dumps(facts["versions"]) if "versions" in facts else None, cell],
    )


def _end(db: sqlite3.Connection, cell: str, end: str, facts: Mapping[str, Any]) -> None:
    """Write the cell's status and how its attempt ended, even if the attempt ended before its first event.

    A ``lost`` cell is resumed from its checkpoint, and so is one that ran out of memory if it is to be tried
    ``again`` with a smaller micro-batch.
    """
    reason = None if facts.get("reason") is None else str(facts["reason"])
    micro_batch = facts.get("micro_batch") if end == "oom" else None
    if not _end_attempt(db, cell, end, reason, micro_batch):
        _begin_attempt(db, cell, facts)
        _end_attempt(db, cell, end, reason, micro_batch)
    goes_on = end == "lost" or (end == "oom" and facts.get("again"))
    status = "interrupted" if goes_on else end
    if status in ("failed", "oom"):
        reason = reason or "no reason given"
    db.execute("UPDATE cells SET status = ?, reason = ?, finished = ? WHERE id = ?", [status, reason, now(), cell])
    if end == "finished":
        figures = [facts.get("seconds"), facts.get("peak_memory"), facts.get("best_epoch")]
        figures += [json.dumps(facts.get(name, {})) for name in ("test", "costs", "digests")]
        columns = "seconds = ?, peak_memory = ?, best_epoch = ?, test = ?, costs = ?, digests = ?"
        db.execute(f"UPDATE cells SET {columns} WHERE id = ?", [*figures, cell])
        replace_scores(db, cell, facts["scores"])


def _begin_attempt(db: sqlite3.Connection, cell: str, facts: Mapping[str, Any]) -> None:
    versions = json.dumps(facts.get("versions", {}))
    db.execute(
        "INSERT INTO attempts (cell, number, driver, began, micro_batch, worker, versions) "
        "SELECT ?1, count(*) + 1, ?2, ?3, ?4, ?5, ?6 FROM attempts WHERE cell = ?1",
        (cell, os.getpid(), now(), facts.get("micro_batch"), facts.get("worker"), versions),
    )


def _end_attempt(
    db: sqlite3.Connection, cell: str, how: str, reason: str | None, micro_batch: int | None = None
) -> bool:
    """End the current attempt; returns whether there was one."""
    done = db.execute(
        "UPDATE attempts SET ended = ?, how = ?, reason = ?, micro_batch = coalesce(?, micro_batch) "
        "WHERE cell = ? AND ended IS NULL",
        [now(), how, reason, micro_batch, cell],
    )
    return done.rowcount > 0
