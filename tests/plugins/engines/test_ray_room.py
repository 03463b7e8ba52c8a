"""What the Ray engine makes of a cluster: how many cells it has room for, and when it is given up.

Most clusters here are made up; the one whose head dies is real.
"""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import Hold
from ray_jobs import RAW, job, until

from taskloom.core import EngineError, TaskloomError
from taskloom.plugins.engines.on_ray import PATIENCE, SILENCE, Ray
from taskloom.plugins.engines.ray_tasks import RayThread, next_event
from taskloom.runs.driver.drive import WORK


def joined(*nodes: dict[str, float]) -> Ray:
    """An engine that has joined a made-up cluster, which begins nothing."""
    engine = Ray()
    engine._thread = thread = RayThread(None, WORK)
    thread.nodes, thread.has_gpus = list(nodes), any("GPU" in node for node in nodes)
    thread.joined.set()
    thread.is_alive = lambda: True  # type: ignore[method-assign]
    return engine


def test_no_cell_moves_to_the_cpu_because_a_gpu_node_died(tmp_path: Path) -> None:
    engine = joined({"CPU": 4.0}, {"CPU": 8.0, "GPU": 2.0})
    assert engine._thread is not None
    engine._thread.nodes = engine._thread.nodes[:1]
    assert engine.free == 0
    engine.submit(job(tmp_path))
    (event,) = engine.poll(0)
    assert event.what == "failed"
    assert "asks for 1 CPU and 1 GPU" in event.facts["reason"]


@pytest.mark.parametrize(
    ("cpus", "gpus", "asked", "at_once"),
    [
        (4, 0, {}, 4),
        (4, 0, {"cpus": 2, "gpus": None}, 2),
        (8, 2, {}, 2),
        (8, 1, {"gpus": 0.25}, 4),
        (4, 1, {"gpus": 0}, 4),
        (4, 1, {"gpus": 0, "cpus": 2}, 2),
    ],
)
def test_cells_share_gpus_and_leave_those_alone_that_they_do_not_need(
    cpus: float, gpus: float, asked: dict[str, float], at_once: int, tmp_path: Path
) -> None:
    engine = joined({"CPU": cpus, "GPU": gpus} if gpus else {"CPU": cpus})
    number = 0
    while engine.free:
        engine.submit(job(tmp_path, number, resources=asked))
        number += 1
    assert number == at_once


def test_cells_of_different_sizes_never_have_more_than_one_waiting(tmp_path: Path) -> None:
    engine = joined({"CPU": 8.0, "GPU": 2.0})
    for number, gpus in enumerate([1, 0, 1, 1, 1]):
        if engine.free:
            engine.submit(job(tmp_path, number, resources={"gpus": gpus}))
    assert list(engine._cells) == ["c0", "c1", "c2", "c3"]


def test_a_cluster_that_is_silent_ends_the_run_but_not_before_it_can_be_stopped(tmp_path: Path) -> None:
    engine = joined({"CPU": 4.0})
    assert engine._thread is not None
    engine.submit(job(tmp_path, 0))
    engine._thread.answered -= SILENCE / 2
    assert engine.poll(0) == []
    engine._thread.answered -= SILENCE
    engine.stop(at_once=True)
    assert [(event.what, event.cell) for event in engine.poll(0)] == [("lost", "c0")]
    with pytest.raises(EngineError, match=r"has not answered for 45 s; its head may be gone"):
        engine.poll(0)


def test_a_cluster_without_room_for_any_cell_is_given_up_after_a_while() -> None:
    engine = joined({"CPU": 4.0, "GPU": 1.0})
    assert engine._thread is not None
    engine._thread.nodes = [{"CPU": 4.0}]
    assert engine.poll(0) == []
    engine._had_room -= PATIENCE + 1
    with pytest.raises(EngineError, match=r"no node for a cell \(1 CPU and 1 GPU\) for 300 s"):
        engine.poll(0)


def test_a_worker_that_ray_ends_because_memory_ran_out_ran_out_of_it(tmp_path: Path) -> None:
    from ray.exceptions import OutOfMemoryError, WorkerCrashedError

    def stream(error: Exception) -> Iterator[Any]:
        raise error
        yield

    event = next_event(stream(OutOfMemoryError("4 GiB of 4 GiB")), job(tmp_path))
    assert event is not None
    assert (event.what, event.attempt, event.facts["micro_batch"]) == ("oom", 7, 4)
    lost = next_event(stream(WorkerCrashedError()), job(tmp_path))
    assert lost is not None
    assert (lost.what, lost.facts["reason"]) == ("lost", "its Ray worker died")


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", r"no Ray cluster answers at '127\.0\.0\.1:1'"),
        ("somewhere", r"should be 'auto', 'local' or HOST:PORT\. Found 'somewhere'"),
        ("ray://127.0.0.1:10001", "should be 'auto', 'local' or HOST:PORT"),
    ],
)
def test_a_cluster_that_is_not_there_is_refused_at_once(address: str, message: str) -> None:
    with pytest.raises(TaskloomError, match=message):
        Ray(address=address).check()


DRIVER = """
import sys
from taskloom.plugins.engines import on_ray
on_ray.SILENCE, on_ray.JOIN, on_ray.OPENING = float(sys.argv.pop(1)), float(sys.argv.pop(1)), 1.0
from taskloom.runs.cli import main
main()
"""
LOSS = {"tasks": {"sst": {**RAW["base"]["tasks"]["sst"], "loss": "faulty"}}}
ONE_CELL = {"base": {**RAW["base"], **LOSS}}


class Driver:
    """``taskloom run`` in a process of its own that gives a silent cluster up sooner; it does not outlive the block."""

    def __init__(self, folder: Path, address: str, *, silence: float = 600.0, join: float = 600.0) -> None:
        folder.mkdir()
        (folder / "grid.json").write_text(json.dumps(ONE_CELL))
        self.log = folder / "stderr"
        command = [sys.executable, "-c", DRIVER, str(silence), str(join), "run", "grid.json", "--engine", "ray"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, "--address", address], cwd=folder, stderr=log, stdout=subprocess.DEVNULL
            )

    def __enter__(self) -> "Driver":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def wait_for(self, text: str) -> None:
        until(lambda: text in self.log.read_text() or self.process.poll() is not None)
        assert text in self.log.read_text(), self.log.read_text()

    def end(self) -> tuple[int, str]:
        return self.process.wait(120), self.log.read_text()


def test_a_head_that_dies_ends_the_run_with_the_command_that_goes_on(
    faulty: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In time for Ray not to end the program itself; whoever waits for that may stop it by Ctrl-C."""
    from ray.cluster_utils import Cluster

    hold = Hold(tmp_path / "hold", 5)
    for name, value in hold.variables.items():
        monkeypatch.setenv(name, value)
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    command = f"taskloom run grid.json --engine ray --address {made.address}"
    try:
        with (
            Driver(tmp_path / "patient", made.address, silence=12.0) as patient,
            Driver(tmp_path / "stopped", made.address) as stopped,
        ):
            for driver in (patient, stopped):
                driver.wait_for(": started on")
            until(lambda: len(hold.pids) == 2)
            made.head_node.kill_all_processes(check_alive=False, allow_graceful=False)
            stopped.process.send_signal(signal.SIGINT)
            stopped.wait_for("Stopping")
            stopped.process.send_signal(signal.SIGINT)
            code, said = patient.end()
            assert f"the Ray cluster at {made.address} has not answered for 12 s" in said
            assert said.rstrip().endswith(f"to continue:\n  {command}"), said
            assert code == 1, said
            code, said = stopped.end()
            assert said.rstrip().endswith(command), said
            assert code == 130, said
    finally:
        made.shutdown()


def test_a_port_where_something_else_listens_is_given_up(faulty: None, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = f"127.0.0.1:{server.getsockname()[1]}"
        with Driver(tmp_path / "here", where, join=4.0) as driver:
            code, said = driver.end()
    assert f"the Ray cluster at {where} has not answered for 4 s; it may still be starting" in said
    assert code == 1, said
