"""The state of cells right now: what the ledger says, and which driver has them. Imports no torch."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.locks import holder
from taskloom.registry.results.records import CellRecord, GridRecord

#: Every state that a cell can be in, the most urgent first.
STATES = ("running", "failed", "oom", "interrupted", "planned", "finished")
SHORT = 12  # characters of an identity or a fingerprint that are shown


@dataclass(frozen=True)
class CellState:
    """One cell in its place in a grid: its state, who runs it, how far and how well.

    ``state`` is ``running`` only while a living driver holds the cell; one whose driver is gone is ``interrupted``.
    """

    grid: str
    label: str
    seed: int
    cell: CellRecord
    state: str
    reason: str | None
    driver: int | None = None  # the number of its process
    worker: str | None = None
    score: float | None = None  # the overall dev score: final, or of the last epoch
    seconds: float | None = None  # that it took, or takes so far
    shared: int = 0  # epochs of the stages whose result it took over from another cell

    @property
    def epochs(self) -> str:
        """Epochs done, of how many that are its own: ``2/4``, or ``2/4 + 3 shared`` if another cell trained those."""
        done, total = self.own_epochs
        return f"{done}/{total}" + (f" + {self.shared} shared" if self.shared else "")

    @property
    def own_epochs(self) -> tuple[int, int]:
        """Epochs that it has trained, and that it has to train; the scores of an untrained cell count as none."""
        total = sum(stage.get("epochs", 0) for stage in self.cell.spec.get("stages", ())) - self.shared
        return min(self.cell.epochs, total), total

    def as_json(self) -> dict[str, Any]:
        """For programs; a score that is not finite is null."""
        return {
            **{key: value for key, value in vars(self.cell).items() if key != "facts"},
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
    """The state of every cell of these grids, and of cells that no table shows any more, as what they were last."""
    places = [(grid.name, place.label, place.seed, place.cell) for grid in grids for place in grid.cells]
    for cell in loose:
        last = max(ledger.rows_of(cell.id), key=lambda row: row.last, default=None)
        grid, label = (last.grid, f"{last.label} (earlier)") if last else ("", "")
        places.append((grid, label, cell.spec.get("seed", 0), cell))
    return [_state(ledger, *place) for place in places]


def states_of_cell(ledger: Ledger, cell: CellRecord) -> list[CellState]:
    """The state of one cell, in each of its places; of one that no table shows any more, in its last."""
    rows = [row for row in ledger.rows_of(cell.id) if row.now == cell.id]
    return [_state(ledger, row.grid, row.label, row.seed, cell) for row in rows] or states_of(ledger, [], [cell])


def _state(ledger: Ledger, grid: str, label: str, seed: int, cell: CellRecord) -> CellState:
    driver = None if cell.status == "finished" else holder(ledger.folder, cell.id)
    if cell.status == "running" and driver is None:  # a driver writes how a cell ended, then lets it go: look again
        cell = ledger.cell(cell.id)
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
    return CellState(grid, label, seed, cell, state, reason, driver, worker, score, seconds, _shared(ledger, cell))


def _shared(ledger: Ledger, cell: CellRecord) -> int:
    """The epochs of its stages that another cell trained; the last stage is never one."""
    stages = cell.spec.get("stages", ())
    done = ledger.stages(cell.id) if len(stages) > 1 and cell.status != "planned" else ()
    return sum(stages[one.index].get("epochs", 0) for one in done if one.shared and one.index < len(stages))


def counted(states: Sequence[CellState]) -> str:
    """How many cells are in which state; a cell that is under two labels counts once.

    >>> counted([])
    'no cells'
    """
    found = Counter({each.cell.id: each.state for each in states}.values())
    return ", ".join(f"{found[state]} {state}" for state in STATES if found[state]) or "no cells"


def finite(value: Any) -> Any:
    """JSON has no NaN: a figure that is not a number is null."""
    if isinstance(value, Mapping):
        return {key: finite(each) for key, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
