"""Laws of engines. Two small sessions are run, of jobs that take no time; the laws look at what was reported."""

import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from taskloom.core.engine import ENDS, Emit, Engine, Event, Job
from taskloom.core.testing.law import law
from taskloom.core.testing.require import given, require
from taskloom.core.testing.subjects import RAISED, Subject

WORK = f"{__name__}:work"
STEPS = 5
#: Seconds after which a job that waits to be stopped gives up, so that nothing is left behind.
GIVE_UP = 300.0
#: Seconds without any event after which a job counts as hung.
LIMIT = 120.0
#: Seconds after which a job of a closed engine should have ended, and for which one that has ended does nothing.
OUTLIVED, QUIET = 20.0, 2.0
#: Cell → what its job does; more than most engines take at once.
MIXED = {"a": "count", "b": "raise", "c": "silent", "d": "talkative", "e": "count", "f": "raise", "g": "count"}


def work(job: Job, emit: Emit) -> None:
    """What a job does is in its ``spec["do"]``.

    ``count`` reports steps, ``talkative`` goes on after its end, ``wait`` goes on until it is asked to stop, ``raise``
    and ``silent`` end badly. One that waits counts in a file, so that it can be seen whether it is still there.
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
    """Where a job that waits counts."""
    return Path(job.folder) / f"{job.cell}.beats"


def _facts_of(step: int) -> dict[str, object]:
    """Facts of every JSON type."""
    text = "ü “quoted”\nline"
    return {"step": step, "text": text, "share": step / 7, "none": None, "list": [1, [True]], "map": {"a": {}}}


@dataclass
class Session:
    """What happened in a session: events in order, what the engine said of itself, what it raised."""

    folder: str = ""  # a registry's, while it lasts
    events: list[Event] = field(default_factory=list)
    jobs: dict[str, Job] = field(default_factory=dict)
    slots: list[int] = field(default_factory=list)  # before it was opened, and after
    free: list[tuple[str, int, int]] = field(default_factory=list)  # when, found, expected
    described: object = ""
    stops: dict[str, list[str]] = field(default_factory=dict)  # what was asked → the ends that were reported
    outlived: bool = False  # whether a job went on after the engine was closed
    error: BaseException | None = None

    def of(self, cell: str) -> list[Event]:
        return [event for event in self.events if event.cell == cell]

    def ends(self) -> list[str]:
        return [f"{event.cell}: {event.what}" for event in self.events if event.what in ENDS]


@contextmanager
def _opened(subject: Subject, session: Session) -> Iterator[Engine]:
    engine: Engine = subject.make()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        session.folder = folder
        try:
            engine.check()
            session.slots.append(engine.slots)
            engine.open(WORK, Path(folder))
            session.slots.append(engine.slots)
            yield engine
            engine.close()
        except RAISED as error:
            session.error = error
            engine.close()


def _submit(engine: Engine, session: Session, cell: str, do: str) -> None:
    job = Job(cell, f"row {cell}", 0, {"do": do}, session.folder, attempt=11 + len(session.jobs))
    session.jobs[cell] = job
    engine.submit(job)


def _wait(engine: Engine, session: Session, until: str, *cells: str) -> None:
    """Poll until each of the cells has reported this event (``end``: one of the ending events)."""
    words = ENDS if until == "end" else {until, *ENDS}
    last = time.monotonic()
    while any(not any(event.what in words for event in session.of(cell)) for cell in cells):
        found = engine.poll(0.5)
        session.events += found
        last = time.monotonic() if found else last
        if time.monotonic() - last > LIMIT:
            does = ", ".join(f"{cell} does {session.jobs[cell].spec['do']!r}" for cell in cells)
            reported = [f"{event.cell}: {event.what}" for event in session.events[-5:]]
            with given(f"jobs of which {does}"):
                missing = f"after {LIMIT:g} s without an event, {cells} have no {until!r}"
                raise AssertionError(f"{missing}; the last events are {reported}")


@lru_cache(maxsize=4)
def _mixed(subject: Subject) -> Session:
    """Jobs of every sort, as many at once as the engine takes (at most two: an engine may start a process for each)."""
    session = Session()
    with _opened(subject, session) as engine:
        session.described = engine.describe()
        session.events += engine.poll(0)
        session.free.append(("before the first job", engine.free, engine.slots))
        waiting, running = deque(MIXED.items()), list[str]()
        while waiting or running:
            while waiting and len(running) < min(2, engine.slots):
                cell, do = waiting.popleft()
                _submit(engine, session, cell, do)
                time.sleep(0.02)  # so that several events wait for the next poll
                running.append(cell)
                session.free.append((f"with {len(running)} running", engine.free, engine.slots - len(running)))
            _wait(engine, session, "end", running[0])
            running = [cell for cell in running if not any(event.what in ENDS for event in session.of(cell))]
        session.free.append(("after the last job", engine.free, engine.slots))
        session.events += engine.poll(0.05)
    return session


@lru_cache(maxsize=4)
def _stopped(subject: Subject) -> Session:
    """Jobs that go on until they are stopped: one of two, all, one at once, and one at the end by closing."""
    session = Session()
    with _opened(subject, session) as engine:
        pair = ("a", "b") if engine.slots > 1 else ("a",)
        for cell in pair:
            _submit(engine, session, cell, "wait")
        _wait(engine, session, "started", *pair)
        engine.stop("a")
        _wait(engine, session, "end", "a")
        session.stops["stop('a')"] = session.ends()
        engine.stop()
        _wait(engine, session, "end", *pair)
        session.stops["stop()"] = session.ends()
        _submit(engine, session, "c", "wait")
        _wait(engine, session, "started", "c")
        engine.stop("c", at_once=True)
        _wait(engine, session, "end", "c")
        session.stops["stop('c', at_once=True)"] = [end for end in session.ends() if end.startswith("c")]
        _submit(engine, session, "d", "wait")
        _wait(engine, session, "started", "d")
        engine.close()
        session.outlived = _outlives(session.jobs["d"])
    return session


def _outlives(job: Job) -> bool:
    """Whether a job still counts, ``OUTLIVED`` seconds after the engine was closed."""
    begun = moved = time.monotonic()
    seen = ""
    while time.monotonic() - begun < OUTLIVED:
        now = _beat_file(job).read_text() if _beat_file(job).exists() else ""
        if now not in ("", seen):  # empty: just being written
            seen, moved = now, time.monotonic()
        elif time.monotonic() - moved > QUIET:
            return False
        time.sleep(0.05)
    return True


def _sound(session: Session) -> Session:
    if session.error is not None:
        raise session.error
    return session


def _jobs(subject: Subject) -> Iterator[tuple[str, str]]:
    """The cells whose jobs should end by themselves."""
    _sound(_mixed(subject))
    yield from ((f"a job that does {do!r}", cell) for cell, do in MIXED.items())


@law("engine", cases=_jobs)
def every_job_ends_with_exactly_one_event(subject: Subject, cell: str) -> None:
    """As its last one, also where the work says nothing of its end or goes on after it; a failure says why."""
    events = _mixed(subject).of(cell)
    reported = [event.what for event in events]
    require(sum(what in ENDS for what in reported) == 1 and reported[-1] in ENDS, f"its events are {reported}")
    expected = "failed" if MIXED[cell] in ("raise", "silent") else "finished"
    require(reported[-1] == expected, f"it ends as {reported[-1]!r}, not as {expected!r}")
    if MIXED[cell] == "raise":
        raised, reason = f"{cell} should fail", str(events[-1].facts.get("reason"))
        require(raised in reason, f"the reason should hold {raised!r}. Found {reason!r}.")


@law("engine", cases=_jobs)
def events_of_a_job_come_in_order_and_whole(subject: Subject, cell: str) -> None:
    """And there are no others."""
    session = _mixed(subject)
    strangers = sorted({event.cell for event in session.events} - set(MIXED))
    require(not strangers, f"there are events of {strangers}, which nobody submitted")
    if MIXED[cell] in ("count", "talkative"):
        logs = [event.facts for event in session.of(cell) if event.what == "log"]
        require(len(logs) == STEPS, f"there are {len(logs)} logs, not {STEPS}")
        for step, facts in enumerate(logs):
            require(facts == _facts_of(step), f"log {step} is {facts}, not {_facts_of(step)}")
        require(session.of(cell)[0].what == "started", f"the first event is {session.of(cell)[0].what!r}")


@law("engine")
def events_carry_the_attempt_of_their_job(subject: Subject) -> None:
    for session in (_sound(_mixed(subject)), _sound(_stopped(subject))):
        for event in session.events:
            attempt = session.jobs[event.cell].attempt if event.cell in session.jobs else event.attempt
            with given(f"a job of attempt {attempt}"):
                require(event.attempt == attempt, f"its event {event.what!r} has {event.attempt}")


@law("engine")
def it_says_where_it_runs_and_how_many_jobs(subject: Subject) -> None:
    session = _sound(_mixed(subject))
    for when, slots in zip(("before it is opened", "when it is open"), session.slots, strict=True):
        require(slots >= 1, f"{when}: slots should be 1 or more. Found {slots}.")
    for when, found, expected in session.free:
        require(found == expected, f"{when}: free is {found}, not {expected}")
    line = session.described
    sound = isinstance(line, str) and bool(line.strip()) and "\n" not in line
    require(sound, f"describe() should give one line. Found {line!r}.")


@law("engine")
def a_job_that_is_stopped_is_interrupted_or_lost(subject: Subject) -> None:
    """Interrupted if it was asked to stop, and it alone (without a name all are asked); lost if at once."""
    session = _sound(_stopped(subject))
    every = [f"{cell}: interrupted" for cell in ("a", "b") if cell in session.jobs]
    for asked, expected in (("stop('a')", every[:1]), ("stop()", every), ("stop('c', at_once=True)", ["c: lost"])):
        with given(asked):
            require(sorted(session.stops[asked]) == expected, f"jobs end as {session.stops[asked]}")
    reasons = [event.facts.get("reason") for event in session.of("c") if event.what == "lost"]
    require(all(reasons), "a job that is lost should say why in facts['reason']")


@law("engine")
def closing_ends_what_still_runs(subject: Subject) -> None:
    """It may be closed twice, and if it was never opened."""
    with given("a job that goes on until it is stopped"):
        require(not _sound(_stopped(subject)).outlived, f"{OUTLIVED:g} s after close() it still runs")
    with given("an engine that was never opened"):
        subject.make().close()
