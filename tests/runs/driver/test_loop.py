"""The drive loop against an engine that says what a test tells it to: silence, other drivers, retries, stopping."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from taskloom.core import ENDS, Engine, Event, Job
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.locks import Claims
from taskloom.runs.driver import loop as loops
from taskloom.runs.driver.loop import START, Loop, Outcome
from taskloom.runs.driver.signals import Stop

FINISHED: dict[str, Any] = {"scores": {}, "best_epoch": 0, "seconds": 0.1, "peak_memory": 0}


class Told(Engine):
    """Runs nothing: ``turn`` is called at every poll and says what cells report."""

    name = "told"

    def __init__(self, turn: Callable[["Told"], None], slots: int = 1) -> None:
        self.jobs: dict[str, Job] = {}
        self.submitted: list[Job] = []
        self.stopped: list[tuple[str | None, bool]] = []
        self.turns, self._turn, self._slots, self._events = 0, turn, slots, list[Event]()

    def open(self, work: str, folder: Path) -> None:
        pass

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def free(self) -> int:
        return self._slots - len(self.jobs)

    def submit(self, job: Job) -> None:
        self.jobs[job.cell] = job
        self.submitted.append(job)

    def say(self, what: str, cell: str, **facts: Any) -> None:
        self._events.append(Event(what, cell, FINISHED if what == "finished" else facts, self.jobs[cell].attempt))
        if what in ENDS:
            del self.jobs[cell]

    def late(self, event: Event) -> None:
        """What an attempt says that was given up."""
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


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path, create=True) as opened:
        yield opened


@pytest.fixture(autouse=True)
def _look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "LOOK", 0.0)


def jobs_of(ledger: Ledger, **specs: str) -> list[Job]:
    """Recorded cells: name → what makes its spec its own."""
    jobs = [Job(name, name, 0, {"encoder": spec}, str(ledger.folder), ()) for name, spec in specs.items()]
    facts: dict[str, Any] = {"seed": 0, "reported": {}, "facts": {}}
    ledger.record_grid(
        "grid", {}, [SimpleNamespace(id=job.cell, label=job.label, spec=job.spec, **facts) for job in jobs]
    )
    return jobs


class Driver:
    """A loop with what it has claimed, and everything that it reported."""

    def __init__(self, ledger: Ledger, jobs: list[Job], engine: Told, **options: Any) -> None:
        self.events: list[Event] = []
        self.react: Callable[[Event], None] = lambda event: None
        self.outcome, self.claims, self.engine = Outcome(), Claims(ledger.folder), engine
        options = {"outcome": self.outcome, "listen": self._hear, **options}
        self.loop = Loop(jobs, engine, ledger, load_catalogue().plugins, self.claims, **options)

    def _hear(self, event: Event) -> None:
        self.events.append(event)
        self.react(event)

    def __call__(self) -> Outcome:
        with self.claims:
            self.loop.run()
        return self.outcome


@pytest.mark.parametrize("speaks", [False, True])
def test_silence_is_borne_for_the_timeout_and_before_the_first_word_for_a_start(
    ledger: Ledger, speaks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 0.0
    monkeypatch.setattr(loops, "time", SimpleNamespace(monotonic=lambda: clock))
    silences: list[float] = []

    def turn(engine: Told) -> None:
        nonlocal clock
        if engine.stopped:
            if len(silences) > 5:  # it takes its time to end
                engine.say("lost", "a", reason="stopped at once")
        elif speaks and engine.turns == 1:
            engine.say("started", "a")
            return
        clock += 0.4 * START
        silences.append(clock if not engine.stopped else 0.0)

    driver = Driver(ledger, jobs_of(ledger, a="x"), Told(turn), timeout=0.01, attempts=1)
    outcome = driver()
    assert driver.engine.stopped == [("a", True)], "it is told once"
    borne, text = (0.4 * START, "0.01") if speaks else (1.2 * START, "120")
    assert max(silences) == pytest.approx(borne)
    assert outcome.reasons["a"].endswith(f"said nothing for {text} s (--timeout)")


def test_what_an_attempt_says_that_was_given_up_counts_for_nothing(ledger: Ledger) -> None:
    def turn(engine: Told) -> None:
        if len(engine.submitted) == 1:
            engine.say("lost", "a", reason="gone")
        else:
            engine.late(Event("failed", "a", {"reason": "the first attempt's"}, engine.submitted[0].attempt))
            engine.say("finished", "a")

    driver = Driver(ledger, jobs_of(ledger, a="x"), Told(turn))
    assert driver().finished == 1
    assert [event.what for event in driver.events] == ["lost", "finished"]


@pytest.mark.parametrize("before", ["planned", "running", "failed"])
def test_what_fails_in_another_driver_meanwhile_is_not_tried_again(ledger: Ledger, before: str) -> None:
    """What had failed before is: the other driver is the one that tries it."""

    def turn(engine: Told) -> None:
        if engine.jobs:
            if before != "running":
                ledger.write(Event("started", "theirs", {}))
            ledger.write(Event("failed", "theirs", {"reason": "their defect"}))
            others.release("theirs")
            engine.say("finished", "mine")

    jobs = jobs_of(ledger, theirs="x", mine="x")
    if before != "planned":
        ledger.write(Event("started", "theirs", {}))
    if before == "failed":
        ledger.write(Event("failed", "theirs", {"reason": "an earlier defect"}))
    with Claims(ledger.folder) as others:
        assert others.claim("theirs")
        others.share()
        driver = Driver(ledger, jobs, Told(turn))
        outcome = driver()
    assert [job.cell for job in driver.engine.submitted] == ["mine"]
    assert outcome.reasons == {"theirs": "their defect"}


def test_what_another_driver_ends_between_the_plan_and_the_claim_is_not_run_again(ledger: Ledger) -> None:
    """Nobody has the cell when it is its turn: the ledger says that it was ended."""

    def turn(engine: Told) -> None:
        if engine.jobs:
            for cell in ("done", "broken"):
                ledger.write(Event("started", cell, {}))
            ledger.write(Event("finished", "done", FINISHED))
            ledger.write(Event("failed", "broken", {"reason": "their defect"}))
            engine.say("finished", "mine")

    driver = Driver(ledger, jobs_of(ledger, mine="x", done="x", broken="x"), Told(turn))
    outcome = driver()
    assert [job.cell for job in driver.engine.submitted] == ["mine"]
    assert (outcome.finished, outcome.elsewhere, outcome.reasons) == (1, 1, {"broken": "their defect"})


def test_a_full_disk_stops_the_run(ledger: Ledger) -> None:
    def turn(engine: Told) -> None:
        if engine.turns == 1:
            engine.say("failed", "a", reason="the disk is full", disk_full=True)
        elif engine.stopped:
            engine.say("interrupted", "b")

    driver = Driver(ledger, jobs_of(ledger, a="x", b="x", c="x", d="x"), Told(turn, slots=2))
    outcome = driver()
    assert {job.cell for job in driver.engine.submitted} == {"a", "b"}, "the next would fail as well"
    assert driver.engine.stopped == [(None, False)]
    assert (outcome.halted, outcome.interrupted) == ("the disk is full", 3)


def test_a_cell_that_is_to_be_tried_again_stays_ours(ledger: Ledger) -> None:
    held: list[set[str]] = []

    def turn(engine: Told) -> None:
        if len(engine.submitted) == 2:
            engine.say("lost", "a", reason="gone")
            engine.say("log", "b", message="in the same breath")
        else:
            for cell in list(engine.jobs):
                engine.say("finished", cell)

    driver = Driver(ledger, jobs_of(ledger, a="x", b="x"), Told(turn, slots=2))
    driver.react = lambda event: held.append(driver.claims.cells) if event.what == "log" else None
    assert driver().finished == 2
    assert held == [{"a", "b"}], "another driver could take it between two attempts"
    assert [job.attempt for job in driver.engine.submitted] == [1, 1, 2]


def test_a_cell_that_has_ended_is_given_back_at_once(ledger: Ledger) -> None:
    held: list[set[str]] = []

    def turn(engine: Told) -> None:
        held.append(driver.claims.cells)
        for cell in list(engine.jobs):
            engine.say("failed" if cell == "a" else "finished", cell, reason="a defect")

    driver = Driver(ledger, jobs_of(ledger, a="x", b="x", c="x"), Told(turn))
    driver()
    assert held == [{"a"}, {"b"}, {"c"}]


def test_a_worker_lost_while_the_run_stops_is_not_tried_again(ledger: Ledger) -> None:
    stop = Stop()

    def turn(engine: Told) -> None:
        if engine.stopped:
            engine.say("lost", "a", reason="gone")
        stop()

    driver = Driver(ledger, jobs_of(ledger, a="x", b="x"), Told(turn), stop=stop)
    outcome = driver()
    assert (outcome.interrupted, len(driver.engine.submitted)) == (2, 1)
    (event,) = driver.events
    assert not event.facts.get("again"), "somebody is told that it goes on"


def test_cells_that_another_driver_has_are_left_over_when_the_run_stops(ledger: Ledger) -> None:
    stop = Stop()

    def turn(engine: Told) -> None:
        if engine.stopped:
            engine.say("interrupted", "mine")
        stop()

    with Claims(ledger.folder) as others:
        jobs = jobs_of(ledger, theirs="x", mine="x")
        assert others.claim("theirs")
        outcome = Driver(ledger, jobs, Told(turn), stop=stop)()
    assert (outcome.finished, outcome.interrupted) == (0, 2)


def test_what_another_driver_finished_tells_how_long_the_like_of_it_takes(ledger: Ledger) -> None:
    def turn(engine: Told) -> None:
        for cell in list(engine.jobs):
            engine.say("finished", cell)
        if len(engine.submitted) == 1:
            ledger.write(Event("finished", "theirs", {**FINISHED, "seconds": 100.0}))

    with Claims(ledger.folder) as others:
        jobs = jobs_of(ledger, theirs="large", first="small", short="small", long="large")
        assert others.claim("theirs")
        ledger.write(Event("started", "theirs", {}))
        driver = Driver(ledger, jobs, Told(turn))
        outcome = driver()
    assert (outcome.finished, outcome.elsewhere) == (3, 1)
    assert [job.cell for job in driver.engine.submitted] == ["first", "long", "short"]


def test_a_cell_that_waits_for_its_turn_is_not_silent(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its start is counted from the moment when it begins."""
    clock = 0.0
    monkeypatch.setattr(loops, "time", SimpleNamespace(monotonic=lambda: clock))
    waits = 5

    class Queue(Told):
        def queued(self, cell: str) -> bool:
            return self.turns <= waits

    def turn(engine: Told) -> None:
        nonlocal clock
        assert not engine.stopped or engine.turns > waits + 3
        clock += 0.4 * START
        if engine.stopped:
            engine.say("lost", "a", reason="stopped at once")

    driver = Driver(ledger, jobs_of(ledger, a="x"), Queue(turn), timeout=0.01, attempts=1)
    assert driver().reasons["a"].endswith("said nothing for 120 s (--timeout)")
    assert driver.engine.stopped == [("a", True)]


@pytest.mark.parametrize("heeded", [False, True])
def test_a_stop_while_a_cell_looks_for_a_batch_that_fits_leaves_it_interrupted(ledger: Ledger, heeded: bool) -> None:
    stop = Stop()

    def turn(engine: Told) -> None:
        if engine.turns == 1:
            engine.say("started", "a")
            stop()
        if engine.turns == 1 + heeded:
            reason = "out of memory with 8 examples of task 'sst' at a time"
            engine.say("oom", "a", reason=reason, micro_batch=8, task="sst")

    driver = Driver(ledger, jobs_of(ledger, a="x"), Told(turn), stop=stop)
    outcome = driver()
    assert (outcome.interrupted, outcome.failed) == (1, 0)
    assert ledger.cell("a").status == "interrupted"
    assert [one.how for one in ledger.attempts("a")] == ["oom"], "so that the next driver tries a smaller one"
