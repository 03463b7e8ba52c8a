"""The driver is killed at any moment and started again: nothing reported is lost, nothing runs twice, same result."""

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from faults import EPOCH, Driver, Hold, assert_same, moments, run_here, until, workers_of

from taskloom.registry.results.ledger import Ledger


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


def damage_newest_checkpoint(registry: Path) -> None:
    """Flip a bit in the newest checkpoint of the only cell that was begun; it has an older one too."""
    older, newest = sorted(registry.glob("cells/*/checkpoint-*"))
    tensors = newest / "tensors.safetensors"
    content = bytearray(tensors.read_bytes())
    content[len(content) // 2] ^= 4
    tensors.write_bytes(content)
    print(f"damaged {newest.name} of cell {newest.parent.name}, not {older.name}")


@pytest.mark.parametrize("seed", [27])
def test_a_driver_killed_in_the_middle_of_a_step_loses_nothing(
    undisturbed: tuple[Path, dict[str, Any]], tmp_path: Path, seed: int
) -> None:
    """Killed twice, after two epochs or more; after the first time the newest checkpoint is damaged as well."""
    grid, reference = undisturbed
    registry, steps = tmp_path / "registry", moments(seed, 2, EPOCH)
    for number, step in enumerate(steps):
        hold = Hold(tmp_path / f"hold {number}", 2 * EPOCH + step)
        with killed_driver(grid, registry, hold=hold) as driver:
            driver.wait_until_held()
        if not number:
            damage_newest_checkpoint(registry)
    run_to_the_end(grid, registry)
    assert_same(registry, reference)
    with Ledger.open(registry, create=False) as ledger:
        logs = [registry / "cells" / cell.id / "log.txt" for cell in ledger.cells()]
        ends = [attempt.how for cell in ledger.cells() for attempt in ledger.attempts(cell.id)]
    assert sorted(ends) == ["finished"] * 3 + ["lost"] * 2
    logged = [line for log in logs for line in log.read_text().splitlines()]
    assert any("checkpoint passed over" in line and "checksum" in line for line in logged)


@pytest.mark.parametrize("seed", [4])
def test_a_driver_killed_at_any_instant_loses_nothing(
    undisturbed: tuple[Path, dict[str, Any]], tmp_path: Path, seed: int
) -> None:
    """The instant is not one of ours: in a step, in an evaluation, while a checkpoint or the ledger is written."""
    grid, reference = undisturbed
    alive = []
    for milliseconds in moments(seed, 3, 1500):
        with killed_driver(grid, tmp_path) as driver:
            driver.wait_for(lambda driver=driver: driver.lines)
            time.sleep(milliseconds / 1000)
            alive.append(driver.process.poll() is None)
    print(f"was at work when it was killed: {alive}")
    run_to_the_end(grid, tmp_path)
    assert_same(tmp_path, reference)


@contextmanager
def killed_driver(grid: Path, registry: Path, **options: Any) -> Iterator[Driver]:
    """A driver that is killed at the end of the block; nothing that it or an earlier one reported is gone then."""
    known = (registry / "ledger.sqlite").exists()
    before, done = (reported(registry), finished(registry)) if known else ({}, {})
    with Driver(grid, registry, **options) as driver:
        yield driver
        driver.kill()
    now = reported(registry)
    assert set(driver.epochs) <= now.keys(), "an epoch that was told of is not in the ledger"
    assert before.items() <= now.items(), "what was reported before is gone or has changed"
    assert done.items() <= finished(registry).items(), "a finished cell was run again"


def run_to_the_end(grid: Path, registry: Path) -> None:
    done = finished(registry)
    outcome = run_here(grid, registry)
    assert (outcome.finished + outcome.cached, outcome.failed) == (3, 0)
    assert done.items() <= finished(registry).items(), "a finished cell was run again"


def test_workers_of_a_deaf_and_killed_driver_end_and_nothing_they_did_is_lost(
    undisturbed: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    grid, reference = undisturbed
    registry, hold = tmp_path / "registry", Hold(tmp_path / "hold", EPOCH + 5)
    options = ("--engine", "local", "--workers", "2", "--devices", "cpu", "--threads", "1")
    with Driver(grid, registry, *options, hold=hold) as driver:
        driver.wait_until_held(2)
        assert workers_of(driver.pid) == hold.pids
        driver.signal(signal.SIGSTOP)  # from now on it is deaf, and its workers go on
        hold.let_go()
        assert driver.wait_for(lambda: list(registry.glob("cells/*/checkpoint-000-00004")))
        driver.kill()
        until(lambda: not workers_of(driver.pid))
    before = reported(registry)
    assert len(trained(registry) - before.keys()) > 0, "the driver heard everything"
    run_to_the_end(grid, registry)
    assert before.items() <= reported(registry).items()
    assert_same(registry, reference)


def test_two_drivers_share_a_grid_and_one_that_sleeps_is_waited_for(
    undisturbed: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """One is suspended with its cell; the other runs the rest and waits for that cell, which nobody runs twice."""
    grid, reference = undisturbed
    registry, hold = tmp_path / "registry", Hold(tmp_path / "hold", EPOCH + 5)
    with Driver(grid, registry, hold=hold) as sleeper:
        sleeper.wait_until_held()
        sleeper.signal(signal.SIGSTOP)
        hold.let_go()
        with ThreadPoolExecutor() as pool:
            other = pool.submit(run_here, grid, registry)
            try:
                assert sleeper.wait_for(lambda: len(finished(registry)) == 2)
                time.sleep(1.5)  # it looks once a second
                assert not other.done(), "it did not wait"
            finally:
                sleeper.signal(signal.SIGCONT)
            assert (other.result().finished, other.result().elsewhere) == (2, 1)
        code, _, text = sleeper.finish()
    assert code == 0, text
    assert_same(registry, reference)
    with Ledger.open(registry, create=False) as ledger:
        attempts = [ledger.attempts(cell.id) for cell in ledger.cells()]
    assert [[attempt.how for attempt in each] for each in attempts] == [["finished"]] * 3
    assert len({attempt.driver for each in attempts for attempt in each}) == 2
