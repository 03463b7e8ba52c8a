"""What the Ray engine makes of a cluster: how many cells it has room for, and when it is given up.

Most clusters here are made up; the one whose head dies is real.
"""

import json
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import Driver, Hold
from ray_jobs import RAW, job

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
on_ray.SILENCE = on_ray.JOIN = float(sys.argv.pop(1))
on_ray.OPENING = 1.0
from taskloom.runs.cli import main
main()
"""
LOSS = {"tasks": {"sst": {**RAW["base"]["tasks"]["sst"], "loss": "faulty"}}}
ONE_CELL = {"base": {**RAW["base"], **LOSS}}


def driver(folder: Path, address: str, *, patience: float = 600.0, hold: Hold | None = None) -> Driver:
    """``taskloom run`` in a process that waits so long for a silent cluster."""
    folder.mkdir()
    (folder / "grid.json").write_text(json.dumps(ONE_CELL))
    options = ("--engine", "ray", "--address", address)
    return Driver(folder / "grid.json", folder, *options, program=("-c", DRIVER, str(patience)), hold=hold)


def test_a_head_that_dies_ends_the_run_with_the_command_that_goes_on(
    faulty: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In time for Ray not to end the program itself; whoever waits for that may stop it by Ctrl-C."""
    from ray.cluster_utils import Cluster

    hold = Hold(tmp_path / "hold", 5)
    for name, value in hold.variables.items():
        monkeypatch.setenv(name, value)
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    command = r"taskloom run \S+/{0}/grid.json --registry \S+/{0} --engine ray --address " + re.escape(made.address)
    try:
        with (
            driver(tmp_path / "patient", made.address, patience=10.0, hold=hold) as patient,
            driver(tmp_path / "stopped", made.address, hold=hold) as stopped,
        ):
            for one in (patient, stopped):
                one.wait_for_line(": started on")
            patient.wait_until_held(2)
            made.head_node.kill_all_processes(check_alive=False, allow_graceful=False)
            stopped.signal(signal.SIGINT)
            # Unless it has noticed by then that its cluster is gone, and ended.
            stopped.wait_for(lambda: any("Stopping" in line for line in stopped.lines))
            stopped.signal(signal.SIGINT)
            code, _, said = patient.finish()
            assert f"the Ray cluster at {made.address} has not answered for 10 s" in said
            assert re.search(rf"to continue:\n  {command.format('patient')}$", said), said
            assert code == 1, said
            code, _, said = stopped.finish()
            assert re.search(rf"{command.format('stopped')}$", said), said
            assert code == 130, said
    finally:
        made.shutdown()


def test_a_port_where_something_else_listens_is_given_up(faulty: None, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = f"127.0.0.1:{server.getsockname()[1]}"
        with driver(tmp_path / "here", where, patience=1.0) as given_up:
            code, _, said = given_up.finish()
    assert f"the Ray cluster at {where} has not answered for 1 s; it may still be starting" in said
    assert code == 1, said
