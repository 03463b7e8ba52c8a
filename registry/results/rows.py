"""Which rows of which grids a cell is or was, and what each row of a grid has been."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taskloom.registry.results.ledger import Ledger


@dataclass(frozen=True)
class Row:
    """A row of a grid with a seed, and when a cell was it; ``now`` is its present cell, ``None`` if the row is gone."""

    grid: str
    label: str
    seed: int
    first: str
    last: str
    now: str | None


def rows_of(ledger: "Ledger", cell: str) -> tuple[Row, ...]:
    """Every row that a cell is or ever was."""
    with ledger.snapshot() as db:
        found = db.execute(
            "SELECT grid, label, seed, first, last, (SELECT cell FROM grid_cells AS g WHERE g.grid = history.grid "
            "AND g.label = history.label AND g.seed = history.seed LIMIT 1) AS now "
            "FROM history WHERE cell = ? ORDER BY grid, label, seed",
            [cell],
        )
        return tuple(Row(*row) for row in found)


def history_of(ledger: "Ledger", grid: str) -> dict[tuple[str, int], list[str]]:
    """Label and seed → every cell that this row of a grid ever was, the newest last."""
    rows: dict[tuple[str, int], list[str]] = {}
    with ledger.snapshot() as db:
        for row in db.execute("SELECT label, seed, cell FROM history WHERE grid = ? ORDER BY turn", [grid]):
            rows.setdefault((row["label"], row["seed"]), []).append(row["cell"])
    return rows


def places_of(ledger: "Ledger", cell: str) -> list[tuple[str, str, int]]:
    """Grid, label and seed of every row that a cell is now."""
    with ledger.snapshot() as db:
        rows = db.execute("SELECT grid, label, seed FROM grid_cells WHERE cell = ? ORDER BY grid, position", [cell])
        return [(row["grid"], row["label"], row["seed"]) for row in rows]


def any_begins(ledger: "Ledger", prefix: str) -> bool:
    """Whether a cell's identity begins so."""
    with ledger.snapshot() as db:
        found = db.execute("SELECT 1 FROM cells WHERE substr(id, 1, ?) = ?", [len(prefix), prefix]).fetchone()
        return found is not None
