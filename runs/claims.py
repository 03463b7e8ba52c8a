"""Cells that several drivers share: claim one before it is run, and wait for those that others run."""

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from taskloom.core.events import Event, Job
from taskloom.registry.artifacts import Artifacts, claim_folder
from taskloom.registry.leases import Leases

if TYPE_CHECKING:
    from taskloom.registry.ledger import Ledger

#: Seconds between two looks at what other drivers do.
LOOK = 1.0


class Claims:
    """What this driver holds, and what it waits for because another driver runs it."""

    def __init__(self, ledger: "Ledger", leases: Leases) -> None:
        self.waiting: dict[str, Job] = {}
        self._ledger, self._leases = ledger, leases
        self._artifacts = Artifacts(ledger.folder)
        self._seen: dict[str, tuple[str, int]] = {}  # how a cell stood when another driver was found to have it
        self._looked = self._beaten = time.monotonic()

    def claim(self, job: Job) -> Job | None:
        """The job with the number of its lease; ``None`` if another driver has it, which is then waited for."""
        fence = self._leases.claim(job.cell)
        if fence is None:
            self.wait_for(job)
            return None
        claim_folder(self._artifacts.cell(job.cell), fence)
        return replace(job, fence=fence)

    def wait_for(self, job: Job) -> None:
        """Another driver has this cell."""
        record = self._ledger.cell(job.cell)
        self._seen[job.cell] = (record.status, record.attempts)
        self.waiting[job.cell] = job

    def release(self, cell: str) -> None:
        """The cell is done with."""
        self._leases.release(cell)

    def lost(self) -> frozenset[str]:
        """Says that this driver lives, every few seconds; gives the cells that others have taken."""
        if time.monotonic() - self._beaten < self._leases.every:
            return frozenset()
        self._beaten = time.monotonic()
        return self._leases.beat()

    def look(self) -> list[tuple[Job, Event | None]]:
        """The cells that need not be waited for any longer: with their end, or ``None`` if they can be taken up."""
        if not self.waiting or time.monotonic() - self._looked < LOOK:
            return []
        self._looked = time.monotonic()
        held = self._leases.holders()
        done = []
        for cell, job in list(self.waiting.items()):
            record = self._ledger.cell(cell)
            if record.status == "finished":
                facts = {"scores": record.scores, "seconds": record.seconds, "best_epoch": record.best_epoch}
                done.append((job, Event("finished", cell, {**facts, "peak_memory": record.peak_memory})))
            elif cell in held:
                continue
            elif record.status in ("failed", "oom") and self._tried_since(cell, record.attempts):
                done.append((job, Event(record.status, cell, {"reason": record.reason})))
            else:
                done.append((job, None))
            del self.waiting[cell]
        return done

    def _tried_since(self, cell: str, attempts: int) -> bool:
        """Whether the failure is news, not the one that this run is to try again."""
        status, before = self._seen[cell]
        return attempts > before or status == "running"
