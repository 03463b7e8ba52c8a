"""The drive loop against a scripted engine: silence, other drivers, retries, stopping."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from driven import Run, record

from taskloom.core import ENDS, Engine, Event, Job
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.locks import Claims
from taskloom.runs.driver import loop as loops
from taskloom.runs.driver.loop import START
from taskloom.runs.driver.signals import Stop

FINISHED: dict[str, Any] = {"scores": {}, "best_epoch": 0, "seconds": 0.1, "peak_memory": 0}


class Scripted(Engine):
    """Runs nothing: ``turn`` is called at every poll and emits what cells report."""

    name = "scripted"

    def __init__(self, turn: Callable[["Scripted"], None], slots: int = 1) -> None:
        self.jobs: dict[str, Job] = {}
        self.submitted: list[Job] = []
        self.stopped: list[tuple[str | None, bool]] = []
        self.turns, self._turn, self._slots, self._events = 0, turn, slots, list[Event]()

    def open(self, work: str, folder: Path) -> None:
        pass

    @property
    def free(self) -> int:
        return self._slots - len(self.jobs)

    def submit(self, job: Job) -> None:
        self.jobs[job.cell] = job
        self.submitted.append(job)

    def emit(self, what: str, cell: str, **facts: Any) -> None:
        self._events.append(Event(what, cell, FINISHED if what == "finished" else facts, self.jobs[cell].attempt))
        if what in ENDS:
            del self.jobs[cell]

    def emit_late(self, event: Event) -> None:
        """An event of an attempt that was given up."""
        self._events.append(event)

    def poll(self, seconds: float) -> list[Event]:
        self.turns += 1
        assert self.turns < 1000, "the loop goes on for ever"
        self._turn(self)
        events, self._events = self._events, []
        return events

    def stop(self, cell: str | None = None, *, at_once: bool = False) -> None:
        self.stopped.append((cell, at_once))

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "LOOK", 0.0)


def jobs_of(ledger: Ledger, **specs: str) -> list[Job]:
    """Recorded cells: name → what makes its spec its own."""
    return record(ledger, [Job(name, name, 0, {"encoder": spec}, str(ledger.folder)) for name, spec in specs.items()])


#: Whether a cell reports, how many polls it waits in the engine's queue, the silence that is borne, and its words.
SILENCES = [(False, 0, 1.2, "120"), (True, 0, 0.4, "0.01"), (False, 5, 5 * 0.4 + 1.2, "120")]


@pytest.mark.parametrize(("reports", "queued", "borne", "words"), SILENCES)
def test_silence_ends_a_cell_after_the_timeout_and_after_longer_before_its_first_event(
    ledger: Ledger, reports: bool, queued: int, borne: float, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start of a queued cell is counted from the moment when it begins."""
    clock = 0.0
    monkeypatch.setattr(loops, "time", SimpleNamespace(monotonic=lambda: clock))
    silences: list[float] = []

    class Queue(Scripted):
        def queued(self, cell: str) -> bool:
            return self.turns <= queued

    def turn(engine: Scripted) -> None:
        nonlocal clock
        if engine.stopped:
            if len(silences) > queued + 5:  # it takes its time to end
                engine.emit("lost", "a", reason="stopped at once")
        elif reports and engine.turns == 1:
            engine.emit("started", "a")
            return
        clock += 0.4 * START
        silences.append(clock if not engine.stopped else 0.0)

    driver = Run(ledger, jobs_of(ledger, a="x"), Queue(turn), timeout=0.01, attempts=1)
    outcome = driver()
    assert driver.engine.stopped == [("a", True)], "it is stopped once"
    assert max(silences) == pytest.approx(borne * START)
    assert outcome.reasons["a"].endswith(f"no progress for {words} s (--timeout)")


def test_events_of_an_attempt_that_was_given_up_are_ignored(ledger: Ledger) -> None:
    def turn(engine: Scripted) -> None:
        if len(engine.submitted) == 1:
            engine.emit("lost", "a", reason="gone")
        else:
            engine.emit_late(Event("failed", "a", {"reason": "the first attempt's"}, engine.submitted[0].attempt))
            engine.emit("finished", "a")

    driver = Run(ledger, jobs_of(ledger, a="x"), Scripted(turn))
    assert driver().finished == 1
    assert [event.what for event in driver.events] == ["lost", "finished"]


@pytest.mark.parametrize("before", ["planned", "running", "failed"])
def test_what_ends_in_another_driver_meanwhile_is_not_tried_again(ledger: Ledger, before: str) -> None:
    """What had failed before is: the other driver is the one that tries it. Nobody has what it has given back."""

    def turn(engine: Scripted) -> None:
        if engine.jobs:
            for cell in ("theirs", "left", "done"):
                if cell != "theirs" or before != "running":
                    ledger.write(Event("started", cell, {}))
                done = cell == "done"
                ledger.write(Event("finished", cell, FINISHED) if done else Event("failed", cell, {"reason": "theirs"}))
            others.release("theirs")
            engine.emit("finished", "mine")

    jobs = jobs_of(ledger, theirs="x", mine="x", left="x", done="x")
    if before != "planned":
        ledger.write(Event("started", "theirs", {}))
    if before == "failed":
        ledger.write(Event("failed", "theirs", {"reason": "an earlier defect"}))
    with Claims(ledger.folder) as others:
        assert others.claim("theirs")
        others.share()
        driver = Run(ledger, jobs, Scripted(turn))
        outcome = driver()
    assert [job.cell for job in driver.engine.submitted] == ["mine"]
    assert (outcome.finished, outcome.elsewhere) == (1, 1)
    assert outcome.reasons == {"theirs": "theirs", "left": "theirs"}


def test_a_full_disk_stops_the_run(ledger: Ledger) -> None:
    def turn(engine: Scripted) -> None:
        if engine.turns == 1:
            engine.emit("failed", "a", reason="the disk is full", disk_full=True)
        elif engine.stopped:
            engine.emit("interrupted", "b")

    driver = Run(ledger, jobs_of(ledger, a="x", b="x", c="x", d="x"), Scripted(turn, slots=2))
    outcome = driver()
    assert {job.cell for job in driver.engine.submitted} == {"a", "b"}, "the next would fail as well"
    assert driver.engine.stopped == [(None, False)]
    assert (outcome.halted, outcome.interrupted) == ("the disk is full", 3)


def test_a_cell_is_held_until_it_has_ended_for_good(ledger: Ledger) -> None:
    held: list[set[str]] = []

    def turn(engine: Scripted) -> None:
        held.append(driver.held("a", "b", "c"))
        if engine.turns == 1:
            engine.emit("lost", "a", reason="gone")
            engine.emit("log", "b", message="in the same breath")
        else:
            for cell in list(engine.jobs):
                engine.emit("failed" if cell == "a" else "finished", cell, reason="a defect")

    driver = Run(ledger, jobs_of(ledger, a="x", b="x", c="x"), Scripted(turn, slots=2))
    driver.react = lambda event: held.append(driver.held("a", "b")) if event.what == "log" else None
    assert driver().finished == 2
    assert [job.attempt for job in driver.engine.submitted] == [1, 1, 1, 2]
    assert held == [{"a", "b"}, {"a", "b"}, {"a", "b", "c"}, {"a"}], "not between two attempts, or for too long"


def test_when_the_run_stops_nothing_is_tried_again_or_waited_for(ledger: Ledger) -> None:
    stop = Stop()

    def turn(engine: Scripted) -> None:
        if engine.stopped:
            engine.emit("lost", "a", reason="gone")
        stop()

    with Claims(ledger.folder) as others:
        jobs = jobs_of(ledger, theirs="x", a="x", b="x")
        assert others.claim("theirs")
        driver = Run(ledger, jobs, Scripted(turn), stop=stop)
        outcome = driver()
    assert (outcome.finished, outcome.interrupted, len(driver.engine.submitted)) == (0, 3, 1)
    (event,) = driver.events
    assert not event.facts.get("again"), "a reader would think that it continues"


def test_the_order_learns_from_what_another_driver_finished(ledger: Ledger) -> None:
    def turn(engine: Scripted) -> None:
        for cell in list(engine.jobs):
            engine.emit("finished", cell)
        if len(engine.submitted) == 1:
            ledger.write(Event("finished", "theirs", {**FINISHED, "seconds": 100.0, "scores": {"sst": 0.25}}))

    with Claims(ledger.folder) as others:
        jobs = jobs_of(ledger, theirs="large", first="small", short="small", long="large")
        assert others.claim("theirs")
        ledger.write(Event("started", "theirs", {}))
        driver = Run(ledger, jobs, Scripted(turn))
        outcome = driver()
    assert (outcome.finished, outcome.elsewhere) == (3, 1)
    assert [job.cell for job in driver.engine.submitted] == ["first", "long", "short"]
    assert next(event for event in driver.events if event.cell == "theirs").facts["scores"] == {"sst": 0.25}


@pytest.mark.parametrize("stopped_first", [False, True])
def test_a_stop_while_a_cell_looks_for_a_batch_that_fits_leaves_it_interrupted(
    ledger: Ledger, stopped_first: bool
) -> None:
    stop = Stop()

    def turn(engine: Scripted) -> None:
        if engine.turns == 1:
            engine.emit("started", "a")
            stop()
        if engine.turns == 1 + stopped_first:
            reason = "out of memory with 8 examples of task 'sst' at a time"
            engine.emit("oom", "a", reason=reason, micro_batch=8, task="sst")

    driver = Run(ledger, jobs_of(ledger, a="x"), Scripted(turn), stop=stop)
    outcome = driver()
    assert (outcome.interrupted, outcome.failed) == (1, 0)
    assert ledger.cell("a").status == "interrupted"
    assert [one.how for one in ledger.attempts("a")] == ["oom"], "so that the next driver tries a smaller one"
