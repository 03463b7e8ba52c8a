"""The laws of leases, on any course of events: drivers that die, fall silent and return, clocks that jump, restarts."""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from taskloom.core import Event
from taskloom.registry.results.leases import Leases, LostLeaseError
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.presence import Machine

CELLS = ("aa", "bb")
DRIVERS = 3
PATIENCE = 60.0
DAY = 86_400.0


@dataclass(frozen=True)
class Cell:
    id: str
    label: str = "sum"
    seed: int = 0
    spec: dict[str, Any] = field(default_factory=dict)
    reported: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass
class World:
    """The machine on which all drivers live."""

    boot: str = "boot 1"
    now: float = 1000.0  # seconds since that boot
    clock: float = 1.8e9  # what the wall clock says
    gone: set[int] = field(default_factory=set)  # process numbers


class Seen(Machine):
    """The world, seen by one process."""

    def __init__(self, world: World, pid: int) -> None:
        self.world, self.host, self.pid, self.boot = world, "here", pid, world.boot

    def wall(self) -> float:
        return self.world.clock

    def uptime(self) -> float:
        return self.world.now

    def process(self) -> str:
        return "pids 1"

    def is_gone(self, pid: int, process: str) -> bool:
        return pid in self.world.gone


@dataclass
class Model:
    """What a driver should be able to rely on."""

    leases: Leases
    pid: int
    boot: str
    beat: float = -1.0  # by the clock of its boot
    clock: float = 0.0  # by the wall clock
    fences: dict[str, int] = field(default_factory=dict)  # the last of each cell that it was given


class LeaseLaws(RuleBasedStateMachine):
    """A model that knows neither SQL nor the wall clock, except after a restart."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.ledger = Ledger.open(Path(self.folder.name), create=True)
        self.ledger.record_grid("grid", {}, [Cell(cell) for cell in CELLS])
        self.world, self.pids = World(), 0
        self.drivers = [self.new() for _ in range(DRIVERS)]
        self.holder: dict[str, tuple[Model, int]] = {}  # cell → whose lease it is, and its fence
        self.given: list[tuple[str, int]] = []  # every cell and fence that was ever given to anybody
        self.finished: set[str] = set()

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            self.ledger.close()
            self.folder.cleanup()

    def new(self) -> Model:
        self.pids += 1
        machine = Seen(self.world, self.pids)
        return Model(Leases(self.ledger, patience=PATIENCE, machine=machine), self.pids, self.world.boot)

    def lives(self, driver: Model) -> bool:
        if driver.boot != self.world.boot:
            return abs(self.world.clock - driver.clock) <= PATIENCE
        return driver.pid not in self.world.gone and self.world.now - driver.beat <= PATIENCE

    def said(self, driver: Model) -> None:
        driver.beat, driver.clock = self.world.now, self.world.clock

    @rule(who=st.integers(0, DRIVERS - 1), cell=st.sampled_from(CELLS))
    def claim(self, who: int, cell: str) -> None:
        driver = self.drivers[who]
        held = self.holder.get(cell)
        free = held is None or held[0] is driver or not self.lives(held[0])
        fence = driver.leases.claim(cell)
        self.said(driver)
        if fence is None:
            assert cell in self.finished or not free, "a free cell was refused"
            return
        assert free, "two drivers have one cell"
        assert cell not in self.finished, "a finished cell was given away"
        assert all(fence > earlier for _, earlier in self.given), "fences only grow"
        self.given.append((cell, fence))
        self.holder[cell] = driver, fence
        driver.fences[cell] = fence

    @rule(who=st.integers(0, DRIVERS - 1))
    def beat(self, who: int) -> None:
        driver = self.drivers[who]
        mine = {cell for cell, (holder, _) in self.holder.items() if holder is driver}
        lost = driver.leases.beat()
        self.said(driver)
        assert lost == driver.fences.keys() - mine, "a driver learns once what others took"
        driver.fences = {cell: fence for cell, fence in driver.fences.items() if cell in mine}

    @rule(who=st.integers(0, DRIVERS - 1), cell=st.sampled_from(CELLS))
    def release(self, who: int, cell: str) -> None:
        driver = self.drivers[who]
        driver.leases.release(cell)
        driver.fences.pop(cell, None)
        if self.holder.get(cell, (None, 0))[0] is driver:
            del self.holder[cell]

    @precondition(lambda self: self.given)
    @rule(back=st.integers(0, 5), what=st.sampled_from(["started", "finished", "finished", "failed", "lost"]))
    def write(self, back: int, what: str) -> None:
        """Somebody writes under a lease that was given once, say a worker whose driver is long dead."""
        cell, fence = self.given[-1 - back % len(self.given)]
        event = Event(what, cell, {"scores": {}}, fence)
        if self.holder.get(cell, (None, 0))[1] != fence or cell in self.finished:
            before = self.ledger.cell(cell), self.ledger.attempts(cell)
            with pytest.raises(LostLeaseError):
                self.ledger.write(event)
            assert (self.ledger.cell(cell), self.ledger.attempts(cell)) == before
            return
        self.ledger.write(event)
        if what == "finished":
            self.finished.add(cell)

    @rule(seconds=st.sampled_from([1.0, 20.0, 59.0, 61.0, 1000.0]))
    def wait(self, seconds: float) -> None:
        self.world.now += seconds
        self.world.clock += seconds

    @rule(seconds=st.sampled_from([-DAY, -61.0, 61.0, DAY]))
    def wall_clock_jumps(self, seconds: float) -> None:
        self.world.clock += seconds

    @rule(who=st.integers(0, DRIVERS - 1))
    def one_is_killed(self, who: int) -> None:
        self.world.gone.add(self.drivers[who].pid)
        self.drivers[who] = self.new()

    @rule()
    def machine_restarts(self) -> None:
        self.world.boot, self.world.now = f"{self.world.boot}+", 0.0
        self.drivers = [self.new() for _ in range(DRIVERS)]

    @invariant()
    def the_listing_shows_the_living(self) -> None:
        if not hasattr(self, "holder"):
            return
        shown = {cell: driver.id for cell, driver in self.drivers[0].leases.holders().items()}
        assert shown == {cell: each.leases.driver for cell, (each, _) in self.holder.items() if self.lives(each)}
        for cell in CELLS:
            ends = [attempt.how for attempt in self.ledger.attempts(cell)]
            assert ends.count("finished") == (cell in self.finished), "finished once"
        for driver in self.drivers:
            mine = {cell: fence for cell, (holder, fence) in self.holder.items() if holder is driver}
            assert driver.leases.held() == mine


TestLeaseLaws = LeaseLaws.TestCase
TestLeaseLaws.settings = settings(max_examples=40, stateful_step_count=30)


@pytest.mark.parametrize("jump", [-DAY, -100.0, 100.0, DAY])
def test_a_jump_of_the_wall_clock_neither_ends_nor_prolongs_a_lease(tmp_path: Path, jump: float) -> None:
    world = World()
    with Ledger.open(tmp_path, create=True) as ledger:
        ledger.record_grid("grid", {}, [Cell("aa")])
        mine, theirs = (Leases(ledger, patience=PATIENCE, machine=Seen(world, pid)) for pid in (1, 2))
        assert mine.claim("aa") == 1
        world.clock += jump
        world.now += PATIENCE
        assert theirs.claim("aa") is None, "it has not ended"
        world.now += 1
        assert theirs.claim("aa") == 2, "it ends in time"


@pytest.mark.parametrize(
    ("ahead", "silent", "claimed"), [(0, 59, False), (0, 61, True), (30, 0, False), (-DAY, 0, True)]
)
def test_another_machine_is_judged_by_the_wall_clock(
    tmp_path: Path, ahead: float, silent: float, claimed: bool
) -> None:
    here, there = World(), World(boot="elsewhere", now=5.0)
    there.clock += ahead
    here.gone.add(1)  # a process of the same number has ended here: says nothing about theirs
    with Ledger.open(tmp_path, create=True) as ledger:
        ledger.record_grid("grid", {}, [Cell("aa")])
        theirs, mine = (
            Leases(ledger, patience=PATIENCE, machine=Seen(each, pid)) for each, pid in ((there, 1), (here, 2))
        )
        assert theirs.claim("aa") == 1
        here.clock += silent
        assert (mine.claim("aa") is not None) == claimed
