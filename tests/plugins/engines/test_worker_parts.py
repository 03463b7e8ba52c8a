"""What workers are made of: the log of a cell, deaths in words, a process that trains."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from taskloom.core import RequestError, cell_log
from taskloom.plugins.engines import Local
from taskloom.plugins.engines.deaths import describe_death, kernel_kills, memory_limit, ran_out_of_memory


def test_a_log_does_not_grow_without_bound(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "cells" / "c"
    folder.mkdir(parents=True)
    with cell_log.Redirected(folder, limit=10_000) as log:
        for line in range(100):
            os.write(1, b"%03d" % line + b"x" * 996 + b"\n")
            log.rotate()
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    assert sizes.keys() == {"log.txt", "log-old.txt"}
    assert max(sizes.values()) <= 11_000
    lines = (folder / "log-old.txt").read_text().split() + (folder / "log.txt").read_text().split()
    assert [int(line[:3]) for line in lines] == list(range(100 - len(lines), 100)), "the newest lines are kept in order"
    with cell_log.Redirected(folder, limit=10_000) as log:
        for line in range(90):  # between two events
            os.write(1, b"%03d" % line + b"y" * 996 + b"\n")
        log.rotate()
    kept = (folder / "log-old.txt").read_text()
    assert 9_000 <= len(kept) <= 10_000
    assert [int(line[:3]) for line in kept.split()] == list(range(90 - len(kept) // 1000, 90))
    os.write(1, b"outside\n")
    assert capfd.readouterr().out == "outside\n"


@pytest.mark.parametrize("seed", range(5))
def test_a_log_is_bounded_and_its_end_kept_whoever_writes_to_it(tmp_path: Path, seed: int) -> None:
    """A worker prints, the driver appends, an attempt that was given up still prints; each makes room when it does."""
    generator, limit, written = random.Random(seed), 5_000, []

    def line() -> bytes:
        written.append(b"%05d" % len(written) + b"x" * generator.choice((0, 90, 900)) + b"\n")
        return written[-1]

    def kept() -> bytes:
        return b"".join(path.read_bytes() for path in (tmp_path / "log-old.txt", tmp_path / "log.txt") if path.exists())

    (tmp_path / "log.txt").touch()
    given_up = os.open(tmp_path / "log.txt", os.O_WRONLY | os.O_APPEND)
    worker = os.open(tmp_path / "log.txt", os.O_WRONLY | os.O_APPEND)
    for _ in range(300):
        match generator.choice(("worker", "worker", "event", "driver", "given up")):
            case "driver":
                cell_log.append(tmp_path, line().decode(), limit=limit)
            case "event":
                cell_log.rotate(tmp_path, limit)
            case who:
                os.write(worker if who == "worker" else given_up, line())
                assert (tmp_path / "log.txt").read_bytes().endswith(written[-1]), "the newest lines are in log.txt"
                continue
        assert len(kept()) <= 2 * limit
        assert b"".join(written).endswith(kept())
    assert len(b"".join(written)) > 4 * limit, "the bound was put to the test"
    assert len(kept()) > limit / 2, "not more than needed is lost"
    os.close(given_up)
    os.close(worker)


def test_a_line_larger_than_a_log_is_cut(tmp_path: Path) -> None:
    cell_log.append(tmp_path, "x" * 9_999 + "end", limit=1_000)
    cell_log.append(tmp_path, "after", limit=1_000)
    assert (tmp_path / "log-old.txt").read_text() == "x" * 996 + "end\n"
    assert (tmp_path / "log.txt").read_text() == "after\n"


def test_a_kill_by_the_system_for_want_of_memory_is_told_from_others() -> None:
    kills = kernel_kills()
    assert ran_out_of_memory(-9, int(0.9 * memory_limit()), kills)
    assert ran_out_of_memory(-9, 0, kills - 1), "the system killed something since"
    assert not ran_out_of_memory(-9, int(0.1 * memory_limit()), kernel_kills())
    assert not ran_out_of_memory(-11, int(0.9 * memory_limit()), kills - 1), "a crash is a crash"
    assert describe_death(None, 5) == "worker process 5 is gone"
    assert describe_death(-64, 5) == "worker process 5 crashed (SIGRTMAX)"


def test_a_process_that_trains_is_spared_the_compiler() -> None:
    script = (
        "import sys, torch; from taskloom.runs.training.machine import skip_compiler; skip_compiler()\n"
        "weight = torch.nn.Parameter(torch.ones(3)); optimizer = torch.optim.AdamW([weight], lr=0.1)\n"
        "(weight * torch.tensor([1.0, 0.0, -1.0])).sum().backward()\n"
        "optimizer.step(); optimizer.zero_grad(); optimizer.load_state_dict(optimizer.state_dict())\n"
        "print('torch._dynamo' in sys.modules, torch.is_grad_enabled(), weight.grad_fn, end=' ')\n"
        "print((weight * 1000).round().tolist())"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    # By hand: each weight decays by lr · 0.01, then moves by lr against the sign of its gradient.
    assert told.stdout == "False True None [899.0, 999.0, 1099.0]\n", told.stderr


def test_a_system_without_process_groups_is_told_of_the_other_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "killpg")  # as on Windows
    with pytest.raises(RequestError, match=r"engine 'local'.*\n.*process groups.*use `--engine inline`"):
        Local().check()


def test_nothing_that_windows_lacks_is_imported() -> None:
    script = (
        "import sys; sys.modules.update(resource=None, fcntl=None, termios=None)\n"
        "import taskloom.runs.cli, taskloom.plugins.engines, taskloom.plugins.engines.worker\n"
        "import taskloom.runs.training.cell\n"
        "from taskloom.runs.training.machine import peak_memory; print(peak_memory() >= 0)"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert told.stdout == "True\n", told.stderr
