"""Workers that die, hang or compute nonsense: the cell goes on elsewhere or fails alone, and the result is the same."""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from faults import EPOCH, Hold, assert_same, faulty_rows, moments, result_of, run_here, workers_of, write_grid

from taskloom.core import Event
from taskloom.registry.results.ledger import Ledger

LOCAL = {"name": "local", "workers": 2, "devices": "cpu", "threads": 1, "cells_per_gpu": 1}


@pytest.mark.parametrize("seed", [11])
def test_killed_workers_change_nothing(
    undisturbed: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Three times a worker is killed in the middle of a step, from its second epoch on."""
    grid, reference = undisturbed
    hold = Hold(tmp_path / "hold", EPOCH + moments(seed, 1, EPOCH)[0])
    for name, value in hold.variables.items():
        monkeypatch.setenv(name, value)
    killed: list[int] = []
    heard: list[str] = []

    def kill() -> None:
        while len(killed) < 3:
            for pid in set(hold.pids).difference(killed):
                print(f"SIGKILL of worker {pid} in its step {hold.at}")
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
            time.sleep(0.01)
        hold.let_go()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    outcome = run_here(
        grid, tmp_path / "registry", engine=LOCAL, attempts=9, listen=lambda event: heard.append(event.what)
    )
    killer.join()
    assert (outcome.finished, outcome.failed) == (3, 0)
    assert_same(tmp_path / "registry", reference)
    with Ledger.open(tmp_path / "registry", create=False) as ledger:
        attempts = [ledger.attempts(cell.id) for cell in ledger.cells()]
    ends = [[(attempt.how, attempt.reason) for attempt in each] for each in attempts]
    assert all(each[-1] == ("finished", None) for each in ends)
    lost = [reason for each in ends for how, reason in each[:-1] if how == "lost"]
    assert len(lost) == len(killed) == sum(map(len, ends)) - 3
    assert all("was killed (SIGKILL)" in str(reason) for reason in lost)
    assert heard.count("resumed") == len(killed), "a cell did not go on from its checkpoint"
    assert workers_of(os.getpid()) == []
    assert not list(tmp_path.glob("registry/cells/*/checkpoint-*"))


def test_a_device_that_fails_costs_one_process_and_no_cell(faulty: None, tmp_path: Path) -> None:
    """In the process where it failed every later step would fail; the cells go on in others, bit for bit."""
    (tmp_path / "whole").mkdir()
    rows = faulty_rows(breaks={"do": "device", "at": 30}, again={"do": "device", "at": 31})
    fine = write_grid(tmp_path / "whole", **faulty_rows())
    assert run_here(fine, tmp_path / "whole").finished == 1
    pids: dict[str, list[int]] = {}

    def listen(event: Event) -> None:
        if event.what in ("started", "resumed"):
            pids.setdefault(event.cell, []).append(event.facts["pid"])

    outcome = run_here(
        write_grid(tmp_path, **rows), tmp_path / "registry", engine={**LOCAL, "workers": 1}, attempts=2, listen=listen
    )
    assert (outcome.finished, outcome.failed) == (3, 0), outcome.reasons
    with Ledger.open(tmp_path / "registry", create=False) as ledger:
        cells = {place.label: place.cell for place in ledger.grid("grid").cells}
        for label in ("breaks", "again"):
            lost, last = ledger.attempts(cells[label].id)
            assert (lost.how, last.how) == ("lost", "finished")
            assert lost.reason == "its device failed: CUDA error: an illegal memory access was encountered"
            assert len(set(pids[cells[label].id])) == 2, "tried again in the process whose device had failed"
            assert cells[label].scores == cells["fine"].scores
    whole = result_of(tmp_path / "whole")["fine, seed 5"]
    found = result_of(tmp_path / "registry")
    for label in ("fine", "breaks", "again"):
        assert found[f"{label}, seed 5"]["files"] == whole["files"]


def test_what_fails_fails_alone_with_its_reason(faulty: None, tmp_path: Path) -> None:
    rows = {
        "raises": {"do": "raise"},
        "is not a number": {"do": "nan", "at": 15},
        "hangs": {"do": "hang"},
        "dies": {"do": "die"},
    }
    grid = write_grid(tmp_path, **faulty_rows(**rows))
    outcome = run_here(grid, tmp_path / "registry", engine=LOCAL, attempts=1, timeout=6.0)
    assert (outcome.finished, outcome.failed) == (1, 4)
    with Ledger.open(tmp_path / "registry", create=False) as ledger:
        cells = {place.label: place.cell for place in ledger.grid("grid").cells}
        assert cells["fine"].status == "finished"
        reasons = {label: str(cell.reason) for label, cell in cells.items() if cell.status == "failed"}
        assert reasons.keys() == rows.keys()
        assert "ZeroDivisionError: a defect of the plugin" in reasons["raises"]
        for words in ("'sst'", "'faulty'", "epoch 2, step 3"):
            assert words in reasons["is not a number"]
        assert reasons["hangs"] == "lost its worker once: no progress for 6 s (--timeout)"
        assert reasons["dies"] == "lost its worker once: worker process was killed (SIGKILL)"
        log = tmp_path / "registry" / "cells" / cells["raises"].id / "log.txt"
        assert "ZeroDivisionError: a defect of the plugin" in log.read_text()
    assert workers_of(os.getpid()) == []
