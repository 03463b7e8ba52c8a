"""The driver's loop: submits cells to the engine, records their events, decides what follows. The only writer."""

import time
from collections.abc import Callable, Iterable
from dataclasses import InitVar, dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING

from taskloom.core import ENDS, Engine, Event, Job
from taskloom.core.work import append_log
from taskloom.registry.results.locks import Claims
from taskloom.registry.results.tensors import Keep, drop_checkpoints, keep_weights
from taskloom.registry.results.wording import PAUSED, format_event
from taskloom.runs.driver.schedule import Durations, Order
from taskloom.runs.driver.signals import Stop
from taskloom.runs.driver.trackers import Trackers
from taskloom.runs.driver.verdict import ATTEMPTS, Verdict, judge

if TYPE_CHECKING:
    from taskloom.registry.results.ledger import Ledger

#: Seconds that the loop waits for events before it checks everything else.
PULSE = 0.2
#: Seconds between two checks of other drivers' cells.
LOOK = 1.0
#: Least seconds for a cell's first event, whatever --timeout says: its process may have to start.
START = 120.0

Listen = Callable[[Event], None]


@dataclass
class Outcome:
    """How many cells were trained now, failed (out of memory included), were stopped, or were finished before.

    ``paused`` counts those that trained as many epochs as their jobs want for now, ``elsewhere`` those that another
    driver finished meanwhile. ``reasons`` are those of the failed cells. ``halted`` says why no further cell was begun,
    unless somebody asked for that.
    """

    finished: int = 0
    cached: int = 0
    elsewhere: int = 0
    interrupted: int = 0
    paused: int = 0
    reasons: dict[str, str] = field(default_factory=dict)
    halted: str = ""

    @property
    def failed(self) -> int:
        return len(self.reasons)


@dataclass
class Submitted:
    """A job that the engine has: when it last reported, and why this loop stopped it, if it did.

    ``micro_batch`` is how many examples of a task its steps have in memory at a time, as training last reported it.
    """

    job: Job
    last_event: float
    begun: bool = False  # it has reported something
    stop_reason: str = ""
    micro_batch: int | None = None


@dataclass
class Loop:
    """Runs jobs on an opened engine until each has ended, here or in another driver.

    ``attempts`` bounds how often a cell is tried whose worker is lost; a cell that is silent for ``timeout`` seconds
    is stopped and counts as lost. ``stop`` may ask to stop at any time. ``keep`` is what stays of a finished cell's
    weights.
    """

    jobs: InitVar[Iterable[Job]]
    engine: Engine
    ledger: "Ledger"
    claims: Claims
    trackers: Trackers = field(default_factory=Trackers)
    outcome: Outcome = field(default_factory=Outcome)
    listen: Listen = lambda event: None
    attempts: int = ATTEMPTS
    timeout: float | None = None
    stop: Stop = field(default_factory=Stop)
    keep: Keep = "best"

    def __post_init__(self, jobs: Iterable[Job]) -> None:
        self.running: dict[str, Submitted] = {}
        self.waiting: dict[str, Job] = {}  # another driver runs it, or computes the first stage that it lacks
        self.past: dict[str, list[Event]] = {}  # how earlier attempts ended
        self.durations = Durations()
        self.order = Order(jobs, self.durations)
        self._before: dict[str, tuple[str, int]] = {}  # status and attempts of a cell when this run began
        self._looked = time.monotonic()
        self._stopping = 0

    def run(self) -> None:
        """Run until every cell has ended or, after a request to stop, every running one."""
        for record in self.ledger.cells():
            self._before[record.id] = record.status, record.attempts
            if record.status == "finished":
                self.durations.learn(record.spec, record.seconds)
        while self.running or (not self._stopping and (self.order.pending or self.waiting)):
            self._pass_on_stop()
            self._submit()
            for event in self.engine.poll(PULSE):
                self._handle(event)
            self.trackers.relay()
            self._stop_silent()
            self._retry_waiting()
        self.outcome.interrupted += len(self.order.pending) + len(self.waiting)

    # Cells begin

    def _submit(self) -> None:
        while not self._stopping and self.order.pending and self.engine.free:
            busy = [*(run.job for run in self.running.values()), *self.waiting.values()]
            job = self.order.take(busy, self._is_done)
            if job is None:
                return
            if not self.claims.claim(job.cell, [key for key in job.stage_keys if not self._is_done(key)]):
                self.waiting[job.cell] = job
            elif self._ended_elsewhere(job):
                self.claims.release(job.cell)
            else:
                self.running[job.cell] = Submitted(job, time.monotonic())
                self.engine.submit(job)

    def _ended_elsewhere(self, job: Job) -> bool:
        """Whether another driver finished a cell or failed with it; a failure of before this run is tried again."""
        status, attempts = self.ledger.status(job.cell)
        failed_now = status in ("failed", "oom") and (status, attempts) != self._before[job.cell]
        if status != "finished" and not failed_now:
            return False
        record = self.ledger.cell(job.cell)
        if status == "finished":
            self.outcome.elsewhere += 1
            self.durations.learn(job.spec, record.seconds)
        else:
            self.outcome.reasons[job.cell] = str(record.reason)
        self.trackers.retell(job, self.ledger)
        self.listen(Event(status, job.cell, vars(record)))
        return True

    def _is_done(self, key: str) -> bool:
        return (self.ledger.folder / "stages" / key / "result").is_dir()

    # Cells report

    def _handle(self, event: Event) -> None:
        run = self.running.get(event.cell)
        if run is None or event.attempt != run.job.attempt:
            return  # of an abandoned attempt
        run.last_event, run.begun = time.monotonic(), True
        if event.what == "progress":
            run.micro_batch = event.facts.get("micro_batch")
        if event.what in ENDS:
            self._end(run, event)
            return
        if event.what in ("started", "resumed"):
            versions = {**event.facts.get("versions", {}), **run.job.versions}
            facts = {"attempt": run.job.attempt, "micro_batch": run.job.micro_batch, "versions": versions}
            event = replace(event, facts={**event.facts, **facts})
        self.report(run.job, event)

    def report(self, job: Job, event: Event) -> None:
        """Record an event, then pass it on; those that a resumed cell repeats go to trackers only."""
        is_news = self.ledger.write(event)
        self.trackers.tell(job, event)
        if not is_news:
            return
        if event.what != "progress" and (text := format_event(event, job.spec)):
            append_log(job.cell_folder(), f"{datetime.now():%Y-%m-%d %H:%M:%S}  {text}")
        self.listen(event)

    def _end(self, run: Submitted, event: Event) -> None:
        """Record how an attempt ended, and do what follows from it."""
        job, facts = run.job, dict(event.facts)
        if "traceback" in facts:
            append_log(job.cell_folder(), facts.pop("traceback"))
        if run.stop_reason and event.what == "lost":
            facts["reason"] = run.stop_reason
        if event.what != "finished":  # an engine whose worker was killed knows only what the job says
            reported = run.micro_batch if event.what == "oom" else None
            sizes = (facts.get("micro_batch"), job.micro_batch, reported)
            facts["micro_batch"] = min(filter(None, sizes), default=None)
        event = replace(event, facts=facts)
        past = self.past.setdefault(job.cell, [])
        verdict = judge(event, past, attempts=self.attempts)
        self._follow(job, event, verdict)
        past.append(event)
        del self.running[job.cell]
        self.order.learn()
        if job.cell not in self.order.pending:
            self.claims.release(job.cell)
        if verdict.halt and not self._stopping:
            self.outcome.halted = verdict.reason
            self.stop()

    def _follow(self, job: Job, event: Event, verdict: Verdict) -> None:
        """Carry out a verdict. The ledger comes first: if writing fails, nothing else has happened."""
        facts, again = event.facts, {"again": True, "next_micro_batch": verdict.micro_batch}
        match verdict.how:
            case "again" if not self._stopping:
                again |= {"attempt": job.attempt + 1, "attempts": self.attempts}
                self.report(job, replace(event, facts={**facts, **again}))
                self.order.add(replace(job, attempt=job.attempt + 1, micro_batch=verdict.micro_batch))
            case "again" | "interrupted":
                self.report(job, replace(event, facts={**facts, **again}) if event.what == "oom" else event)
                self.outcome.interrupted += 1
            case "paused":
                epochs = f"{job.pause} of {job.spec['stages'][-1]['epochs']} epochs"
                self.report(job, replace(event, facts={**facts, "reason": f"{PAUSED} after {epochs}"}))
                self.outcome.paused += 1
            case "finished":
                self.report(job, event)
                drop_checkpoints(job.cell_folder())
                keep_weights(job.cell_folder(), self.keep)
                self.outcome.finished += 1
                self.durations.learn(job.spec, facts.get("seconds"))
            case "failed" | "oom":
                self.report(job, replace(event, what=verdict.how, facts={**facts, "reason": verdict.reason}))
                self.outcome.reasons[job.cell] = verdict.reason

    # What comes from outside

    def _pass_on_stop(self) -> None:
        """Ask the cells to stop if this driver was asked to."""
        requests = min(self.stop.asked, 2)
        if requests > self._stopping:
            self._stopping = requests
            if self.running and not self.outcome.halted:
                first_message = "Stopping: the running cells write a checkpoint. Another Ctrl-C ends them at once."
                self.stop.say(first_message if requests == 1 else "Ending at once.")
            self.engine.stop(at_once=requests > 1)

    def _stop_silent(self) -> None:
        """Stop cells without an event for too long."""
        if self.timeout is None:
            return
        now = time.monotonic()
        for cell, run in self.running.items():
            if not run.begun and self.engine.queued(cell):
                run.last_event = now
            limit = self.timeout if run.begun else max(self.timeout, START)
            if now - run.last_event > limit and not run.stop_reason:
                run.stop_reason = f"no progress for {limit:g} s (--timeout)"
                self.engine.stop(cell, at_once=True)

    def _retry_waiting(self) -> None:
        """Count cells that other drivers ended; make the others pending again."""
        if time.monotonic() - self._looked >= LOOK:
            self._looked = time.monotonic()
            for job in self.waiting.values():
                if not self._ended_elsewhere(job):
                    self.order.add(job)
            self.waiting.clear()
