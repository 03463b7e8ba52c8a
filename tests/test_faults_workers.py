"""Workers that die, hang or compute nonsense: the cell goes on elsewhere or fails alone, and the result is the same."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from faults import assert_same, faulty_rows, moments, plugin, result_of, run_here, workers_of, write_grid

from taskloom.core import Event
from taskloom.registry.ledger import Ledger

LOCAL = {"name": "local", "workers": 2, "devices": "cpu", "threads": 1, "cells_per_gpu": 1}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("undisturbed")
    grid = write_grid(folder)
    assert run_here(grid, folder / "registry").finished == 3
    return grid, result_of(folder / "registry")


@pytest.mark.parametrize("seed", [11])
def test_killed_workers_change_nothing(undisturbed: tuple[Path, dict[str, Any]], tmp_path: Path, seed: int) -> None:
    grid, reference = undisturbed
    due = moments(seed, 3, 11)  # a run tells of 3 beginnings and 12 epochs, more after a kill
    heard, killed, pids = 0, dict[str, int](), dict[str, int]()

    def kill(event: Event) -> None:
        nonlocal heard
        if event.what in ("started", "resumed"):
            pids[event.cell] = event.facts["pid"]
        if event.what in ("started", "resumed", "epoch"):
            heard += 1
            if heard in due:
                print(f"event {heard}: SIGKILL of worker {pids[event.cell]} at {event.what} of cell {event.cell}")
                os.kill(pids[event.cell], signal.SIGKILL)
                killed[event.cell] = killed.get(event.cell, 0) + 1

    outcome = run_here(grid, tmp_path, engine=LOCAL, attempts=9, listen=kill)
    assert (outcome.finished, outcome.failed) == (3, 0)
    assert sum(killed.values()) == len(due)
    assert_same(tmp_path, reference)
    lost = 0
    with Ledger.open(tmp_path, create=False) as ledger:
        for cell in ledger.cells():
            ends = [(attempt.how, attempt.reason) for attempt in ledger.attempts(cell.id)]
            assert ends[-1] == ("finished", None)
            assert all(how == "lost" and "was killed (SIGKILL)" in str(reason) for how, reason in ends[:-1])
            assert len(ends) - 1 <= killed.get(cell.id, 0)
            lost += len(ends) - 1
    assert lost > 0, "every kill came too late"
    assert workers_of(os.getpid()) == []
    assert not list(tmp_path.glob("cells/*/checkpoint-*"))


def test_what_fails_fails_alone_with_its_reason(tmp_path: Path) -> None:
    rows = {
        "raises": {"do": "raise"},
        "is not a number": {"do": "nan", "at": 15},
        "hangs": {"do": "hang"},
        "dies": {"do": "die"},
    }
    with plugin(tmp_path / "site"):
        grid = write_grid(tmp_path, **faulty_rows(**rows))
        outcome = run_here(grid, tmp_path / "registry", engine=LOCAL, attempts=2, timeout=5.0)
    assert (outcome.finished, outcome.failed) == (1, 4)
    with Ledger.open(tmp_path / "registry", create=False) as ledger:
        cells = {place.label: place.cell for place in ledger.grid("grid").cells}
        assert cells["fine"].status == "finished"
        reasons = {label: str(cell.reason) for label, cell in cells.items() if cell.status == "failed"}
        assert reasons.keys() == rows.keys()
        assert "ZeroDivisionError: a defect of the plugin" in reasons["raises"]
        for words in ("'sst'", "'faulty'", "epoch 2, step 3"):
            assert words in reasons["is not a number"]
        assert reasons["hangs"] == "lost its worker 2 times: said nothing for 5 s (--timeout)"
        assert "lost its worker 2 times: worker process" in reasons["dies"]
        assert reasons["dies"].count("was killed (SIGKILL)") == 2
        counts = {label: len(ledger.attempts(cell.id)) for label, cell in cells.items()}
        assert counts == {"fine": 1, "raises": 1, "is not a number": 1, "hangs": 2, "dies": 2}
        log = tmp_path / "registry" / "cells" / cells["raises"].id / "log.txt"
        assert "ZeroDivisionError: a defect of the plugin" in log.read_text()
    assert workers_of(os.getpid()) == []
