"""Cells that several drivers share: claim one before it is run, and wait for those that others run."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from taskloom.core.events import Event, Job
from taskloom.registry.results.artifacts import Artifacts, claim_folder
from taskloom.registry.results.leases import Leases
from taskloom.registry.results.records import CellRecord

if TYPE_CHECKING:
    from taskloom.registry.results.ledger import Ledger

#: Seconds between two looks at what other drivers do.
LOOK = 1.0


class Claims:
    """What this driver holds, and what it waits for because another driver runs it."""

    def __init__(self, ledger: "Ledger", leases: Leases) -> None:
        self.waiting: dict[str, Job] = {}
        self._ledger, self._leases = ledger, leases
        self._artifacts = Artifacts(ledger.folder)
        self._seen: dict[str, tuple[str, int]] = {}  # status and attempts of a cell before this run
        self._looked = self._beaten = time.monotonic()

    def remember(self, records: Iterable[CellRecord]) -> None:
        """How cells stand before this run: what fails from now on is not to be tried again."""
        self._seen = {record.id: (record.status, record.attempts) for record in records}

    def claim(self, job: Job, stages: Sequence[str] = ()) -> Job | None:
        """The job with the number of its lease; ``None`` if another driver has or had it, as :meth:`look` tells.

        ``stages`` are the keys of the stages that it lacks. While another driver computes the first of them the job
        waits for that: :meth:`look` gives it back now and then to be tried again.
        """
        fence = self._leases.claim(job.cell, stages)
        if fence is None:
            self.waiting[job.cell] = job
            return None
        if job.attempt == 1 and self._failed_since(self._ledger.cell(job.cell)):
            self._leases.release(job.cell)
            self.waiting[job.cell] = job
            return None
        claim_folder(self._artifacts.cell(job.cell), fence)
        return replace(job, fence=fence)

    def give_up(self, job: Job) -> None:
        """Another driver has taken this cell from us; it is waited for."""
        self._seen[job.cell] = ("running", 0)
        self.waiting[job.cell] = replace(job, attempt=1)

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
        done: list[tuple[Job, Event | None]] = []
        for cell, job in list(self.waiting.items()):
            record = self._ledger.cell(cell)
            if record.status == "finished":
                facts = {"scores": record.scores, "seconds": record.seconds, "best_epoch": record.best_epoch}
                done.append((job, Event("finished", cell, {**facts, "peak_memory": record.peak_memory})))
            elif cell in held:
                continue
            elif self._failed_since(record):
                done.append((job, Event(record.status, cell, {"reason": record.reason})))
            else:
                done.append((job, None))
            del self.waiting[cell]
        return done

    def _failed_since(self, record: CellRecord) -> bool:
        """Whether another driver failed with a cell meanwhile: not the failure that this run is to try again."""
        status, attempts = self._seen.get(record.id, ("planned", 0))
        return record.status in ("failed", "oom") and (record.attempts > attempts or status == "running")
