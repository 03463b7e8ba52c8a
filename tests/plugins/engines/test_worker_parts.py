"""What workers are made of: the log of a cell, a process that trains."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from taskloom.core import cell_log


def test_a_log_is_bounded_and_its_end_kept_whoever_writes_to_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A worker prints, the driver appends, an attempt that was given up still prints; rotated at every event."""
    limit, line = 5_000, 0
    (tmp_path / "log.txt").touch()
    given_up = os.open(tmp_path / "log.txt", os.O_WRONLY | os.O_APPEND)
    with cell_log.redirected(tmp_path):
        for event in range(30):
            for _ in range(event % 4):
                os.write(1, b"%05d by C\n" % line)
                print(f"{line + 1:05d} by Python", "x" * 300)
                cell_log.append(tmp_path, f"{line + 2:05d} by the driver")
                os.write(given_up, b"%05d by another process\n" % (line + 3))
                line += 4
            cell_log.rotate(tmp_path, limit)
        print("at the end", end="")
    os.write(1, b"outside\n")
    os.close(given_up)
    old, new = ((tmp_path / name).read_text() for name in ("log-old.txt", "log.txt"))
    assert len(old) <= limit
    assert len(new) <= limit
    kept = [int(line[:5]) for line in (old + new).splitlines()[1:-1]]
    assert kept == list(range(line - len(kept), line)), "the newest lines are kept in order"
    assert len(kept) < line, "the bound was put to the test"
    assert new.endswith("at the end")
    assert capfd.readouterr().out == "outside\n"


def test_a_text_larger_than_a_log_is_cut(tmp_path: Path) -> None:
    cell_log.append(tmp_path, "x" * 9_999 + "end")
    cell_log.rotate(tmp_path, 1_000)
    cell_log.append(tmp_path, "after")
    assert (tmp_path / "log-old.txt").read_text() == "x" * 996 + "end\n"
    assert (tmp_path / "log.txt").read_text() == "after\n"


def test_a_process_that_trains_is_spared_the_compiler() -> None:
    script = (
        "import sys, torch; from taskloom.runs.training.machine import skip_compiler; skip_compiler()\n"
        "weight = torch.nn.Parameter(torch.ones(3)); optimizer = torch.optim.AdamW([weight], lr=0.1)\n"
        "(weight * torch.tensor([1.0, 0.0, -1.0])).sum().backward()\n"
        "optimizer.step(); optimizer.zero_grad(); optimizer.load_state_dict(optimizer.state_dict())\n"
        "print('torch._dynamo' in sys.modules, torch.is_grad_enabled(), weight.grad_fn, end=' ')\n"
        "print((weight * 1000).round().tolist())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    # By hand: each weight decays by lr · 0.01, then moves by lr against the sign of its gradient.
    assert done.stdout == "False True None [899.0, 999.0, 1099.0]\n", done.stderr


def test_nothing_that_windows_lacks_is_imported() -> None:
    script = (
        "import sys; sys.modules.update(resource=None, fcntl=None, termios=None)\n"
        "import taskloom.runs.cli, taskloom.plugins.engines, taskloom.plugins.engines.worker\n"
        "import taskloom.runs.training.cell\n"
        "from taskloom.runs.training.machine import peak_memory; print(peak_memory() >= 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr
