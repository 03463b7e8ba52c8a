"""Leases between real processes and on real files: who dies, stops or comes late."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from taskloom.core import Event, RegistryError
from taskloom.registry.results.artifacts import claim_folder, fence_of, refuse_late
from taskloom.registry.results.leases import Leases, LostLeaseError, patience_of_environment
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.presence import Machine

LONG = 3600.0  # seconds: nobody is taken for dead because a machine is slow
posix = pytest.mark.skipif(os.name == "nt", reason="needs the signals of POSIX")


@dataclass(frozen=True)
class Cell:
    id: str
    label: str = "sum"
    seed: int = 0
    spec: dict[str, Any] = field(default_factory=dict)
    reported: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "registry", create=True) as opened:
        opened.record_grid("grid", {}, [Cell("aa"), Cell("bb"), Cell("cc")])
        yield opened


def wait_for(condition: Callable[[], Any], *, seconds: float = 60.0) -> Any:
    until = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < until, "it never came"
        time.sleep(0.01)
    return value


# A driver that claims the cells it is told, says under which fences, and writes and beats when it is told to.
DRIVER = """
import sys
from taskloom.core.events import Event
from taskloom.registry.results.leases import Leases
from taskloom.registry.results.ledger import Ledger

heavy = sys.modules.keys() & {"torch", "numpy", "scipy", "pydantic"}
assert not heavy, heavy
ledger = Ledger.open(sys.argv[1], create=False)
leases = Leases(ledger, patience=float(sys.argv[2]))
fences = {}
for line in sys.stdin:
    what, _, cell = line.strip().partition(" ")
    try:
        if what == "claim":
            fences[cell] = leases.claim(cell)
            print(fences[cell], flush=True)
        elif what == "beat":
            print(*sorted(leases.beat()), flush=True)
        else:
            ledger.write(Event(what, cell, {"scores": {"sst": 0.5}}, fences[cell]))
            print("written", flush=True)
    except Exception as error:
        print(type(error).__name__, error, flush=True)
"""


class Process:
    """A driver of another process."""

    def __init__(self, folder: Path, patience: float) -> None:
        command = [sys.executable, "-c", DRIVER, str(folder), str(patience)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, line: str) -> str:
        self.say(line)
        return self.hear()

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def send(self, signal: int) -> None:
        self.process.send_signal(signal)


@contextmanager
def driver(folder: Path, *, patience: float = LONG) -> Iterator[Process]:
    other = Process(folder, patience)
    try:
        yield other
    finally:
        other.process.kill()
        other.process.communicate()


def test_a_cell_is_one_drivers_at_a_time(ledger: Ledger) -> None:
    with Ledger.open(ledger.folder, create=False) as second, Leases(ledger) as mine, Leases(second) as theirs:
        assert mine.holders() == {}
        fence = mine.claim("aa")
        assert fence == 1
        assert theirs.claim("aa") is None
        assert theirs.claim_some(["aa", "bb", "cc"]) == {"bb": 2}
        assert {cell: holder.id for cell, holder in theirs.holders().items()} == {
            "aa": mine.driver,
            "bb": theirs.driver,
        }
        assert (mine.held(), theirs.held()) == ({"aa": 1}, {"bb": 2})
        assert mine.holders()["bb"].pid == os.getpid()
        mine.release("aa")
        assert theirs.claim("aa") == 3
        assert mine.beat() == frozenset(), "it was given back, not lost"
    with Leases(ledger) as later:
        assert later.holders() == {}, "closing gives everything back"
        assert later.claim("aa") == 4
        with pytest.raises(ValueError, match="'zz' cannot be claimed"):
            later.claim("zz")
        assert later.held() == {"aa": 4}


def test_a_finished_cell_is_nobodys(ledger: Ledger) -> None:
    with Leases(ledger) as leases:
        got = leases.claim_some(["aa", "bb", "cc"], count=2)
        assert got == {"aa": 1, "bb": 2}
        ledger.write(Event("started", "aa", {}, got["aa"]))
        ledger.write(Event("finished", "aa", {"scores": {}}, got["aa"]))
        for what in ("started", "failed", "lost", "finished"):  # an engine that speaks twice
            with pytest.raises(LostLeaseError, match=r"lease 1 of cell aa is over: the cell is finished"):
                ledger.write(Event(what, "aa", {"scores": {}}, got["aa"]))
        ledger.write(Event("log", "aa", {"message": "a last line"}, got["aa"]))
        leases.release("aa")
        assert leases.claim("aa") is None
        assert leases.claim_some(["aa", "cc"], count=5) == {"cc": 3}
        (attempt,) = ledger.attempts("aa")
        assert (attempt.driver, attempt.fence, attempt.how) == (leases.driver, 1, "finished")


def test_claiming_again_fences_off_ones_own_old_worker(ledger: Ledger) -> None:
    with Leases(ledger) as leases:
        old = leases.claim("aa")
        ledger.write(Event("started", "aa", {}, old))
        new = leases.claim("aa")
        assert new > old
        with pytest.raises(LostLeaseError, match=rf"lease {old} of cell aa is lost: driver .* \(lease {new}\) has"):
            ledger.write(Event("finished", "aa", {"scores": {}}, old))
        ledger.write(Event("resumed", "aa", {}, new))
        leases.release("aa")
        with pytest.raises(LostLeaseError, match=r"nobody has the cell now\. Nothing was written"):
            ledger.write(Event("finished", "aa", {"scores": {}}, new))
        assert ledger.cell("aa").status == "running"
        ledger.write(Event("finished", "aa", {"scores": {}}))  # who asked for no lease is held to none


@posix
def test_the_cells_of_a_killed_driver_are_free_at_once(ledger: Ledger) -> None:
    with driver(ledger.folder) as other, Leases(ledger, patience=LONG) as leases:
        assert other.ask("claim aa") == "1"
        assert other.ask("started aa") == "written"
        assert leases.claim("aa") is None
        other.send(signal.SIGKILL)
        fence = wait_for(lambda: leases.claim("aa"))  # before anybody has asked how it ended
        ledger.write(Event("resumed", "aa", {}, fence))
        first, second = ledger.attempts("aa")
        assert (first.how, first.fence, first.driver) != (second.how, second.fence, second.driver)
        assert (first.how, second.how) == ("lost", None)


@posix
def test_a_stopped_driver_that_comes_back_is_refused(ledger: Ledger) -> None:
    with driver(ledger.folder, patience=0.5) as other, Leases(ledger, patience=LONG) as leases:
        assert other.ask("claim aa") == "1"
        assert other.ask("claim bb") == "2"
        assert other.ask("started aa") == "written"
        other.send(signal.SIGSTOP)
        fence = wait_for(lambda: leases.claim("aa"))
        claim_folder(folder := _cell(ledger, "aa"), fence)
        other.send(signal.SIGCONT)
        assert other.ask("finished aa").startswith("LostLeaseError lease 1 of cell aa is lost")
        assert other.ask("beat") == "aa", "it learns what it lost"
        assert other.ask("finished bb") == "written", "and keeps what nobody took"
        with pytest.raises(LostLeaseError):
            refuse_late(folder, 1)
        ledger.write(Event("resumed", "aa", {}, fence))
        ledger.write(Event("finished", "aa", {"scores": {}}, fence))
        assert [attempt.how for attempt in ledger.attempts("aa")] == ["lost", "finished"]


@posix
def test_a_stopped_driver_keeps_its_cells_while_others_are_patient(ledger: Ledger) -> None:
    with driver(ledger.folder) as other, Leases(ledger, patience=0.1) as leases:
        assert other.ask("claim aa") == "1"
        other.send(signal.SIGSTOP)
        time.sleep(0.3)
        assert leases.claim("aa") is None, "its own patience counts, not that of who looks"
        other.send(signal.SIGCONT)
        assert other.ask("finished aa") == "written"


def test_a_driver_beats_while_it_does_something_else(ledger: Ledger) -> None:
    with Ledger.open(ledger.folder, create=False) as second:
        leases = Leases(ledger, patience=LONG)
        leases.every = 0.01
        with leases, leases.beating():
            assert leases.claim("aa")
            (before,) = Leases(second).holders().values()
            wait_for(lambda: Leases(second).holders()["aa"].uptime > before.uptime)
            wait_for(lambda: Leases(second).holders()["aa"].beat > before.beat)


def test_another_process_with_the_number_of_a_dead_one_is_not_taken_for_it() -> None:
    here = Machine()
    assert not here.is_gone(os.getpid(), here.process())
    if not Path("/proc/self/stat").exists():
        pytest.skip("needs /proc")
    pids = here.process().rpartition(" ")[0]
    assert here.is_gone(os.getpid(), f"{pids} 1"), "it began at another time"
    assert not here.is_gone(os.getpid(), "pid:[7] 1"), "another container's numbers say nothing"
    with closing(_ended()) as ended:
        assert here.is_gone(ended.pid, f"{pids} 1"), "ended, and nobody has asked how"
    assert here.is_gone(ended.pid, f"{pids} 1")


class _ended:  # noqa: N801
    """A process that has ended and is still in the list of processes, until closed."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
        self.pid = self.process.pid
        assert self.process.stdout is not None
        self.process.stdout.read()
        wait_for(lambda: ") Z" in Path(f"/proc/{self.pid}/stat").read_text())

    def close(self) -> None:
        self.process.communicate()


def _cell(ledger: Ledger, cell: str) -> Path:
    folder = ledger.folder / "cells" / cell
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def test_a_folder_knows_its_newest_lease(ledger: Ledger) -> None:
    folder = _cell(ledger, "aa")
    assert fence_of(folder) == 0
    refuse_late(folder, 1)
    claim_folder(folder, 7)
    claim_folder(folder, 7)
    refuse_late(folder, 7)
    for late in (claim_folder, refuse_late):
        with pytest.raises(LostLeaseError, match=r"lease 6 of cell aa is lost: another driver \(lease 7\)"):
            late(folder, 6)
    assert fence_of(folder) == 7
    with Leases(ledger) as leases:  # whose ledger is a copy from before
        assert leases.claim("aa") == 8
        assert leases.claim("bb") == 9


def test_a_folder_is_asked_for_its_lease_wherever_the_process_is_by_then(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim_folder(_cell(ledger, "aa"), 7)
    monkeypatch.chdir(ledger.folder)
    with Ledger.open(".", create=False) as here, Leases(here) as leases:
        monkeypatch.chdir("/")
        assert leases.claim("aa") == 8


@posix
def test_a_fence_that_is_none_does_no_harm(ledger: Ledger, tmp_path: Path) -> None:
    folder, other = _cell(ledger, "aa"), tmp_path / "letter.txt"
    for text in ("", "soon\n", "-5", "9" * 60):
        (folder / "fence").write_text(text)
        assert fence_of(folder) == 0
        claim_folder(folder, 3)
        assert fence_of(folder) == 3
    other.write_text("dear friend")
    (folder / "fence").unlink()
    (folder / "fence").symlink_to(other)
    with pytest.raises(RegistryError, match=r"fence cannot be written: .* is it a plain file"):
        claim_folder(folder, 4)
    assert other.read_text() == "dear friend"
    with Leases(ledger) as leases:
        assert leases.claim("aa") == 1


def test_a_new_driver_clears_up_after_those_who_left_without_a_word(ledger: Ledger) -> None:
    machine = Machine()
    machine.pid = 2**22 + 1  # no process can have that number
    dead, living = Leases(ledger, machine=machine), Leases(ledger)
    for one, cell in ((living, "aa"), (dead, "bb")):
        assert one.claim(cell)
        one.release(cell)
    with living, Leases(ledger) as newest:
        assert newest.claim("cc")
        with ledger.snapshot() as db:
            drivers = {row["id"] for row in db.execute("SELECT id FROM drivers")}
        assert drivers == {living.driver, newest.driver}


@pytest.mark.parametrize("patience", [0.4, 2, 60, 1e6])
def test_a_driver_has_several_signs_of_life_in_its_patience(ledger: Ledger, patience: float) -> None:
    assert 0 < Leases(ledger, patience=patience).every <= patience / 4


@pytest.mark.parametrize("given", ["0", "-1", "nan", "inf", "soon"])
def test_a_patience_that_is_none_is_refused(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKLOOM_PATIENCE", given)
    with pytest.raises(RegistryError, match=rf"should be a number of seconds above 0\. Found '{given}'"):
        patience_of_environment()
    monkeypatch.setenv("TASKLOOM_PATIENCE", "2.5")
    assert patience_of_environment() == 2.5
