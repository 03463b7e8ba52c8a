"""Who runs which cell, when several drivers share one registry.

A driver claims a cell before it runs it, and says that it lives every few seconds. Each claim has a number, the fence,
larger than any before. When a driver dies or falls silent another may claim its cells; should the first come back, what
it writes carries an old fence and is refused. So a cell is never finished twice, and nothing is lost but time.

Processes of one machine are judged by a clock that nobody can set. Between machines, and after a restart, there is only
the wall clock: there the machines' clocks should agree to within the patience.
"""

import os
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice, repeat
from threading import Event as Flag
from threading import Thread
from types import TracebackType
from typing import Self

from taskloom.core.errors import RegistryError
from taskloom.registry.results.artifacts import fence_of
from taskloom.registry.results.errors import LostLeaseError as LostLeaseError
from taskloom.registry.results.events import now
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.presence import Driver, Machine

BEAT = 5.0  # seconds between two signs of life
PATIENCE = 60.0  # seconds of silence after which a driver that may still be there counts as dead
_CHUNKS = (8, 32, 128, 512)  # cells looked at in one question; most often one of the first few is free
_DRIVER = "id, host, pid, process, boot, began, beat, uptime, patience"


class Leases:
    """The leases of one driver; closing gives them back. Nothing is written before the first claim.

    Example::

        with Leases(ledger) as leases, leases.beating():
            fence = leases.claim(cell)
            if fence is not None:  # nobody else runs it, and it is not finished
                ledger.write(Event("started", cell, {}, fence))
    """

    def __init__(self, ledger: Ledger, *, patience: float | None = None, machine: Machine | None = None) -> None:
        self.patience = patience_of_environment() if patience is None else patience
        self.every = min(BEAT, self.patience / 4)  # seconds after which `beat` is due
        self._ledger = ledger
        self._cells = ledger.folder.absolute() / "cells"  # a plugin may leave the current folder
        self._machine = machine or Machine()
        self.driver = f"{self._machine.host}-{self._machine.pid}-{secrets.token_hex(3)}"
        self._began = now()
        self._mine: dict[str, int] = {}
        self._finished: set[str] = set()
        self._known = False  # whether the ledger has heard of this driver

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def claim(self, cell: str, stages: Sequence[str] = ()) -> int | None:
        """The fence of a new lease; ``None`` if another driver holds a live one or the cell is finished.

        ``stages`` are the keys of the stages that the cell would compute, in their order: with the cell they are
        claimed for as long as it is held. If another driver computes the first of them, nothing is claimed. Claiming
        what one holds already gives a larger fence: whatever ran under the old one is refused from then on.
        """
        with self._ledger.transaction(durable=False) as db:
            self._say(db)
            elsewhere = self._computed(db, stages)
            got = {} if elsewhere & set(stages[:1]) else self._claim(db, self.unfinished([cell]), 1)
            if got:
                mine = [(key, cell) for key in stages if key not in elsewhere]
                db.executemany("INSERT OR REPLACE INTO stage_leases VALUES (?, ?)", mine)
        self._mine |= got
        return got.get(cell)

    def claim_some(self, cells: Iterable[str], count: int = 1) -> dict[str, int]:
        """Claim the first ``count`` of these cells that can be claimed; cell → fence, in their order."""
        waiting = iter(self.unfinished(cells))
        got: dict[str, int] = {}
        with self._ledger.transaction(durable=False) as db:
            self._say(db)
            for size in chain(_CHUNKS, repeat(_CHUNKS[-1])):
                chunk = list(islice(waiting, size))
                got |= self._claim(db, chunk, count - len(got))
                if len(got) >= count or not chunk:
                    break
        self._mine |= got
        return got

    def unfinished(self, cells: Iterable[str]) -> list[str]:
        """These cells less those that a claim has found finished; nothing is read."""
        return [cell for cell in cells if cell not in self._finished]

    def beat(self) -> frozenset[str]:
        """Say that this driver lives, and all its leases with it; gives the cells that others have taken since."""
        with self._ledger.transaction(durable=False) as db:
            self._say(db)
            rows = db.execute("SELECT cell, fence FROM leases WHERE driver = ?", [self.driver])
            held = {row["cell"]: row["fence"] for row in rows}
        lost = frozenset(self._mine.keys() - held.keys())
        self._mine = held
        return lost

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Beat from a thread, so that no long step of the driver's own makes it look dead."""
        done = Flag()

        def beat() -> None:
            while not done.wait(self.every):
                with suppress(RegistryError):  # somebody holds the ledger: then nobody can take a lease either
                    self.say_alive()

        thread = Thread(target=beat, name="taskloom-beat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def say_alive(self) -> None:
        """Like :meth:`beat`, without a look at what was lost."""
        with self._ledger.transaction(durable=False) as db:
            self._say(db)

    def release(self, cell: str) -> None:
        """Give a cell back; without a word if it was lost before."""
        fence = self._mine.pop(cell, 0)
        with self._ledger.transaction(durable=False) as db:
            db.execute("DELETE FROM leases WHERE cell = ? AND driver = ? AND fence = ?", [cell, self.driver, fence])

    def held(self) -> dict[str, int]:
        """Cell → fence of what this driver holds."""
        with self._ledger.snapshot() as db:
            rows = db.execute("SELECT cell, fence FROM leases WHERE driver = ? ORDER BY fence", [self.driver])
            return {row["cell"]: row["fence"] for row in rows}

    def holders(self) -> dict[str, Driver]:
        """Cell → the living driver that runs it, of all drivers."""
        with self._ledger.snapshot() as db:
            drivers = _drivers(db)
            rows = db.execute("SELECT cell, driver FROM leases ORDER BY fence").fetchall()
        living = {id: driver for id, driver in drivers.items() if driver.lives(self._machine)}
        return {row["cell"]: living[row["driver"]] for row in rows if row["driver"] in living}

    def alone(self) -> bool:
        """Whether no other driver lives in this registry."""
        with self._ledger.snapshot() as db:
            drivers = _drivers(db)
        return not any(driver.id != self.driver and driver.lives(self._machine) for driver in drivers.values())

    def close(self) -> None:
        """Give everything back."""
        if not self._known:
            return
        with self._ledger.transaction(durable=False) as db:
            db.execute("DELETE FROM drivers WHERE id = ?", [self.driver])  # and, by cascade, its leases
        self._mine, self._known = {}, False

    def _say(self, db: sqlite3.Connection) -> None:
        machine, self._known = self._machine, True
        moment = [machine.wall(), machine.uptime()]
        if db.execute("UPDATE drivers SET beat = ?, uptime = ? WHERE id = ?", [*moment, self.driver]).rowcount:
            return
        for driver in _drivers(db).values():  # a new driver clears up after those who left without a word
            if not driver.lives(machine):
                db.execute(
                    "DELETE FROM drivers WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM leases WHERE driver = ?1)",
                    (driver.id,),
                )
        me = [self.driver, machine.host, machine.pid, machine.process(), machine.boot, self._began]
        db.execute("INSERT INTO drivers VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", [*me, *moment, self.patience])

    def _claim(self, db: sqlite3.Connection, cells: list[str], count: int) -> dict[str, int]:
        marks = ", ".join("?" * len(cells))
        rows = db.execute(
            f"SELECT id, status, driver FROM cells LEFT JOIN leases ON cell = id WHERE id IN ({marks})", cells
        )
        states = {row["id"]: (row["status"], row["driver"]) for row in rows}
        others = _drivers(db)
        got: dict[str, int] = {}
        for cell in cells:
            if cell not in states:
                raise ValueError(f"cell {cell!r} cannot be claimed: no recorded grid has it")
            status, holder = states[cell]
            if status == "finished":
                self._finished.add(cell)
            elif holder is None or holder == self.driver or not others[holder].lives(self._machine):
                got[cell] = self._new_lease(db, cell)
            if len(got) == count:
                break
        return got

    def _computed(self, db: sqlite3.Connection, stages: Sequence[str]) -> set[str]:
        """Those of the stages that other living drivers compute."""
        if not stages:
            return set()
        marks, others = ", ".join("?" * len(stages)), _drivers(db)
        rows = db.execute(
            f"SELECT key, driver FROM stage_leases JOIN leases USING (cell) WHERE driver != ? AND key IN ({marks})",
            [self.driver, *stages],
        )
        return {row["key"] for row in rows if others[row["driver"]].lives(self._machine)}

    def _new_lease(self, db: sqlite3.Connection, cell: str) -> int:
        # A ledger that was put back from a copy may have forgotten fences that stand in folders.
        last = max(db.execute("SELECT last FROM fences").fetchone()[0], fence_of(self._cells / cell))
        db.execute("UPDATE fences SET last = ?", [last + 1])
        db.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?)", [cell, self.driver, last + 1])
        return int(last + 1)


def patience_of_environment() -> float:
    """Seconds of silence after which a driver counts as dead: ``TASKLOOM_PATIENCE``, or 60."""
    given = os.environ.get("TASKLOOM_PATIENCE", "")
    if not given:
        return PATIENCE
    with suppress(ValueError):
        if 0 < float(given) < float("inf"):
            return float(given)
    raise RegistryError(f"TASKLOOM_PATIENCE should be a number of seconds above 0. Found {given!r}.")


def _drivers(db: sqlite3.Connection) -> dict[str, Driver]:
    return {row["id"]: Driver(*row) for row in db.execute(f"SELECT {_DRIVER} FROM drivers")}
