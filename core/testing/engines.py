"""Laws of engines, judged by what is reported in one short session of jobs that take no time."""

import tempfile
import time
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from taskloom.core.engine import ENDS, Emit, Engine, Event, Job
from taskloom.core.testing.law import given, law, require
from taskloom.core.testing.specimens import RAISED, Specimen

WORK = f"{__name__}:work"
STEPS = 5
#: Seconds after which a job that waits to be stopped gives up, so that no process is left behind.
GIVE_UP = 300.0
#: Seconds without any event after which a job counts as hung.
LIMIT = 120.0
#: Seconds within which a job of a closed engine should end, and without a beat after which it counts as ended.
OUTLIVED, QUIET = 20.0, 2.0
#: Cell → what its job does; more jobs than most engines run at once.
MIXED = {"a": "count", "b": "raise", "c": "silent", "d": "talkative", "e": "count", "f": "raise", "g": "count"}


def work(job: Job, emit: Emit) -> None:
    """Do what ``spec["do"]`` says.

    ``count`` reports steps, ``talkative`` reports more after its end, ``raise`` and ``silent`` end badly. ``wait`` runs
    until it is asked to stop and counts in a file, which shows whether it still runs.
    """
    emit(Event("started", job.cell))
    do = job.spec["do"]
    if do == "raise":
        raise ValueError(f"{job.cell} should fail")
    if do == "silent":
        return
    if do == "wait":
        until, beats = time.monotonic() + GIVE_UP, 0
        while not emit.stop_asked and time.monotonic() < until:
            beats += 1
            _beat_file(job).write_text(str(beats))
            time.sleep(0.005)
        emit(Event("interrupted", job.cell))
        return
    for step in range(STEPS):
        emit(Event("log", job.cell, _facts_of(step)))
    emit(Event("finished", job.cell, {"scores": {"one": 0.5}}))
    if do == "talkative":
        emit(Event("log", job.cell, {"text": "after the end"}))
        emit(Event("failed", job.cell, {"reason": "a second end"}))


def _beat_file(job: Job) -> Path:
    """The file in which a job that waits counts."""
    return Path(job.folder) / f"{job.cell}.beats"


def _facts_of(step: int) -> dict[str, object]:
    """Facts of every JSON type."""
    text = "ü “quoted”\nline"
    return {"step": step, "text": text, "share": step / 7, "none": None, "list": [1, [True]], "map": {"a": {}}}


class Session:
    """What happened in a session: events in order, how many more jobs it takes, and the exception, if any."""

    def __init__(self, engine: Engine, folder: str) -> None:
        self.engine, self.folder = engine, folder
        self.events: list[Event] = []
        self.jobs: dict[str, Job] = {}
        self.free: list[tuple[int, int]] = []  # jobs running, ``free`` at that time
        self.free_when_idle = 0  # after the last job
        self.stops: dict[str, list[str]] = {}  # call of stop → the ends that were reported
        self.outlived = False  # whether a job went on after the engine was closed
        self.error: BaseException | None = None
        engine.check()
        engine.open(WORK, Path(folder))

    def of(self, cell: str) -> list[Event]:
        return [event for event in self.events if event.cell == cell]

    def ends_of(self, *cells: str) -> list[str]:
        return [f"{event.cell}: {event.what}" for event in self.events if event.cell in cells and event.what in ENDS]

    def submit(self, do: str, *cells: str) -> None:
        for cell in cells:
            self.jobs[cell] = Job(cell, f"row {cell}", 0, {"do": do}, self.folder, attempt=11 + len(self.jobs))
            self.engine.submit(self.jobs[cell])

    def wait(self, until: str, *cells: str) -> None:
        """Poll until each of the cells has reported this event (``end``: one of the ending events)."""
        words = ENDS if until == "end" else {until, *ENDS}
        last = time.monotonic()
        while any(not any(event.what in words for event in self.of(cell)) for cell in cells):
            events = self.engine.poll(0.5)
            self.events += events
            last = time.monotonic() if events else last
            if time.monotonic() - last > LIMIT:
                does = ", ".join(f"{cell} does {self.jobs[cell].spec['do']!r}" for cell in cells)
                reported = [f"{event.cell}: {event.what}" for event in self.events[-5:]]
                missing = f"after {LIMIT:g} s without an event, {cells} have no {until!r}"
                raise AssertionError(f"{missing}; {does}; the last events are {reported}")

    def run_mixed(self) -> None:
        """Jobs of every sort, at most two at once: an engine may start a process for each."""
        engine = self.engine
        self.events += engine.poll(0)
        at_once = min(2, max(1, engine.free))
        self.free.append((0, engine.free))
        waiting, running = deque(MIXED.items()), list[str]()
        while waiting or running:
            while waiting and len(running) < at_once:
                cell, do = waiting.popleft()
                self.submit(do, cell)
                time.sleep(0.02)  # so that several events wait for the next poll
                running.append(cell)
                self.free.append((len(running), engine.free))
            self.wait("end", running[0])
            running = [cell for cell in running if not self.ends_of(cell)]
        self.free_when_idle = engine.free
        self.events += engine.poll(0.05)

    def stop_some(self) -> None:
        """Jobs that run until they are stopped: one of two, all, one at once, and one at the end by closing."""
        pair = ("one", "other") if self.free_when_idle > 1 else ("one",)
        self.submit("wait", *pair)
        self.wait("started", *pair)
        self.engine.stop("one")
        self.wait("end", "one")
        self.stops["stop('one')"] = self.ends_of(*pair)
        self.engine.stop()
        self.wait("end", *pair)
        self.stops["stop()"] = self.ends_of(*pair)
        self.submit("wait", "third")
        self.wait("started", "third")
        self.engine.stop("third", at_once=True)
        self.wait("end", "third")
        self.stops["stop('third', at_once=True)"] = self.ends_of("third")
        self.submit("wait", "last")
        self.wait("started", "last")
        self.engine.close()
        self.outlived = self._outlives(self.jobs["last"])

    def _outlives(self, job: Job) -> bool:
        """Whether a job still counts, ``OUTLIVED`` seconds after the engine was closed."""
        closed_at = last_beat_at = time.monotonic()
        last_count = ""
        while time.monotonic() - closed_at < OUTLIVED:
            beats = _beat_file(job).read_text() if _beat_file(job).exists() else ""
            if beats not in ("", last_count):  # empty: just being written
                last_count, last_beat_at = beats, time.monotonic()
            elif time.monotonic() - last_beat_at > QUIET:
                return False
            time.sleep(0.05)
        return True


@lru_cache(maxsize=4)
def _finished(specimen: Specimen) -> Session:
    """The session, run once for all laws; it may have ended with an error."""
    engine: Engine = specimen.make()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            session = Session(engine, folder)
            try:
                session.run_mixed()
                session.stop_some()
            except RAISED as error:
                session.error = error
            return session
        finally:
            engine.close()


def _session(specimen: Specimen) -> Session:
    session = _finished(specimen)
    if session.error is not None:
        raise session.error
    return session


def _jobs(specimen: Specimen) -> Iterator[tuple[str, tuple[Session, str]]]:
    """The cells whose jobs should end by themselves."""
    session = _session(specimen)
    yield from ((f"a job that does {do!r}", (session, cell)) for cell, do in MIXED.items())


@law("engine", cases=_jobs)
def every_job_ends_with_exactly_one_event(_: Specimen, job: tuple[Session, str]) -> None:
    """It is the last one, also where the work reports no end or reports more after it; a failure says why."""
    session, cell = job
    events = session.of(cell)
    reported = [event.what for event in events]
    require(sum(word in ENDS for word in reported) == 1 and reported[-1] in ENDS, f"its events are {reported}")
    expected = "failed" if MIXED[cell] in ("raise", "silent") else "finished"
    require(reported[-1] == expected, f"it ends as {reported[-1]!r}, not as {expected!r}")
    if MIXED[cell] == "raise":
        raised, reason = f"{cell} should fail", str(events[-1].facts.get("reason"))
        require(raised in reason, f"the reason should hold {raised!r}. Found {reason!r}.")


@law("engine", cases=_jobs)
def events_of_a_job_come_in_order_and_whole(_: Specimen, job: tuple[Session, str]) -> None:
    """And there are no others."""
    session, cell = job
    strangers = sorted({event.cell for event in session.events} - set(session.jobs))
    require(not strangers, f"there are events of {strangers}, which nobody submitted")
    if MIXED[cell] in ("count", "talkative"):
        logs = [event.facts for event in session.of(cell) if event.what == "log"]
        require(len(logs) == STEPS, f"there are {len(logs)} logs, not {STEPS}")
        for step, facts in enumerate(logs):
            require(facts == _facts_of(step), f"log {step} is {facts}, not {_facts_of(step)}")
        require(session.of(cell)[0].what == "started", f"the first event is {session.of(cell)[0].what!r}")


@law("engine")
def events_carry_the_attempt_of_their_job(specimen: Specimen) -> None:
    session = _session(specimen)
    for cell, job in session.jobs.items():
        for event in session.of(cell):
            with given(f"a job of attempt {job.attempt}"):
                require(event.attempt == job.attempt, f"its event {event.what!r} has {event.attempt}")


@law("engine")
def free_is_how_many_more_jobs_it_takes(specimen: Specimen) -> None:
    """At least one when nothing runs, and one less for each job that does."""
    session = _session(specimen)
    idle = session.free_when_idle
    for running, free in [*session.free, (0, idle)]:
        with given(f"{running} jobs running"):
            if running:
                require(free == idle - running, f"free is {free}; with none running it is {idle}")
            else:
                require(free >= 1, f"free should be at least 1. Found {free}.")


@law("engine")
def a_job_that_is_stopped_is_interrupted_or_lost(specimen: Specimen) -> None:
    """Interrupted if it was asked to stop, and it alone (without a name all are asked); lost if at once."""
    session = _session(specimen)
    every = [f"{cell}: interrupted" for cell in ("one", "other") if cell in session.jobs]
    for (call, ends), expected in zip(session.stops.items(), (every[:1], every, ["third: lost"]), strict=True):
        with given(call):
            require(sorted(ends) == expected, f"jobs end as {ends}")
    reasons = [event.facts.get("reason") for event in session.of("third") if event.what == "lost"]
    require(all(reasons), "a job that is lost should say why in facts['reason']")


@law("engine")
def closing_ends_what_still_runs(specimen: Specimen) -> None:
    """It may be closed twice, and if it was never opened."""
    require(not _session(specimen).outlived, f"{OUTLIVED:g} s after close() a job that waits to be stopped still runs")
    with given("an engine that was never opened"):
        specimen.make().close()
