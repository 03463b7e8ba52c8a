"""A real MLflow server on this machine, and the file that serves without one. Importing MLflow takes seconds."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import until
from tracked import NAME, Known, kill_and_resume, known_cells

from taskloom.core.testing import check
from taskloom.core.testing.trackers import CELLS, run_calls, tell
from taskloom.plugins.trackers import MLflow
from taskloom.plugins.trackers.packages import plain_name

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with a database of its own."""
    folder = tmp_path_factory.mktemp("server")
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{one.getsockname()[1]}"
    host, port = address.split(":")
    command = [sys.executable, "-m", "mlflow", "server", "--host", host, "--port", port, "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder}/store.db", "--artifacts-destination", str(folder / "art")]
    quick = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env=quick, stdout=log, stderr=log, start_new_session=True)
    try:
        until(lambda: answers(f"http://{address}/health") or process.poll() is not None)
        assert process.poll() is None, (folder / "log.txt").read_text()
        yield f"http://{address}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # and its worker; it is the first of its own session
        process.wait(60)


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def same_as(uri: str, known: list[Known], tmp_path: Path) -> None:
    """What MLflow's own client reads is what the ledger knows."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(NAME)
    assert experiment is not None
    runs: dict[str, Any] = {str(run.info.run_name): run for run in client.search_runs([experiment.experiment_id])}
    assert runs.keys() == {"table", *(one.run.title for one in known)}
    for one in known:
        run = runs[one.run.title]
        assert run.info.status == "FINISHED"
        tags = {key.removeprefix("taskloom."): value for key, value in run.data.tags.items() if "taskloom." in key}
        assert tags == one.run.tags
        expected = {plain_name(key, also=" /"): str(value) for key, value in one.run.parameters.items()}
        assert run.data.params == expected
        for name in one.names - one.final.keys():
            told = client.get_metric_history(run.info.run_id, plain_name(name, also=" /"))
            curve = [(number, epoch[name]) for number, epoch in one.curves.items() if name in epoch]
            assert sorted((each.step, each.value) for each in told) == curve, name
        assert {name: run.data.metrics[name] for name in one.final} == one.final
    file = client.download_artifacts(runs["table"].info.run_id, "table.md", str(tmp_path))
    assert "| famo" in Path(file).read_text(encoding="utf-8")


def test_a_server(faulty: None, server: str, tmp_path: Path) -> None:
    registry = kill_and_resume(tmp_path, f'{{"name": "mlflow", "uri": "{server}"}}', again=False)
    same_as(server, known_cells(registry), tmp_path)
    assert not (registry / "mlflow.db").exists()


@pytest.mark.filterwarnings("ignore")  # of MLflow's own
def test_a_server_is_told_by_all_laws(server: str) -> None:
    check(MLflow, uri=server)


@pytest.mark.filterwarnings("ignore")
def test_without_one_it_is_a_file_in_the_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs at once; told again, nothing is there twice; what has not ended when it is closed was killed."""
    from mlflow import MlflowClient

    monkeypatch.chdir(tmp_path)
    tracker, (one, other) = MLflow(), (run_calls(cell) for cell in CELLS)
    tracker.open(tmp_path / "registry")
    tell(tracker, [call for pair in zip(one, other, strict=True) for call in pair])
    tell(tracker, [*one, *other[:-1], ("grid_finished", ("small", "| sum |")), ("close", ())])
    client = MlflowClient(f"sqlite:///{tmp_path}/registry/mlflow.db")
    experiment = client.get_experiment_by_name("small")
    assert experiment is not None
    runs = {run.data.tags.get("taskloom.cell"): run for run in client.search_runs([experiment.experiment_id])}
    assert {cell: run.info.status for cell, run in runs.items()} == {
        CELLS[0]: "FINISHED",
        CELLS[1]: "KILLED",
        None: "FINISHED",  # the table
    }
    for cell in CELLS:
        told = client.get_metric_history(runs[cell].info.run_id, "loss/pairs")
        assert [(each.step, each.value) for each in told] == [(1, 1.5), (2, 1.5), (3, 0.75)]
    place = Path(runs[None].info.artifact_uri.removeprefix("file://"), "table.md")
    assert (place.read_text(), place.is_relative_to(tmp_path / "registry")) == ("| sum |", True)
    assert {path.name for path in tmp_path.iterdir()} == {"registry"}
