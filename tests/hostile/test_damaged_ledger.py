"""A ledger with values that nobody wrote ends in one sentence that says so, whatever reads it."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hostile_law import is_one_sentence, taskloom

#: Column → a value of another type than it has.
VALUES: dict[str, object] = {
    "cells.seconds": "soon",
    "cells.peak_memory": b"\x00\x01",
    "cells.best_epoch": 1.5,
    "cells.created": b"\xff\xfe",
    "cells.reason": b"\x07",
    "cells.costs": 3,
    "cells.test": '{"sst": "high"}',
    "cells.versions": "[]",
    "cells.digests": '{"dev": 5}',
    "cells.facts": '{"trainer": [], "spec": 1}',
    "cells.spec": '{"tasks": 3, "stages": {}}',
    "grids.spec": '{"cells": [1], "baseline": []}',
    "grids.spec ": '{"data": [{"task": "sst", "split": "dev", "examples": 3, "cut": 0.5}]}',
    "grids.created": b"\x09",
    "grid_cells.reported": '{"sst": null}',
    "grid_cells.seed": "first",
    "scores.value": "good",
    "epochs.scores": "[1]",
    "epochs.seconds": "NaN?",
    "epochs.metrics": '{"sst": 1}',
    "attempts.versions": '{"a": ',
    "attempts.began": b"\x0c",
    "stages.key": b"\x01",
    "stages.seconds": "x",
    "cells.spec ": "[" * 100_000,
    "cells.costs ": '{"examples": 1' + "0" * 400 + "}",
}


@pytest.mark.parametrize("column", VALUES)
def test_a_value_of_another_type_is_one_sentence(copy: Callable[[], Path], column: str) -> None:
    registry = copy()
    table, name = column.strip().split(".")
    with closing(sqlite3.connect(registry / "ledger.sqlite")) as database:
        database.execute("PRAGMA ignore_check_constraints = ON")
        database.execute(f"UPDATE {table} SET {name} = ?", [VALUES[column]])
        cell = database.execute("SELECT id FROM cells").fetchone()[0]
        database.commit()
    commands = (["table", "mine"], ["cells"], ["cells", cell, "--json"], ["effects", "mine"], ["seeds", "mine"])
    said = [taskloom(*command, "--registry", registry) for command in commands]
    refused = [done for done in said if is_one_sentence(done)]
    assert refused, "somebody reads it"
    assert all("is damaged" in done.stderr for done in refused)
