"""The current state of cells, from the ledger and from the locks that drivers hold. Imports no torch."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from taskloom.core.errors import RegistryError
from taskloom.registry.results.binding import bound_file
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.locks import holder
from taskloom.registry.results.records import CellRecord, GridRecord

#: Every state that a cell can be in, the most urgent first.
STATES = ("running", "failed", "oom", "interrupted", "planned", "finished")
#: Why a finished cell's scores are left out: its files are not those that it stored.
UNVERIFIED = "its scores are not shown"
SHORT = 12  # characters of an identity or a fingerprint that are shown


@dataclass(frozen=True)
class CellState:
    """One cell of a grid: its state, the driver and worker that run it, its progress and its score.

    ``state`` is ``running`` only while a live driver holds the cell; once that driver is gone it is ``interrupted``.
    """

    grid: str
    label: str
    seed: int
    cell: CellRecord
    state: str
    reason: str | None
    driver: int | None = None  # process id
    worker: str | None = None
    score: float | None = None  # overall dev score: final, or of the last epoch
    seconds: float | None = None  # total, or so far
    shared: int = 0  # epochs of the stages that another cell trained

    @property
    def epochs(self) -> str:
        """Own epochs done and in total: ``2/4``, or ``2/4 + 3 shared`` if another cell trained three more."""
        done, total = self.own_epochs
        return f"{done}/{total}" + (f" + {self.shared} shared" if self.shared else "")

    @property
    def own_epochs(self) -> tuple[int, int]:
        """Epochs done and in total, without shared ones; the initial scores of an untrained cell are no epoch."""
        total = sum(stage.get("epochs", 0) for stage in self.cell.spec.get("stages", ())) - self.shared
        return min(self.cell.epochs, total), total

    def as_json(self) -> dict[str, Any]:
        """Return JSON values; scores that are not finite become null."""
        return {
            **{key: value for key, value in vars(self.cell).items() if key not in ("facts", "digests")},
            "imported": self.cell.imported or None,
            "grid": self.grid or None,
            "label": self.label or None,
            "seed": self.seed,
            "status": self.state,
            "reason": self.reason,
            "scores": finite(self.cell.scores),
            "score": finite(self.score),
            "seconds": self.seconds,
            "shared_epochs": self.shared,
            "worker": self.worker,
            "driver": None if self.driver is None else {"pid": self.driver},
        }


def states_of(ledger: Ledger, grids: Iterable[GridRecord], loose: Iterable[CellRecord] = ()) -> list[CellState]:
    """The state of every cell of these grids, then of ``loose`` cells, under the last row that each occupied."""
    rows = [(grid.name, cell.label, cell.seed, cell.cell) for grid in grids for cell in grid.cells]
    for cell in loose:
        last = max(ledger.rows_of(cell.id), key=lambda row: row.last, default=None)
        grid_name, label = (last.grid, f"{last.label} (earlier)") if last else ("", "")
        rows.append((grid_name, label, cell.spec.get("seed", 0), cell))
    return [_state(ledger, *row) for row in rows]


def states_of_cell(ledger: Ledger, cell: CellRecord) -> list[CellState]:
    """The state of one cell in each grid row that it occupies, or else in the last row that it occupied."""
    rows = [row for row in ledger.rows_of(cell.id) if row.now == cell.id]
    return [_state(ledger, row.grid, row.label, row.seed, cell) for row in rows] or states_of(ledger, [], [cell])


def _state(ledger: Ledger, grid: str, label: str, seed: int, cell: CellRecord) -> CellState:
    driver = None if cell.status == "finished" else holder(ledger.folder, cell.id)
    if cell.status == "running" and driver is None:  # a driver records the end before it releases the lock: read again
        cell = ledger.cell(cell.id)
    cell = verified(ledger.folder, cell)
    state, reason, worker = cell.status, cell.reason, None
    score, seconds = cell.scores.get("overall"), cell.seconds
    if driver is not None or state not in ("finished", "planned"):
        attempts, epochs = ledger.attempts(cell.id), ledger.epochs(cell.id)
        last = attempts[-1] if attempts else None
        seconds = epochs[-1].seconds if epochs else None
        if driver is not None:
            state, reason, worker = "running", None, last.worker if last else None
            if last is not None and last.ended is None:
                seconds = (datetime.now(UTC) - datetime.fromisoformat(last.began)).total_seconds()
        elif state == "running":
            state, reason = "interrupted", "its driver is gone"
        else:
            reason = reason or (last.reason if last else None)
        if state in ("running", "interrupted"):
            score = next((epoch.scores["overall"] for epoch in reversed(epochs) if "overall" in epoch.scores), None)
    return CellState(
        grid, label, seed, cell, state, reason, driver, worker, score, seconds, _shared_epochs(ledger, cell)
    )


def verified(registry: Path, cell: CellRecord) -> CellRecord:
    """A cell without the scores that its score files do not confirm, with the reason."""
    for split in ("dev", "test") if cell.status == "finished" else ():
        try:
            bound_file(registry, cell, split)
        except RegistryError as error:
            reason = f"{UNVERIFIED}: {error}"
            cell = replace(cell, reason=reason, scores={}) if split == "dev" else replace(cell, reason=reason, test={})
    return cell


def _shared_epochs(ledger: Ledger, cell: CellRecord) -> int:
    """Count the epochs of stages that another cell trained; the last stage is never shared."""
    stages = cell.spec.get("stages", ())
    stage_records = ledger.stages(cell.id) if len(stages) > 1 and cell.status != "planned" else ()
    return sum(
        stages[record.index].get("epochs", 0)
        for record in stage_records
        if record.shared and record.index < len(stages)
    )


def counted(states: Sequence[CellState]) -> str:
    """Count the cells in each state; a cell with two labels counts once.

    >>> counted([])
    'no cells'
    """
    counts = Counter({cell_state.cell.id: cell_state.state for cell_state in states}.values())
    return ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state]) or "no cells"


def finite(figure: Any) -> Any:
    """Replace NaN and infinities, which JSON lacks, by None."""
    if isinstance(figure, Mapping):
        return {key: finite(entry) for key, entry in figure.items()}
    return None if isinstance(figure, float) and not math.isfinite(figure) else figure
