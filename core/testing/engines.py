"""Laws of engines. Two small sessions are run, of jobs that take no time; the laws look at what was reported."""

import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from taskloom.core.engine import Engine
from taskloom.core.events import ENDS, Event, Job
from taskloom.core.testing.jobs import STEPS, WORK, beat_file, facts_of
from taskloom.core.testing.law import RAISED, Subject, given, require

#: Seconds without any event after which a job counts as hung.
LIMIT = 120.0
#: Seconds after which a job of a closed engine should have ended, and for which one that has ended does nothing.
OUTLIVED, QUIET = 20.0, 2.0
#: Cell → what its job does; more than most engines take at once.
MIXED = {"a": "count", "b": "raise", "c": "silent", "d": "talkative", "e": "count", "f": "raise", "g": "count"}


@dataclass
class Session:
    """What happened in a session: events in order, what the engine said of itself, what it raised."""

    folder: str = ""  # a registry's, while it lasts
    events: list[Event] = field(default_factory=list)
    jobs: dict[str, Job] = field(default_factory=dict)
    early: int = 0  # slots before it was opened
    slots: int = 0
    free: list[tuple[str, int, int]] = field(default_factory=list)  # when, found, expected
    idle: list[Event] = field(default_factory=list)
    described: object = ""
    stops: dict[str, list[str]] = field(default_factory=dict)  # what was asked → the ends that were reported
    outlived: bool = False  # whether a job went on after the engine was closed
    error: BaseException | None = None

    def of(self, cell: str) -> list[Event]:
        return [event for event in self.events if event.cell == cell]


@contextmanager
def _opened(subject: Subject, session: Session) -> Iterator[Engine]:
    engine: Engine = subject.make()
    with tempfile.TemporaryDirectory() as folder:
        session.folder = folder
        try:
            engine.check()
            session.early = engine.slots
            engine.open(WORK, Path(folder))
            session.slots = engine.slots
            yield engine
        except RAISED as error:
            session.error = error
        finally:
            engine.close()


def _submit(engine: Engine, session: Session, cell: str, do: str) -> None:
    job = Job(cell, f"row {cell}", 0, {"do": do}, session.folder, fence=11 + len(session.jobs))
    session.jobs[cell] = job
    engine.submit(job)


def _wait(engine: Engine, session: Session, done: str, *cells: str) -> None:
    """Poll until each of the cells has reported ``done`` (``end``: one of the ending events)."""
    words = ENDS if done == "end" else {done, *ENDS}
    last = time.monotonic()
    while any(not any(event.what in words for event in session.of(cell)) for cell in cells):
        found = engine.poll(0.5)
        session.events += found
        last = time.monotonic() if found else last
        if time.monotonic() - last > LIMIT:
            does = ", ".join(f"{cell} does {session.jobs[cell].spec['do']!r}" for cell in cells)
            told = [f"{event.cell}: {event.what}" for event in session.events[-5:]]
            missing = f"after {LIMIT:g} s without an event, {cells} have no {done!r}; the last events are {told}"
            raise AssertionError(f"with jobs of which {does}: {missing}")


@lru_cache(maxsize=4)
def _mixed(subject: Subject) -> Session:
    """Jobs of every sort, as many at once as the engine takes (at most two: an engine may start a process for each)."""
    session = Session()
    with _opened(subject, session) as engine:
        session.described = engine.describe()
        session.idle = engine.poll(0)
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
            running = [c for c in running if not any(event.what in ENDS for event in session.of(c))]
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
        session.stops["stop('a')"] = _ends(session)
        engine.stop()
        _wait(engine, session, "end", *pair)
        session.stops["stop()"] = _ends(session)
        _submit(engine, session, "c", "wait")
        _wait(engine, session, "started", "c")
        engine.stop("c", at_once=True)
        _wait(engine, session, "end", "c")
        _submit(engine, session, "d", "wait")
        _wait(engine, session, "started", "d")
        engine.close()
        session.stops["closed"] = []
        session.outlived = _outlives(session.jobs["d"])
    return session


def _outlives(job: Job) -> bool:
    """Whether a job still counts, ``OUTLIVED`` seconds after the engine was closed."""
    begun = moved = time.monotonic()
    seen = ""
    while time.monotonic() - begun < OUTLIVED:
        now = beat_file(job).read_text() if beat_file(job).exists() else ""
        if now not in ("", seen):  # empty: just being written
            seen, moved = now, time.monotonic()
        elif time.monotonic() - moved > QUIET:
            return False
        time.sleep(0.05)
    return True


def _ends(session: Session) -> list[str]:
    return [f"{event.cell}: {event.what}" for event in session.events if event.what in ENDS]


def _sound(session: Session) -> Session:
    if session.error is not None:
        raise session.error
    return session


def every_job_ends_with_exactly_one_event(subject: Subject) -> None:
    """As its last one; also where the work says nothing of its end, or goes on talking after it."""
    session = _sound(_mixed(subject))
    for cell, do in MIXED.items():
        with given(f"a job that does {do!r}"):
            told = [event.what for event in session.of(cell)]
            ends = [what for what in told if what in ENDS]
            require(len(ends) == 1 and told[-1] in ENDS, f"its events are {told}")
            expected = "failed" if do in ("raise", "silent") else "finished"
            require(ends == [expected], f"it ends as {ends[0]!r}, and not as {expected!r}")


def events_of_a_job_come_in_order_and_whole(subject: Subject) -> None:
    session = _sound(_mixed(subject))
    strangers = sorted({event.cell for event in session.events} - set(MIXED))
    require(not strangers, f"there are events of {strangers}, which nobody submitted")
    for cell, do in MIXED.items():
        if do in ("count", "talkative"):
            with given(f"a job that does {do!r}"):
                told = session.of(cell)
                names = [event.what for event in told]
                require(names == ["started", *["log"] * STEPS, "finished"], f"its events are {names}")
                for step in range(STEPS):
                    facts = told[1 + step].facts
                    require(facts == facts_of(step), f"event {1 + step} has {facts}, and not {facts_of(step)}")


def a_job_that_raises_fails_alone(subject: Subject) -> None:
    session = _sound(_mixed(subject))
    for cell, do in MIXED.items():
        ends = [event for event in session.of(cell) if event.what in ENDS]
        with given(f"a job that does {do!r}"):
            require(bool(ends), "it never ends")
            if do == "raise":
                reason = str(ends[0].facts.get("reason"))
                words = f"{cell} was told to fail"
                require(words in reason, f"the reason should hold what was raised ({words!r}). Found {reason!r}.")
            elif do == "count":
                require(ends[0].what == "finished", f"beside one that raises it ends as {ends[0].what!r}")


def events_carry_the_fence_of_their_job(subject: Subject) -> None:
    for session in (_sound(_mixed(subject)), _sound(_stopped(subject))):
        for event in session.events:
            fence = session.jobs[event.cell].fence
            words = f"with a job of fence {fence}: its event {event.what!r} has {event.fence}"
            require(event.fence == fence, words)


def it_says_how_many_jobs_it_takes(subject: Subject) -> None:
    session = _sound(_mixed(subject))
    for when, found in (("before it is opened", session.early), ("when it is open", session.slots)):
        require(found >= 1, f"{when}: slots should be 1 or more. Found {found}.")
    for when, found, expected in session.free:
        require(found == expected, f"{when}: free is {found}, and not {expected}")


def an_idle_engine_reports_nothing(subject: Subject) -> None:
    session = _sound(_mixed(subject))
    require(session.idle == [], f"before the first job it reports {session.idle}")


def it_says_in_a_line_where_it_runs(subject: Subject) -> None:
    found = _sound(_mixed(subject)).described
    sound = isinstance(found, str) and bool(found.strip()) and "\n" not in found
    require(sound, f"describe() should give one line. Found {found!r}.")


def a_job_that_is_asked_to_stop_is_interrupted(subject: Subject) -> None:
    """And it alone; without a name all are asked."""
    session = _sound(_stopped(subject))
    asked = session.stops["stop('a')"]
    require(asked == ["a: interrupted"], f"with stop('a'): jobs end as {asked}")
    expected = [f"{cell}: interrupted" for cell in ("a", "b") if cell in session.jobs]
    require(sorted(session.stops["stop()"]) == expected, f"with stop(): jobs end as {session.stops['stop()']}")


def a_job_that_is_stopped_at_once_is_lost(subject: Subject) -> None:
    found = [event for event in _sound(_stopped(subject)).of("c") if event.what in ENDS]
    ends = [event.what for event in found]
    require(ends == ["lost"], f"with stop('c', at_once=True): its ends are {ends}")
    require(bool(found[0].facts.get("reason")), "it should say why in facts['reason']")


def closing_twice_does_no_harm(subject: Subject) -> None:
    """Once with a job that still runs, once with nothing left; and an engine that was never opened can be closed."""
    session = _stopped(subject)
    _sound(session)
    require("closed" in session.stops, "it was not closed")
    with given("an engine that was never opened"):
        subject.make().close()


def closing_ends_what_still_runs(subject: Subject) -> None:
    session = _sound(_stopped(subject))
    words = f"with a job that goes on until it is stopped: {OUTLIVED:g} s after close() it still runs"
    require(not session.outlived, words)


LAWS = (
    every_job_ends_with_exactly_one_event,
    events_of_a_job_come_in_order_and_whole,
    a_job_that_raises_fails_alone,
    events_carry_the_fence_of_their_job,
    it_says_how_many_jobs_it_takes,
    an_idle_engine_reports_nothing,
    it_says_in_a_line_where_it_runs,
    a_job_that_is_asked_to_stop_is_interrupted,
    a_job_that_is_stopped_at_once_is_lost,
    closing_twice_does_no_harm,
    closing_ends_what_still_runs,
)
