"""The drive loop: hand cells to the engine, write down what they report, decide what follows. The only writer."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from taskloom.core import ENDS, Engine, Event, Job
from taskloom.registry.artifacts import Artifacts
from taskloom.runs.checkpoint import drop_checkpoints
from taskloom.runs.engines import cell_log
from taskloom.runs.schedule import Durations, longest_first, next_job
from taskloom.runs.signals import Stop
from taskloom.runs.track import tell_trackers
from taskloom.runs.verdict import ATTEMPTS, Attempt, judge

if TYPE_CHECKING:
    from taskloom.registry.ledger import Ledger
    from taskloom.registry.manager import Plugins

#: Seconds that the loop waits for events before it looks around.
PULSE = 0.2

Listen = Callable[[Event], None]


@dataclass
class Outcome:
    """What became of a plan's cells: trained now, failed (for want of memory too), stopped, or there already."""

    finished: int = 0
    failed: int = 0
    cached: int = 0
    interrupted: int = 0
    reasons: dict[str, str] = field(default_factory=dict)  # of the cells that failed
    halted: str = ""  # why no further cell was begun

    def fail(self, cell: str, reason: str) -> None:
        self.failed += 1
        self.reasons[cell] = reason


class Loop:
    """Runs jobs on an opened engine until each has ended.

    ``attempts`` bounds how often a cell is tried whose worker is lost; a cell that is silent for ``timeout`` seconds
    is stopped and counts as lost. ``stop`` may ask to stop at any time.
    """

    def __init__(
        self,
        jobs: Iterable[Job],
        engine: Engine,
        ledger: "Ledger",
        plugins: "Plugins",
        outcome: Outcome,
        *,
        listen: Listen = lambda event: None,
        attempts: int = ATTEMPTS,
        timeout: float | None = None,
        stop: Stop | None = None,
    ) -> None:
        self.engine, self.ledger, self.plugins, self.outcome = engine, ledger, plugins, outcome
        self.listen, self.attempts, self.timeout = listen, attempts, timeout
        self.stop = stop or Stop()
        self.pending = {job.cell: job for job in jobs}
        self.running: dict[str, Job] = {}
        self.past: dict[str, list[Attempt]] = {}
        self.artifacts = Artifacts(ledger.folder)
        self.durations = Durations()
        self._order: list[Job] | None = None
        self._heard: dict[str, float] = {}  # when a running cell last said something
        self._silenced: dict[str, str] = {}  # cells that this loop stopped, and why
        self._stopping = 0

    def run(self) -> None:
        for record in self.ledger.cells():
            if record.status == "finished":
                self.durations.learn(record.spec, record.seconds)
        while self.running or (self.pending and not self._stopping):
            self._heed()
            self._submit()
            for event in self.engine.poll(PULSE):
                self._hear(event)
            self._end_silent()
        self.outcome.interrupted += len(self.pending)

    def _heed(self) -> None:
        """Pass on to the cells that somebody asked to stop."""
        asked = min(self.stop.asked, 2)
        if asked > self._stopping:
            self._stopping = asked
            self.engine.stop(at_once=asked > 1)

    def _submit(self) -> None:
        while not self._stopping and self.pending and self.engine.free:
            if self._order is None:
                self._order = longest_first(self.pending.values(), self.durations)
            job = next_job(self._order, self.running.values(), self._is_done)
            if job is None:
                return
            del self.pending[job.cell]
            self._order.remove(job)
            self.running[job.cell] = job
            self._heard[job.cell] = time.monotonic()
            self.engine.submit(job)

    def _is_done(self, key: str) -> bool:
        return (self.artifacts.folder / "stages" / key / "result").is_dir()

    def _hear(self, event: Event) -> None:
        job = self.running.get(event.cell)
        if job is None or event.fence != job.fence:
            return  # the last words of an attempt that was given up
        self._heard[event.cell] = time.monotonic()
        if event.what in ENDS:
            self._end(job, event)
            return
        if event.what in ("started", "resumed"):
            event.facts["versions"] = {**event.facts.get("versions", {}), **job.versions}
        self._tell(job, event)

    def _tell(self, job: Job, event: Event) -> None:
        """Write an event down, then tell everybody."""
        self.ledger.write(event)
        for problem in tell_trackers(self.plugins, event, job):
            self.listen(Event("log", event.cell, {"message": problem}))
        self.listen(event)

    def _note(self, job: Job, text: str) -> None:
        self._tell(job, Event("log", job.cell, {"message": text}, job.fence))

    def _end(self, job: Job, event: Event) -> None:
        """An attempt has ended: finish the cell, or try it again."""
        cell, facts = job.cell, event.facts
        if cell in self._silenced and event.what == "lost":
            facts["reason"] = self._silenced[cell]
        if "traceback" in facts:
            cell_log.append(self.artifacts.cell(cell), facts.pop("traceback"))
        if event.what in ("lost", "interrupted"):
            facts["micro_batch"] = job.micro_batch
        past = self.past.setdefault(cell, [])
        verdict = judge(event, past, job.spec, attempts=self.attempts)
        past.append(Attempt(event.what, str(facts.get("reason", "")), facts.get("micro_batch")))
        self._silenced.pop(cell, None)
        self._heard.pop(cell, None)
        del self.running[cell]
        match verdict.how:
            case "finished":
                self._tell(job, event)
                drop_checkpoints(self.artifacts.cell(cell))
                self.outcome.finished += 1
                self.durations.learn(job.spec, facts.get("seconds"))
                self._order = None
            case "failed" | "oom":
                self._tell(job, Event("failed", cell, {"reason": verdict.reason}, event.fence))
                self.outcome.fail(cell, verdict.reason)
            case "interrupted":
                self.outcome.interrupted += 1
            case "again" if self._stopping:
                self.outcome.interrupted += 1
            case "again":
                self._again(replace(job, attempt=job.attempt + 1, micro_batch=verdict.micro_batch), event)
        if verdict.halt and not self._stopping:
            self.outcome.halted = verdict.reason
            self.stop()

    def _again(self, job: Job, event: Event) -> None:
        self.pending[job.cell] = job
        self._order = None
        reason = event.facts.get("reason", "")
        if event.what == "oom":
            self._note(job, f"out of memory; goes on with micro-batches of {job.micro_batch} ({reason})")
        else:
            self._note(job, f"{reason}; goes on from its last checkpoint, attempt {job.attempt}")

    def _end_silent(self) -> None:
        """Stop the cells that said nothing for too long."""
        if self.timeout is None:
            return
        now = time.monotonic()
        for cell, heard in list(self._heard.items()):
            if now - heard > self.timeout and cell not in self._silenced:
                self._silenced[cell] = f"said nothing for {self.timeout:g} s (--timeout)"
                self.engine.stop(cell, at_once=True)
