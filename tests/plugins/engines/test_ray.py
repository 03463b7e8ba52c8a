"""On a Ray cluster a grid ends as it does on one machine, to the last digit, whatever dies on the way.

Real Ray: two nodes on this machine's loopback, worker processes of their own.
"""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import assert_same, result_of, run_here, until, write_grid
from ray_jobs import RAW, job

from taskloom.core import ENDS, Event
from taskloom.core.testing import check
from taskloom.core.testing.engines import WORK as JOBS
from taskloom.plugins.engines.devices import DEFAULTS
from taskloom.plugins.engines.on_ray import Ray
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.driver.signals import Stop


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The grid, and its result on one machine."""
    folder = tmp_path_factory.mktemp("undisturbed")
    grid = write_grid(folder, **RAW)
    assert run_here(grid, folder / "registry", engine="inline").finished == 3
    return grid, result_of(folder / "registry")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:  # workers of all its nodes find ray_jobs
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "helpers"), prepend=os.pathsep)
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        yield made
        ray.shutdown()
        made.shutdown()


def address(cluster: Any) -> dict[str, Any]:
    return {"name": "ray", "address": cluster.address}


def losses(folder: Path) -> list[str | None]:
    """Why attempts were lost, as the ledger remembers it."""
    with Ledger.open(folder, create=False) as ledger:
        attempts = [one for cell in ledger.cells() for one in ledger.attempts(cell.id)]
    return [one.reason for one in attempts if one.how == "lost"]


class Saboteur:
    """Does something once, at the end of an epoch: as soon as it succeeds, given what the cell said when it began."""

    def __init__(self, do: Callable[[dict[str, Any]], bool]) -> None:
        self.do, self.done = do, False
        self.started: dict[str, dict[str, Any]] = {}

    def __call__(self, event: Event) -> None:
        if event.what in ("started", "resumed"):
            self.started[event.cell] = event.facts
        if event.what == "epoch" and not self.done and self.do(self.started[event.cell]):
            self.done = True
            print(f"sabotaged after epoch {event.facts.get('epoch')} of {event.cell}")


def test_a_node_that_dies_changes_nothing(cluster: Any, undisturbed: Any, tmp_path: Path) -> None:
    grid, reference = undisturbed

    def kill(started: dict[str, Any]) -> bool:
        if started["worker"] != f"ray:{second.node_id[:8]}":
            return False
        cluster.remove_node(second, allow_graceful=False)
        return True

    for turn in range(4):  # until a cell was not quicker to end than its node
        folder, second, saboteur = tmp_path / str(turn), cluster.add_node(num_cpus=1), Saboteur(kill)
        outcome = run_here(grid, folder, engine=address(cluster), listen=saboteur)
        assert saboteur.done, saboteur.started
        assert (outcome.finished, outcome.failed) == (3, 0), outcome
        assert_same(folder, reference)
        if losses(folder):
            break
    assert losses(folder) == ["its Ray node died"]


def test_a_worker_that_is_killed_and_a_stop_in_the_middle_change_nothing(
    cluster: Any, undisturbed: Any, tmp_path: Path
) -> None:
    grid, reference = undisturbed
    stop = Stop()

    def kill(started: dict[str, Any]) -> bool:
        os.kill(started["pid"], signal.SIGKILL)
        return True

    saboteur = Saboteur(kill)

    def listen(event: Event) -> None:
        if event.what in ("started", "resumed") and saboteur.done and not stop.asked:
            stop()
        saboteur(event)

    first = run_here(grid, tmp_path, engine=address(cluster), listen=listen, stop=stop)
    assert saboteur.done
    assert first.failed == 0
    assert first.interrupted > 0
    second = run_here(grid, tmp_path, engine=address(cluster))
    assert (second.finished + second.cached, second.failed) == (3, 0)
    assert_same(tmp_path, reference)
    assert losses(tmp_path) == ["its Ray worker died"]


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


def test_a_process_whose_device_failed_gets_no_other_cell(cluster: Any, tmp_path: Path) -> None:
    engine = Ray(address=cluster.address)
    engine.open("ray_jobs:work", tmp_path)
    ends: dict[str, Event] = {}
    pids: dict[str, int] = {}

    def take() -> None:
        for event in engine.poll(0.1):
            if event.what == "started":
                pids[event.cell] = event.facts["pid"]
                assert event.facts["device"] == "cpu"
                assert DEFAULTS.items() <= event.facts["environment"].items()
            if event.what in ENDS:
                ends[event.cell] = event

    try:
        for number, do in enumerate(["fine", "device", "memory", "fine"]):
            engine.submit(job(tmp_path, number, do=do))
            until(lambda number=number: take() or f"c{number}" in ends)  # type: ignore[misc]
            if do != "fine":
                until(lambda number=number: not Path(f"/proc/{pids[f'c{number}']}").exists())  # type: ignore[misc]
        assert [ends[f"c{number}"].what for number in range(4)] == ["finished", "lost", "oom", "finished"]
        assert ends["c1"].facts["reason"] == "its device failed: CUDA error: device-side assert triggered"
    finally:
        engine.close()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU that torch can use")
def test_a_cell_that_asked_for_a_gpu_does_not_begin_on_the_cpu(cluster: Any, tmp_path: Path) -> None:
    node = cluster.add_node(num_cpus=1, num_gpus=1)  # says that it has one
    engine, events = Ray(address=cluster.address), list[Event]()
    engine.open("ray_jobs:work", tmp_path)
    try:
        engine.submit(job(tmp_path, 0, do="fine", resources={"gpus": 1}))
        until(lambda: events.extend(engine.poll(0.1)) or bool(events))  # type: ignore[func-returns-value]
        assert [event.what for event in events] == ["lost"]
        assert "torch cannot use the GPU that this worker was given" in events[0].facts["reason"]
    finally:
        engine.close()
        cluster.remove_node(node)


def test_it_keeps_the_laws_of_engines(cluster: Any) -> None:
    check(Ray, address=cluster.address)
