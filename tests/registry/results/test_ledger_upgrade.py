"""Ledgers of version 1: read as they are, upgraded in place by the first who writes, and nothing is lost."""

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from taskloom.core import Event, RegistryError
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.results.file import FILE
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.rows import history_of, rows_of
from taskloom.registry.results.tables import APPLICATION, SCHEMA
from taskloom.runs.grid.grid import load_grid
from taskloom.runs.grid.identity import digest
from taskloom.runs.grid.plan import make_plan

#: As taskloom 0.1.0 made its ledger.
VERSION_1 = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE grids (
    name TEXT PRIMARY KEY, spec TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE cells (
    id TEXT PRIMARY KEY, spec TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('planned', 'running', 'finished', 'failed')),
    reason TEXT, attempts INTEGER NOT NULL DEFAULT 0,
    created TEXT NOT NULL, started TEXT, finished TEXT,
    seconds REAL, peak_memory INTEGER, device TEXT, versions TEXT NOT NULL DEFAULT '{}', best_epoch INTEGER
) WITHOUT ROWID;
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
    PRIMARY KEY (cell, stage, epoch)
) WITHOUT ROWID;
CREATE TABLE metrics (
    cell TEXT NOT NULL, stage INTEGER NOT NULL, epoch INTEGER NOT NULL,
    split TEXT NOT NULL, task TEXT NOT NULL, metric TEXT NOT NULL, value REAL,
    PRIMARY KEY (cell, stage, epoch, split, task, metric),
    FOREIGN KEY (cell, stage, epoch) REFERENCES epochs (cell, stage, epoch) ON DELETE CASCADE
) WITHOUT ROWID;
CREATE TABLE log (
    cell TEXT NOT NULL REFERENCES cells (id) ON DELETE CASCADE, at TEXT NOT NULL, text TEXT NOT NULL
);
CREATE INDEX log_of_cell ON log (cell);
CREATE INDEX grids_of_cell ON grid_cells (cell);
INSERT INTO meta VALUES ('made_by', '0.1.0');
INSERT INTO grids VALUES ('grid', '{"base": {}}', '2026-01-01T00:00:00.000+00:00', '2026-01-02T00:00:00.000+00:00');
INSERT INTO cells VALUES
    ('aa01', '{"seed": 0}', 'finished', NULL, 2, '2026-01-01', '2026-01-02', '2026-01-03', 7.5, 8589934592, 'cpu',
     '{"torch": "2.13"}', 2),
    ('aa02', '{"seed": 1}', 'running', NULL, 1, '2026-01-01', '2026-01-02', NULL, NULL, NULL, 'cpu', '{}', NULL),
    ('bb01', '{"seed": 0}', 'failed', 'no', 1, '2026-01-01', '2026-01-02', '2026-01-03', NULL, NULL, 'cpu', '{}', NULL),
    ('cc01', '{"seed": 0}', 'planned', NULL, 0, '2026-01-01', NULL, NULL, NULL, NULL, NULL, '{}', NULL);
INSERT INTO grid_cells VALUES
    ('grid', 0, 'sum', 0, 'aa01', '{"sst": 0.5}'), ('grid', 1, 'sum', 1, 'aa02', '{}'),
    ('grid', 2, 'pcgrad', 0, 'bb01', '{}'), ('grid', 3, 'gse', 0, 'cc01', '{}'), ('grid', 4, 'again', 0, 'aa01', '{}');
INSERT INTO scores VALUES ('aa01', 'sst', 0.30000000000000004), ('aa01', 'overall', NULL);
INSERT INTO stages VALUES ('aa01', 0, 'cafe', 1, 3.0);
INSERT INTO epochs VALUES ('aa01', 0, 1, 10, 1.5), ('aa01', 0, 2, 20, 3.0), ('aa02', 0, 1, 10, 1.5);
INSERT INTO metrics VALUES ('aa01', 0, 1, 'dev', 'sst', 'score', 0.25), ('aa01', 0, 2, 'train', 'sst', 'loss', 0.75);
INSERT INTO log VALUES ('aa01', '2026-01-02', 'a line'), ('aa02', '2026-01-02', 'another');
"""


@dataclass(frozen=True)
class Cell:
    id: str
    label: str = "sum"
    seed: int = 0
    spec: dict[str, Any] = field(default_factory=dict)
    reported: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    folder = tmp_path / "old"
    folder.mkdir()
    with closing(sqlite3.connect(folder / FILE)) as database:
        database.executescript(VERSION_1)
        database.execute("PRAGMA user_version = 1")
        database.execute(f"PRAGMA application_id = {APPLICATION}")
        database.execute("PRAGMA journal_mode = WAL")
    return folder


def everything(ledger: Ledger) -> str:
    """All that a reader can learn, as a text (in which NaN equals NaN)."""
    cells = ledger.cells()
    of_cells = [(ledger.epochs(c.id), ledger.stages(c.id), ledger.log(c.id), ledger.attempts(c.id)) for c in cells]
    past = [[asdict(row) for row in rows_of(ledger, cell.id)] for cell in cells]
    return json.dumps([repr(of_cells), [asdict(grid) for grid in ledger.grids()], ledger.states(), past])


def tables(folder: Path) -> dict[str, str]:
    with closing(sqlite3.connect(folder / FILE)) as database:
        rows = database.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    return {name: re.sub(r"[\s\"]+", " ", sql).replace("TABLE cells(", "TABLE cells (").strip() for name, sql in rows}


def test_reading_an_old_ledger_tells_all_and_changes_nothing(old: Path) -> None:
    before = (old / FILE).read_bytes()
    with Ledger.open(old, create=False) as ledger:
        first, second, *_ = ledger.grid("grid").cells
        assert (first.cell.scores["sst"], first.cell.facts, first.reported) == (0.1 + 0.2, {}, {"sst": 0.5})
        assert (second.cell.status, second.cell.epochs) == ("running", 1)
        assert ledger.states() == {"aa01": "finished", "aa02": "interrupted", "bb01": "failed"}
        assert history_of(ledger, "grid")["sum", 0] == ["aa01"]
        assert {row.last for row in rows_of(ledger, "aa01")} == {"2026-01-02T00:00:00.000+00:00"}
        assert ledger.attempts("aa01") == ()
        everything(ledger)
    assert (old / FILE).read_bytes() == before


def test_the_first_writer_upgrades_and_every_row_stays(old: Path, tmp_path: Path) -> None:
    with Ledger.open(old, create=False) as reader, Ledger.open(old, create=True) as ledger:
        before = everything(ledger)
        ledger.write(Event("log", "cc01", {"message": "new"}))
        assert json.loads(everything(ledger))[1:] == json.loads(before)[1:]
        assert json.loads(everything(reader))[1:] == json.loads(before)[1:], "who opened it before reads on"
        reader.write(Event("oom", "cc01", {"reason": "no memory"}))
        assert ledger.cell("cc01").status == "oom"
    Ledger.open(tmp_path / "new", create=True).close()
    assert tables(old) == tables(tmp_path / "new"), "an upgraded ledger is like a new one"
    with closing(sqlite3.connect(old / FILE)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (SCHEMA,)
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert database.execute("PRAGMA foreign_key_check").fetchall() == []
        assert database.execute("SELECT count(*) FROM epochs").fetchone() == (3,)
        assert database.execute("SELECT count(*) FROM metrics").fetchone() == (2,)


def test_an_old_cell_learns_its_facts_when_it_is_planned_again(old: Path) -> None:
    with Ledger.open(old, create=True) as ledger:
        ledger.record_grid("grid", {}, [Cell("aa01", facts={"trainer": 1}), Cell("dd01", "pcgrad")])
        cell = ledger.cell("aa01")
        assert (cell.facts, cell.status, cell.attempts) == ({"trainer": 1}, "finished", 2)
        history = history_of(ledger, "grid")
        assert history["pcgrad", 0] == ["bb01", "dd01"]
        assert history["gse", 0] == ["cc01"], "a row that left the grid is remembered"


def test_a_row_that_returns_to_a_former_cell_has_it_last(tmp_path: Path) -> None:
    with Ledger.open(tmp_path, create=True) as ledger:
        for id in ("aa", "bb", "aa"):
            ledger.record_grid("grid", {}, [Cell(id)])
        assert history_of(ledger, "grid") == {("sum", 0): ["bb", "aa"]}
        assert history_of(ledger, "other") == {}


def test_an_upgrade_that_fails_leaves_the_ledger_as_it_was(old: Path) -> None:
    with closing(sqlite3.connect(old / FILE)) as database:
        database.execute("INSERT INTO scores VALUES ('nobody', 'sst', 0.5)")
        database.commit()
    with Ledger.open(old, create=True) as ledger:
        before = everything(ledger)
        with pytest.raises(RegistryError, match=r"is damaged \(a row of scores is about a cell that is not there\)"):
            ledger.write(Event("started", "aa02", {}))
        assert everything(ledger) == before
    with closing(sqlite3.connect(old / FILE)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (1,)


READER = """
import os, sys
from taskloom.core import Event, RegistryError
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.rows import history_of

if os.geteuid() == 0:  # root may write everywhere
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
with Ledger.open(sys.argv[1], create=False) as ledger:
    print(len(ledger.grid("grid").cells), ledger.attempts("aa01"), history_of(ledger, "grid")["sum", 1][0])
    try:
        ledger.write(Event("failed", "aa02", {}))
    except RegistryError as error:
        print(error)
    print(sorted(ledger.states().items()))
"""


@pytest.mark.skipif(os.name == "nt", reason="needs the rights of POSIX")
def test_an_old_ledger_that_may_not_be_written_can_be_read(old: Path) -> None:
    with tempfile.TemporaryDirectory() as shared:  # which others may enter, unlike pytest's folders
        shutil.copy(old / FILE, shared)
        (Path(shared) / FILE).chmod(0o444)
        Path(shared).chmod(0o555)
        done = subprocess.run([sys.executable, "-c", READER, shared], capture_output=True, text=True, timeout=60)
        Path(shared).chmod(0o755)
    assert not done.stderr
    first, refused, states = done.stdout.splitlines()
    assert first == "5 () aa02"
    assert "can be read and not written" in refused
    assert states == "[('aa01', 'finished'), ('aa02', 'interrupted'), ('bb01', 'failed')]"


# What a cell is called


BASE = {
    "encoder": {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 256},
    "tasks": {"sst": {"data": {"name": "generated", "task": "sentiment", "size": 48, "dev_size": 32}}},
    "stages": [{"epochs": 1, "optimizer": {"lr": 0.001}}, {"epochs": 1}],
}


def planned(folder: Path, **rest: Any) -> Any:
    path = folder / "grid.json"
    path.write_text(json.dumps({"base": {**BASE, **rest}}))
    (cell,) = make_plan(load_grid(str(path)), load_catalogue(), None).cells
    return cell


def test_a_run_of_the_first_release_keeps_its_name(tmp_path: Path) -> None:
    cell = planned(tmp_path)
    assert cell.id == digest(cell.facts)
    assert sorted(cell.facts) == ["content", "plugins", "spec", "trainer"]
    assert cell.facts["plugins"] == cell.versions
    assert digest({**cell.facts, "plugins": {"taskloom": "0.1.0"}}) == "4a24f68d6a09fc5798c1"
    assert planned(tmp_path, resources={"cpus": 2}).id == cell.id, "what a run needs is not what it is"
    assert planned(tmp_path, selection="last").id != cell.id


def test_facts_are_read_back_as_they_were_hashed(tmp_path: Path) -> None:
    cell = planned(tmp_path)
    with Ledger.open(tmp_path / "registry", create=True) as ledger:
        ledger.record_grid("grid", {}, [cell])
        assert digest(ledger.cell(cell.id).facts) == cell.id
