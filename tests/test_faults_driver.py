"""The driver is killed at any moment and started again: nothing reported is lost, nothing runs twice, same result."""

import signal
from pathlib import Path
from typing import Any

import pytest
from faults import (
    assert_same,
    driving,
    moments,
    no_workers_left,
    result_of,
    run_here,
    workers_of,
    write_grid,
)

from taskloom.registry.ledger import Ledger


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("undisturbed")
    grid = write_grid(folder)
    assert run_here(grid, folder / "registry").finished == 3
    return grid, result_of(folder / "registry")


def reported(registry: Path) -> dict[tuple[str, int], Any]:
    """What the ledger has: epochs by row and number."""
    with Ledger.open(registry, create=False) as ledger:
        return {
            (f"{place.label}, seed {place.seed}", epoch.epoch): (epoch.losses, epoch.scores)
            for place in ledger.grid("grid").cells
            for epoch in ledger.epochs(place.cell.id)
        }


def trained(registry: Path) -> set[tuple[str, int]]:
    """The last epochs of which there are checkpoints."""
    with Ledger.open(registry, create=False) as ledger:
        return {
            (f"{place.label}, seed {place.seed}", int(path.name.split("-")[2]))
            for place in ledger.grid("grid").cells
            for path in (registry / "cells" / place.cell.id).glob("checkpoint-*")
        }


def finished(registry: Path) -> dict[str, tuple[int, str | None]]:
    """The finished cells: how often they were begun, and when they ended."""
    with Ledger.open(registry, create=False) as ledger:
        return {cell.id: (cell.attempts, cell.finished) for cell in ledger.cells() if cell.status == "finished"}


def damage_newest_checkpoint(registry: Path) -> bool:
    """Flip a bit in the newest checkpoint of a cell that has an older one too."""
    for cell in (registry / "cells").iterdir():
        kept = sorted(cell.glob("checkpoint-*"))
        if len(kept) > 1:
            tensors = kept[-1] / "tensors.safetensors"
            content = bytearray(tensors.read_bytes())
            content[len(content) // 2] ^= 4
            tensors.write_bytes(content)
            print(f"damaged {kept[-1].name} of cell {cell.name}")
            return True
    return False


@pytest.mark.parametrize("seed", [27])
def test_a_killed_driver_loses_nothing(undisturbed: tuple[Path, dict[str, Any]], tmp_path: Path, seed: int) -> None:
    grid, reference = undisturbed
    damaged = False
    for moment in moments(seed, 3, 9):
        before, done = reported(tmp_path) if (tmp_path / "ledger.sqlite").exists() else {}, {}
        if before:
            done = finished(tmp_path)
        with driving(grid, tmp_path) as driver:
            wanted = max(1, moment - len(before))
            driver.wait_for(lambda wanted=wanted, driver=driver: len(driver.epochs) >= wanted)
            driver.kill()
            told = driver.epochs
        now = reported(tmp_path)
        assert set(told) <= now.keys(), "an epoch that was told of is not in the ledger"
        assert before.items() <= now.items(), "what was reported before is gone or has changed"
        assert done.items() <= finished(tmp_path).items(), "a finished cell was run again"
        damaged = damaged or damage_newest_checkpoint(tmp_path)
    done = finished(tmp_path)
    with driving(grid, tmp_path) as driver:
        code, _, text = driver.finish()
    assert code == 0, text
    assert done.items() <= finished(tmp_path).items()
    assert_same(tmp_path, reference)
    with Ledger.open(tmp_path, create=False) as ledger:
        logged = [line for cell in ledger.cells() for line in ledger.log(cell.id)]
        ends = [attempt.how for cell in ledger.cells() for attempt in ledger.attempts(cell.id)]
    assert "lost" in ends
    assert damaged, "no kill left a checkpoint to damage"
    assert any("checkpoint passed over" in line and "checksum" in line for line in logged)


def test_workers_of_a_deaf_and_killed_driver_end_and_nothing_they_did_is_lost(
    undisturbed: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    grid, reference = undisturbed
    with driving(grid, tmp_path, "--engine", "local", "--workers", "2", "--devices", "cpu", "--threads", "1") as driver:
        assert driver.wait_for(lambda: len(driver.epochs) >= 1)
        workers = workers_of(driver.pid)
        assert workers
        driver.signal(signal.SIGSTOP)  # from now on it is deaf, and its workers go on
        assert driver.wait_for(lambda: list(tmp_path.glob("cells/*/checkpoint-000-00004")))
        driver.kill()
        assert no_workers_left(driver.pid)
    before = reported(tmp_path)
    assert len(trained(tmp_path) - before.keys()) > 0, "the driver heard everything"
    outcome = run_here(grid, tmp_path)
    assert outcome.finished + outcome.cached == 3
    assert before.items() <= reported(tmp_path).items()
    assert_same(tmp_path, reference)


def test_two_drivers_share_a_grid_and_one_that_slept_is_late(
    undisturbed: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """One falls asleep over its cell; the other runs the rest, takes that cell up too, and is waited for."""
    grid, reference = undisturbed
    with driving(grid, tmp_path, TASKLOOM_PATIENCE="2") as sleeper:
        assert sleeper.wait_for(lambda: len(sleeper.epochs) >= 1)
        sleeper.signal(signal.SIGSTOP)
        with driving(grid, tmp_path, TASKLOOM_PATIENCE="60") as other:
            code, table, text = other.finish()
        assert code == 0, text
        sleeper.signal(signal.SIGCONT)
        late_code, late_table, late_text = sleeper.finish()
    assert late_code == 0, late_text
    assert table == late_table
    assert_same(tmp_path, reference)
    with Ledger.open(tmp_path, create=False) as ledger:
        for cell in ledger.cells():
            ends = [(attempt.how, attempt.driver) for attempt in ledger.attempts(cell.id)]
            assert [how for how, _ in ends].count("finished") == 1, ends
        drivers = {attempt.driver for cell in ledger.cells() for attempt in ledger.attempts(cell.id)}
        assert len(drivers) == 2
        assert [cell.attempts for cell in ledger.cells()] != [1, 1, 1], "the sleeper's cell was not taken up"
