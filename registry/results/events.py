"""How each kind of event is written into the ledger; every function runs inside the event's transaction."""

import json
import os
import sqlite3
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from taskloom.core.events import Event

Writer = Callable[[sqlite3.Connection, str, Mapping[str, Any]], None]
LOG_LINES = 200  # per cell: the ledger stays small, the whole log is in the cell's folder


def now() -> str:
    """The time as the ledger keeps it: UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _started(db: sqlite3.Connection, cell: str, facts: Mapping[str, Any]) -> None:
    # From the beginning: what an earlier attempt reported no longer counts.
    for table in ("epochs", "stages", "scores"):
        db.execute(f"DELETE FROM {table} WHERE cell = ?", [cell])
    db.execute("UPDATE cells SET started = ? WHERE id = ?", [now(), cell])
    _resumed(db, cell, facts)


def _resumed(db: sqlite3.Connection, cell: str, facts: Mapping[str, Any]) -> None:
    _end_attempt(db, cell, "lost", "its driver or worker was gone before it had ended")
    db.execute(
        "UPDATE cells SET status = 'running', attempts = attempts + 1, reason = NULL, finished = NULL, "
        "started = coalesce(started, ?), device = coalesce(?, device), versions = coalesce(?, versions) "
        "WHERE id = ?",
        [now(), facts.get("device"), json.dumps(facts["versions"]) if "versions" in facts else None, cell],
    )


def _logged(db: sqlite3.Connection, cell: str, facts: Mapping[str, Any]) -> None:
    db.execute("INSERT INTO log VALUES (?, ?, ?)", [cell, now(), str(facts["message"])])
    db.execute(
        "DELETE FROM log WHERE cell = ?1 AND rowid NOT IN "
        "(SELECT rowid FROM log WHERE cell = ?1 ORDER BY rowid DESC LIMIT ?2)",
        (cell, LOG_LINES),
    )


def _epoch_ended(db: sqlite3.Connection, cell: str, facts: Mapping[str, Any]) -> None:
    at = [cell, facts["stage"], facts["epoch"]]
    # A resumed cell may report an epoch again: the new report replaces the old one and, by cascade, its metrics.
    db.execute("DELETE FROM epochs WHERE cell = ? AND stage = ? AND epoch = ?", at)
    db.execute("INSERT INTO epochs VALUES (?, ?, ?, ?, ?)", [*at, facts.get("step"), facts.get("seconds")])
    rows = [("dev", task, name, x) for task, named in facts.get("metrics", {}).items() for name, x in named.items()]
    rows += [("train", task, "loss", x) for task, x in facts.get("losses", {}).items()]
    rows += [("dev", task, "score", x) for task, x in facts.get("scores", {}).items()]
    db.executemany("INSERT OR REPLACE INTO metrics VALUES (?, ?, ?, ?, ?, ?, ?)", [[*at, *row] for row in rows])


def _stage_ended(db: sqlite3.Connection, cell: str, facts: Mapping[str, Any]) -> None:
    db.execute(
        "INSERT OR REPLACE INTO stages VALUES (?, ?, ?, ?, ?)",
        [cell, facts["index"], facts["key"], bool(facts.get("shared")), facts.get("seconds")],
    )


def is_known(db: sqlite3.Connection, event: Event) -> bool:
    """Whether an event only tells again (``retold``) of an epoch or a stage that the ledger has."""
    facts = event.facts
    if not facts.get("retold"):
        return False
    match event.what:
        case "epoch":
            found = "SELECT 1 FROM epochs WHERE cell = ? AND stage = ? AND epoch = ?"
            return db.execute(found, [event.cell, facts["stage"], facts["epoch"]]).fetchone() is not None
        case "stage":
            found = "SELECT 1 FROM stages WHERE cell = ? AND stage = ?"
            return db.execute(found, [event.cell, facts["index"]]).fetchone() is not None
    return False


def _finished(db: sqlite3.Connection, cell: str, facts: Mapping[str, Any]) -> None:
    db.execute(
        "UPDATE cells SET status = 'finished', reason = NULL, finished = ?, seconds = ?, peak_memory = ?, "
        "best_epoch = ? WHERE id = ?",
        [now(), facts.get("seconds"), facts.get("peak_memory"), facts.get("best_epoch"), cell],
    )
    db.execute("DELETE FROM scores WHERE cell = ?", [cell])
    db.executemany("INSERT INTO scores VALUES (?, ?, ?)", [[cell, task, x] for task, x in facts["scores"].items()])


def _ended_as(status: str) -> Writer:
    def write(db: sqlite3.Connection, cell: str, facts: Mapping[str, Any]) -> None:
        reason = facts.get("reason")
        if status != "interrupted":
            reason = str(reason or "no reason given")
        db.execute("UPDATE cells SET status = ?, reason = ?, finished = ? WHERE id = ?", [status, reason, now(), cell])

    return write


def _out_of_memory(db: sqlite3.Connection, cell: str, facts: Mapping[str, Any]) -> None:
    """``again``: a smaller micro-batch may fit; it is tried now, or when the cell is run again."""
    _ended_as("interrupted" if facts.get("again") else "oom")(db, cell, facts)


def begin_attempt(db: sqlite3.Connection, cell: str, facts: Mapping[str, Any]) -> None:
    """Count an attempt that has just begun; ``started`` and ``resumed`` are its first events."""
    db.execute(
        "INSERT INTO attempts (cell, number, driver, began, micro_batch, worker, versions) "
        "SELECT id, attempts, ?, ?, ?, ?, ? FROM cells WHERE id = ?",
        [
            *(os.getpid(), now(), facts.get("micro_batch"), facts.get("worker")),
            *(json.dumps(facts.get("versions", {})), cell),
        ],
    )


def end_attempt(db: sqlite3.Connection, cell: str, how: str, facts: Mapping[str, Any]) -> None:
    """Write down how an attempt ended, also if it was over before its first event."""
    if not _end_attempt(db, cell, how, facts.get("reason")):
        db.execute("UPDATE cells SET attempts = attempts + 1 WHERE id = ?", [cell])
        begin_attempt(db, cell, facts)
        _end_attempt(db, cell, how, facts.get("reason"))


def _end_attempt(db: sqlite3.Connection, cell: str, how: str, reason: object) -> bool:
    said = None if reason is None else str(reason)
    done = db.execute(
        "UPDATE attempts SET ended = ?, how = ?, reason = ? WHERE cell = ? AND ended IS NULL", [now(), how, said, cell]
    )
    return done.rowcount > 0


#: The first words of an attempt.
BEGINNINGS = frozenset({"started", "resumed"})
#: What happened → who writes it down.
WRITERS: dict[str, Writer] = {
    "started": _started,
    "resumed": _resumed,
    "log": _logged,
    "epoch": _epoch_ended,
    "stage": _stage_ended,
    "finished": _finished,
    "failed": _ended_as("failed"),
    "interrupted": _ended_as("interrupted"),
    "oom": _out_of_memory,
    "lost": _ended_as("interrupted"),  # the cell goes on from its checkpoint; how the attempt ended is with the attempt
}
