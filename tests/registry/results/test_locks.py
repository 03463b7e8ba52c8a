"""Locks between real processes and on real files: who has a cell, who dies, what is left behind."""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from taskloom.core import RegistryError
from taskloom.registry.results.artifacts import Artifacts, sweep
from taskloom.registry.results.locks import DRIVER, WORKER, Claims, holder, sole_worker


@contextmanager
def process(script: str, *arguments: object) -> Iterator["subprocess.Popen[str]"]:
    """A process that has printed its first line; it is killed at the end."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        try:
            assert started.stdout.readline() == "ready\n"
            yield started
        finally:
            started.kill()


# A driver that has cell "aa" and stage "k".
DRIVEN = """
import os, sys, time
from pathlib import Path
from taskloom.registry.results.locks import Claims

heavy = sys.modules.keys() & {"torch", "numpy", "scipy", "pydantic"}
assert not heavy, heavy
claims = Claims(Path(sys.argv[1]))
claims.share()
assert claims.claim("aa", ["k"])
if sys.argv[2:] == ["fork"] and not os.fork():
    print("ready", flush=True)
    time.sleep(600)
elif sys.argv[2:] != ["fork"]:
    print("ready", flush=True)
time.sleep(600)
"""

CELLS, STAGES, DRIVERS = ("a", "b", "c"), ("k", "l", "m"), 3


class LockLaws(RuleBasedStateMachine):
    """Several drivers against a model that knows no files."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.registry = Path(self.folder.name)
        self.drivers = [self.new() for _ in range(DRIVERS)]
        self.has: list[dict[str, set[str]]] = [{} for _ in range(DRIVERS)]  # of each driver: cell → its stages

    def teardown(self) -> None:
        if hasattr(self, "drivers"):
            for driver in self.drivers:
                driver.__exit__(None, None, None)
            self.folder.cleanup()

    def new(self) -> Claims:
        claims = Claims(self.registry)
        claims.share()
        return claims

    @rule(
        who=st.integers(0, DRIVERS - 1),
        cell=st.sampled_from(CELLS),
        stages=st.lists(st.sampled_from(STAGES), unique=True),
    )
    def claim(self, who: int, cell: str, stages: list[str]) -> None:
        others = [has for number, has in enumerate(self.has) if number != who]
        elsewhere = {stage for has in others for held in has.values() for stage in held}
        free = not any(cell in has for has in others) and not elsewhere & set(stages[:1])
        assert self.drivers[who].claim(cell, stages) == free
        mine = self.has[who]
        if free:
            mine[cell] = mine.get(cell, set()) | (set(stages) - elsewhere)
        else:
            mine.pop(cell, None)

    @rule(who=st.integers(0, DRIVERS - 1), cell=st.sampled_from(CELLS))
    def release(self, who: int, cell: str) -> None:
        self.drivers[who].release(cell)
        self.has[who].pop(cell, None)

    @rule(who=st.integers(0, DRIVERS - 1))
    def end(self, who: int) -> None:
        self.drivers[who].__exit__(None, None, None)
        self.drivers[who], self.has[who] = self.new(), {}

    @invariant()
    def everybody_sees_who_has_what(self) -> None:
        if hasattr(self, "has"):
            held = {cell for has in self.has for cell in has}
            assert {cell for cell in CELLS if holder(self.registry, cell) is not None} == held


TestLockLaws = LockLaws.TestCase
TestLockLaws.settings = settings(max_examples=40, stateful_step_count=30)


@pytest.mark.parametrize("how", [(), ("fork",)], ids=["alone", "with a forked child that lives on"])
def test_what_a_killed_driver_has_is_free_at_once(tmp_path: Path, how: tuple[str, ...]) -> None:
    with process(DRIVEN, tmp_path, *how) as other, Claims(tmp_path) as claims:
        claims.share()
        assert holder(tmp_path, "aa") == other.pid
        assert not claims.claim("aa")
        assert not claims.claim("bb", ["k"])
        assert holder(tmp_path, "bb") is None, "what waits for a stage holds nothing"
        other.kill()
        until = time.monotonic() + 20
        while not claims.claim("aa", ["k"]):
            assert time.monotonic() < until, "it is still taken"
        assert holder(tmp_path, "aa") == os.getpid()


def test_who_comes_first_is_alone_until_it_shares(tmp_path: Path) -> None:
    came = threading.Event()

    def come() -> None:
        with Claims(tmp_path) as second:
            assert not second.alone
            second.share()
            came.set()

    with Claims(tmp_path) as first:
        assert first.alone
        thread = threading.Thread(target=come)
        thread.start()
        assert not came.wait(0.2), "it did not wait"
        first.share()
        assert came.wait(60)
        thread.join()
    with Claims(tmp_path) as later:
        assert later.alone


def test_a_lock_is_a_plain_file_inside_the_registry(tmp_path: Path) -> None:
    folder, letter = Artifacts(tmp_path / "registry").cell("aa"), tmp_path / "letter.txt"
    letter.write_text("dear friend")
    (folder / DRIVER).symlink_to(letter)
    with Claims(tmp_path / "registry") as claims:
        with pytest.raises(RegistryError, match=rf"{DRIVER} cannot be locked.*plain file"):
            claims.claim("aa")
        assert holder(tmp_path / "registry", "aa") is None
        (folder / DRIVER).unlink()
        (folder / DRIVER).mkdir()
        with pytest.raises(RegistryError, match=rf"{DRIVER} cannot be locked.*plain file"):
            claims.claim("aa")
        (tmp_path / "registry" / "cells" / "bb").symlink_to(tmp_path)
        with pytest.raises(RegistryError, match="out of the registry"):
            claims.claim("bb")
    assert letter.read_text() == "dear friend"
    assert not (tmp_path / DRIVER).exists()


WORKING = """
import sys, time
from pathlib import Path
from taskloom.registry.results.locks import sole_worker

with sole_worker(Path(sys.argv[1]), lambda: None):
    print("ready", flush=True)
    time.sleep(600)
"""


def test_a_worker_waits_for_one_that_has_not_died_yet(tmp_path: Path) -> None:
    with process(WORKING, tmp_path) as other:
        looks = 0

        def look() -> None:
            nonlocal looks
            looks += 1
            if looks == 3:
                other.kill()

        with sole_worker(tmp_path, look):
            assert looks >= 3
            assert other.wait(60) < 0
            with pytest.raises(ZeroDivisionError), sole_worker(tmp_path, lambda: 1 // 0):
                pytest.fail("two at once")
    assert [path.name for path in tmp_path.iterdir()] == [WORKER]


# What killed writers leave


WRITER = """
import sys, tempfile, time
from pathlib import Path
from taskloom.registry.results.artifacts import partial_prefix

for folder in sys.argv[1:]:
    Path(tempfile.mkdtemp(prefix=partial_prefix(), dir=folder), "ids.npy").write_bytes(b"half")
    Path(folder, partial_prefix() + "x").write_bytes(b"half")
print("ready", flush=True)
time.sleep(600)
"""


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_what_a_killed_writer_leaves_goes_and_what_is_being_written_stays(tmp_path: Path) -> None:
    rooms = [tmp_path / "cells" / "aa", tmp_path / "stages" / "ff", tmp_path / "cache"]
    for folder in rooms:
        folder.mkdir(parents=True)
        (folder / ".hidden").write_text("not ours")
        (folder / "whole.part").write_text("a file of that name")
    kept = everything(tmp_path)
    with process(WRITER, *rooms) as writer:
        during = everything(tmp_path)
        assert len(during) == len(kept) + 6
        sweep(tmp_path)
        assert everything(tmp_path) == during, "somebody is writing"
        writer.kill()
        writer.wait()
        sweep(tmp_path)
    assert everything(tmp_path) == kept
    sweep(tmp_path / "none")


def test_nothing_outside_the_registry_is_swept(tmp_path: Path) -> None:
    dead = ".partial-9999999-x"  # no process can have that number
    theirs = tmp_path / "theirs" / dead
    theirs.mkdir(parents=True)
    (tmp_path / "registry" / "cells" / "aa").mkdir(parents=True)
    (tmp_path / "registry" / "stages").symlink_to(tmp_path / "theirs")
    (tmp_path / "registry" / "cells" / "aa" / "best").symlink_to(tmp_path / "theirs")
    (tmp_path / "registry" / "cells" / "aa" / dead).symlink_to(tmp_path / "theirs")
    sweep(tmp_path / "registry")
    assert theirs.is_dir()
    assert [path.name for path in (tmp_path / "registry" / "cells" / "aa").iterdir()] == ["best"], "the link itself"
