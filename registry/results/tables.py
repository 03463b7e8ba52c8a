"""The ledger's tables, as plain SQL."""

#: The version of these tables. A ledger of any other version is refused.
SCHEMA = 3
#: Marks the file as ours ("loom"), so that nobody else's database is ever written to.
APPLICATION = 0x6C6F6F6D

# In `cells` the long columns come last, so that reading statuses need not read them. `history` is which cells a row of
# a grid ever was.
TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE grids (
    name TEXT PRIMARY KEY, spec TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE cells (
    id TEXT PRIMARY KEY,
    status TEXT NOT NULL CHECK (status IN ('planned', 'running', 'finished', 'failed', 'oom', 'interrupted')),
    reason TEXT, attempts INTEGER NOT NULL DEFAULT 0,
    created TEXT NOT NULL, started TEXT, finished TEXT,
    seconds REAL, peak_memory INTEGER, device TEXT, best_epoch INTEGER,
    versions TEXT NOT NULL DEFAULT '{}', spec TEXT NOT NULL, facts TEXT NOT NULL DEFAULT '{}'
);
CREATE INDEX cells_by_status ON cells (status, id);
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
CREATE TABLE history (
    grid TEXT NOT NULL, label TEXT NOT NULL, seed INTEGER NOT NULL,
    cell TEXT NOT NULL REFERENCES cells (id) ON DELETE CASCADE,
    turn INTEGER NOT NULL, first TEXT NOT NULL, last TEXT NOT NULL,
    PRIMARY KEY (grid, label, seed, cell)
) WITHOUT ROWID;
CREATE INDEX turns ON history (grid, turn);
CREATE INDEX history_of_cell ON history (cell);
CREATE TABLE attempts (
    cell TEXT NOT NULL REFERENCES cells (id) ON DELETE CASCADE,
    number INTEGER NOT NULL, driver INTEGER,
    began TEXT NOT NULL, ended TEXT, how TEXT, reason TEXT, micro_batch INTEGER, worker TEXT,
    versions TEXT NOT NULL DEFAULT '{}',
    PRIMARY KEY (cell, number)
) WITHOUT ROWID;
"""
