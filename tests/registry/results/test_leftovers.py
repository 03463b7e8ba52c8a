"""What killed writers leave is removed by the next driver; what somebody is writing stays."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from taskloom.registry.results.artifacts import partial_prefix, write_atomically
from taskloom.registry.results.leases import Leases
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.leftovers import sweep

WRITER = """
import sys, tempfile, time
from pathlib import Path
from taskloom.registry.results.artifacts import partial_prefix, write_atomically

cell, stage, cache = map(Path, sys.argv[1:])
for folder in (cell, stage, cache):
    folder.mkdir(parents=True, exist_ok=True)
for folder in (cell, stage, cache):
    Path(tempfile.mkdtemp(prefix=partial_prefix(), dir=folder), "ids.npy").write_bytes(b"half")
with write_atomically(cell / "best.weights.json") as part:
    part.write_text("half")
    print("writing", flush=True)
    time.sleep(600)
"""


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.skipif(os.name == "nt", reason="needs the signals of POSIX")
def test_what_a_killed_writer_leaves_goes_and_what_is_being_written_stays(tmp_path: Path) -> None:
    rooms = [tmp_path / "cells" / "aa", tmp_path / "stages" / "ff", tmp_path / "cache"]
    for folder in rooms:
        folder.mkdir(parents=True)
        (folder / ".hidden").write_text("not ours")
        (folder / "whole.part").write_text("a file of that name")
    kept = everything(tmp_path)
    process = subprocess.Popen([sys.executable, "-c", WRITER, *map(str, rooms)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        during = everything(tmp_path)
        assert len(during) == len(kept) + 4
        assert sweep(tmp_path, alone=True) == 0, "somebody is at it, with or without a lease"
        assert everything(tmp_path) == during
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert sweep(tmp_path) == 4
    assert everything(tmp_path) == kept


def test_what_nobody_here_can_judge_goes_when_no_driver_lives(tmp_path: Path) -> None:
    with Ledger.open(tmp_path, create=True) as ledger, Ledger.open(tmp_path, create=True) as second:
        mine, theirs = Leases(ledger), Leases(second)
        theirs.beat()
        for name in (".partial-k3x_9a", ".partial-0a1b2c3d-77-5-x"):  # of an older taskloom, of another machine
            (tmp_path / "stages" / "ff" / name).mkdir(parents=True)
        (tmp_path / "cells" / "aa").mkdir(parents=True)
        (tmp_path / "cells" / "aa" / ".state.json.4711-0a1b2c3d.part").write_text("half")
        assert not mine.alone()
        assert sweep(tmp_path, alone=mine.alone()) == 0
        theirs.close()
        assert mine.alone()
        assert sweep(tmp_path, alone=mine.alone()) == 3
    assert sweep(tmp_path / "none") == 0


@pytest.mark.skipif(os.name == "nt", reason="needs links")
def test_nothing_outside_the_registry_is_swept(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs" / ".partial-mine"
    theirs.mkdir(parents=True)
    (tmp_path / "registry" / "cells" / "aa").mkdir(parents=True)
    (tmp_path / "registry" / "stages").symlink_to(tmp_path / "theirs")
    (tmp_path / "registry" / "cells" / "aa" / "best").symlink_to(tmp_path / "theirs")
    (tmp_path / "registry" / "cells" / "aa" / ".partial-link").symlink_to(tmp_path / "theirs")
    assert sweep(tmp_path / "registry", alone=True) == 1, "the link itself"
    assert theirs.is_dir()


def test_names_tell_whose_they_are(tmp_path: Path) -> None:
    with write_atomically(tmp_path / "cells.json") as part:
        part.write_text("{}")
        assert str(os.getpid()) in part.name
    folder = Path(tempfile.mkdtemp(prefix=partial_prefix(), dir=tmp_path))
    assert f"-{os.getpid()}-" in folder.name
    assert sorted(path.name for path in tmp_path.iterdir()) == [folder.name, "cells.json"]
