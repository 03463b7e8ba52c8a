"""A small registry that was really trained, its archive, and the law that both have to keep."""

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hostile_law import taskloom

SIZES = {"size": 24, "dev_size": 16, "test_size": 8}
GRID: dict[str, Any] = {
    "name": "mine",
    "base": {
        "encoder": {"name": "minbert", "layers": 1, "width": 8, "heads": 2, "vocabulary": 64},
        "tasks": {
            "sst": {"data": {"name": "generated", "task": "sentiment", **SIZES}},
            "sts": {
                "data": {"name": "generated", "task": "similarity", **SIZES},
                "head": "cosine",
                "loss": "mse",
                "metric": "pearson",
            },
        },
        "stages": [{"epochs": 1, "sampler": {"name": "round_robin", "batch_size": 8}}],
        "score": {"test": True},
    },
    "axes": {"stages.0.combiner": ["sum", "pcgrad"]},
    "baseline": "sum",
    "seeds": [0, 1],
}


@pytest.fixture(scope="session")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a grid (mine.json), the registry in which it was run, and its archive (results.zip)."""
    folder = tmp_path_factory.mktemp("theirs")
    (folder / "mine.json").write_text(json.dumps(GRID))
    for arguments in (["run", folder / "mine.json"], ["archive", "mine", folder / "results.zip"]):
        done = taskloom(*arguments, "--registry", folder / "registry")
        assert done.exit_code == 0, done.output
    return folder


@pytest.fixture
def copy(theirs: Path, tmp_path: Path) -> Callable[[], Path]:
    """Gives a fresh copy of the registry."""
    numbers = itertools.count()
    return lambda: Path(shutil.copytree(theirs / "registry", tmp_path / f"copy-{next(numbers)}"))
