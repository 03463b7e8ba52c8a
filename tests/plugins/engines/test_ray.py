"""On a Ray cluster a grid ends as it does on one machine, to the last digit, whatever dies on the way.

Real Ray: two nodes on this machine's loopback, worker processes of their own.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_jobs import RAW, job, until
from safetensors.torch import load_file

from taskloom.core import Event
from taskloom.core.specs import GridSpec
from taskloom.core.testing import check
from taskloom.core.testing.engines import WORK as JOBS
from taskloom.plugins.engines.on_ray import Ray
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.analysis.tables import table_of
from taskloom.runs.driver.drive import Outcome, run_plan
from taskloom.runs.driver.signals import Stop
from taskloom.runs.grid.grid import Grid
from taskloom.runs.grid.plan import make_plan
from taskloom.runs.show.render import render


def run(folder: Path, engine: Any, listen: Any = lambda event: None, stop: Stop | None = None) -> Outcome:
    catalogue = load_catalogue()
    grid = Grid("ray-grid", Path("ray-grid.json"), GridSpec.model_validate(RAW), RAW)
    with Ledger.open(folder, create=True) as ledger:
        plan = make_plan(grid, catalogue, ledger)
        return run_plan(plan, catalogue, ledger, engine=engine, listen=listen, stop=stop)


def result(folder: Path) -> tuple[str, dict[str, Any]]:
    """The table, and the best weights of every cell."""
    with Ledger.open(folder, create=False) as ledger:
        record = ledger.grid("ray-grid")
        weights = {
            place.cell.id: load_file(folder / "cells" / place.cell.id / "best" / "tensors.safetensors")
            for place in record.cells
        }
        return render(table_of(record), "csv"), weights


def assert_same(found: tuple[str, dict[str, Any]], expected: tuple[str, dict[str, Any]]) -> None:
    assert found[0] == expected[0]
    assert found[1].keys() == expected[1].keys()
    for cell, tensors in expected[1].items():
        assert all(found[1][cell][name].equal(tensor) for name, tensor in tensors.items()), cell


def reasons(folder: Path) -> list[str | None]:
    """Why attempts were lost, as the ledger remembers it."""
    with Ledger.open(folder, create=False) as ledger:
        attempts = [one for cell in ledger.cells() for one in ledger.attempts(cell.id)]
    return [one.reason for one in attempts if one.how == "lost"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("undisturbed")
    assert run(folder, "inline").finished == 4
    return result(folder)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    import ray
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    yield made
    ray.shutdown()
    made.shutdown()


def address(cluster: Any) -> dict[str, Any]:
    return {"name": "ray", "address": cluster.address}


class Saboteur:
    """Does something once, when a cell that is not on the first node, or any, has ended an epoch."""

    def __init__(self, do: Any, when: str = "epoch") -> None:
        self.do, self.when = do, when
        self.workers: dict[str, str] = {}
        self.done = False

    def __call__(self, event: Event) -> None:
        if event.what in ("started", "resumed"):
            self.workers[event.cell] = event.facts["worker"]
        if event.what == self.when and not self.done and self.do(event, self.workers[event.cell]):
            self.done = True
            print(f"sabotaged at {event.what} {event.facts.get('epoch')} of {event.cell}")


def test_a_node_that_dies_changes_nothing(cluster: Any, undisturbed: Any, tmp_path: Path) -> None:
    second = cluster.add_node(num_cpus=1)

    def kill(event: Event, worker: str) -> bool:
        if worker != f"ray:{second.node_id[:8]}":
            return False
        cluster.remove_node(second, allow_graceful=False)
        return True

    saboteur = Saboteur(kill)
    outcome = run(tmp_path, address(cluster), saboteur)
    assert saboteur.done, saboteur.workers
    assert (outcome.finished, outcome.failed) == (4, 0), outcome
    assert_same(result(tmp_path), undisturbed)
    assert reasons(tmp_path) == ["its Ray node died"]


def test_a_worker_that_is_killed_and_a_stop_in_the_middle_change_nothing(
    cluster: Any, undisturbed: Any, tmp_path: Path
) -> None:
    def kill(event: Event, worker: str) -> bool:
        os.kill(pids[event.cell], signal.SIGKILL)
        return True

    pids: dict[str, int] = {}
    saboteur = Saboteur(kill)

    def listen(event: Event) -> None:
        if event.what in ("started", "resumed"):
            if saboteur.done and not stop.asked:
                stop()
            pids[event.cell] = event.facts["pid"]
        saboteur(event)

    stop = Stop()
    first = run(tmp_path, address(cluster), listen, stop)
    assert saboteur.done
    assert first.failed == 0
    assert first.interrupted > 0
    second = run(tmp_path, address(cluster))
    assert (second.finished + second.cached, second.failed) == (4, 0)
    assert_same(result(tmp_path), undisturbed)
    assert reasons(tmp_path) == ["its Ray worker died"]


def test_the_command_runs_a_grid_on_a_cluster(cluster: Any, tmp_path: Path) -> None:
    raw = {**RAW, "base": {**RAW["base"], "stages": [{"epochs": 1}]}, "axes": {}, "seeds": [0]}
    (tmp_path / "one.json").write_text(json.dumps(raw))
    command = [sys.executable, "-m", "taskloom.runs.cli", "run", "one.json", "--engine", "ray"]
    done = subprocess.run(
        [*command, "--address", cluster.address, "--format", "csv"],
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].startswith("base,1,1,")
    assert "ray:" in done.stderr


def test_a_cell_that_asks_for_more_than_any_node_has_fails_at_once(cluster: Any, tmp_path: Path) -> None:
    catalogue = load_catalogue()
    raw = {**RAW, "base": {**RAW["base"], "resources": {"cpus": 64}}, "axes": {}, "seeds": [0]}
    grid = Grid("greedy", Path("greedy.json"), GridSpec.model_validate(raw), raw)
    with Ledger.open(tmp_path, create=True) as ledger:
        plan = make_plan(grid, catalogue, ledger)
        outcome = run_plan(plan, catalogue, ledger, engine=address(cluster))
        assert outcome.failed == 1
        (cell,) = ledger.cells()
    assert "asks for 64 CPU; no node" in str(cell.reason)


def test_a_cell_that_waits_for_its_turn_says_so_and_needs_no_checkpoint_to_stop(cluster: Any, tmp_path: Path) -> None:
    import ray

    ray.init(cluster.address, log_to_driver=False)
    free = tmp_path / "free"
    try:

        @ray.remote(num_cpus=1)
        def busy(begun: str, free: str) -> None:
            import pathlib
            import time

            pathlib.Path(begun).touch()
            while not pathlib.Path(free).exists():
                time.sleep(0.05)

        holder = busy.remote(str(tmp_path / "begun"), str(free))
        until((tmp_path / "begun").exists)
        engine = Ray(address=cluster.address)
        engine.open(JOBS, tmp_path)
        engine.submit(job(tmp_path, 0, do="wait"))
        assert engine.poll(1.0) == []
        assert engine.queued("c0")
        engine.stop()
        assert [(event.what, event.cell) for event in engine.poll(0)] == [("interrupted", "c0")]
        free.touch()
        ray.get(holder)
        engine.submit(job(tmp_path, 1, do="count"))
        events: list[Event] = []
        until(lambda: events.extend(engine.poll(0.1)) or bool(events))  # type: ignore[func-returns-value]
        assert events[0].cell == "c1"
        assert not engine.queued("c1")
        engine.close()
    finally:
        free.touch()
        ray.shutdown()


def test_it_keeps_the_laws_of_engines(cluster: Any) -> None:
    check(Ray, address=cluster.address)
