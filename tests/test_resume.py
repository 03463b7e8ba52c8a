"""A run that was killed goes on from its checkpoint and ends, bit for bit, where it would have ended anyway."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

GRID: dict[str, Any] = {
    "base": {
        "encoder": {"name": "minbert", "layers": 1, "width": 32, "heads": 2, "vocabulary": 512, "pooling": "mean"},
        "tasks": {
            "sst": {"data": {"name": "generated", "task": "sentiment", "size": 160, "dev_size": 40}},
            "sts": {
                "data": {"name": "generated", "task": "similarity", "size": 120, "dev_size": 40},
                "head": {"name": "cosine", "layers": 1},
                "loss": "mse",
                "metric": "pearson",
            },
        },
        "stages": [
            {"tasks": ["sst"], "epochs": 1, "optimizer": {"lr": 0.001}},
            {
                "combiner": "pcgrad",
                "sampler": {"name": "round_robin", "batch_size": 8},
                "optimizer": {"lr": 0.001, "weight_decay": 0.01},
                "schedule": {"name": "linear", "warmup": 5},
                "clip": 1.0,
                "epochs": 10,
            },
        ],
        "selection": "last",
    },
    "seeds": [3],
}
COMMAND = [sys.executable, "-m", "taskloom.runs.cli", "run"]


def start(grid: Path, registry: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, str(grid), "--registry", str(registry)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output


def wait_for(pattern: str, registry: Path, process: subprocess.Popen[str]) -> None:
    while not list(registry.glob(pattern)):
        if process.poll() is not None:
            pytest.fail(f"ended before it could be killed: {process.communicate()[0]}")
        time.sleep(0.005)


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def cell_of(registry: Path) -> Path:
    (cell,) = (registry / "cells").iterdir()
    return cell


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("undisturbed")
    grid = folder / "resume.json"
    grid.write_text(json.dumps(GRID))
    finish(start(grid, folder / "registry"))
    return grid, folder / "registry"


def same_result(one: Path, other: Path) -> None:
    ours, theirs = (load_file(cell_of(r) / "best" / "tensors.safetensors") for r in (one, other))
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.equal(theirs[name]), name
    for name in ("predictions-sst-dev.jsonl", "predictions-sts-dev.jsonl"):
        assert (cell_of(one) / name).read_bytes() == (cell_of(other) / name).read_bytes()


@pytest.mark.parametrize("epoch", [2, 7])
def test_a_killed_run_ends_where_it_would_have_ended(
    undisturbed: tuple[Path, Path], tmp_path: Path, epoch: int
) -> None:
    grid, whole = undisturbed
    process = start(grid, tmp_path)
    wait_for(f"cells/*/checkpoint-001-{epoch:05d}", tmp_path, process)
    kill(process)
    output = finish(start(grid, tmp_path))
    assert "resumed" in output
    same_result(whole, tmp_path)


def test_a_damaged_checkpoint_is_passed_over(undisturbed: tuple[Path, Path], tmp_path: Path) -> None:
    grid, whole = undisturbed
    process = start(grid, tmp_path)
    wait_for("cells/*/checkpoint-001-00004", tmp_path, process)
    kill(process)
    newest = max(cell_of(tmp_path).glob("checkpoint-*")) / "tensors.safetensors"
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(content)
    output = finish(start(grid, tmp_path))
    assert "is damaged" in output
    same_result(whole, tmp_path)


def test_one_seed_one_result(undisturbed: tuple[Path, Path], tmp_path: Path) -> None:
    grid, whole = undisturbed
    finish(start(grid, tmp_path))
    same_result(whole, tmp_path)


def test_finished_cells_are_not_run_again(undisturbed: tuple[Path, Path]) -> None:
    grid, whole = undisturbed
    before = (cell_of(whole) / "best" / "tensors.safetensors").stat().st_mtime_ns
    finish(start(grid, whole))
    assert (cell_of(whole) / "best" / "tensors.safetensors").stat().st_mtime_ns == before
    assert not list(cell_of(whole).glob("checkpoint-*"))
