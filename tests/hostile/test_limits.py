"""What no machine has: sizes, numbers, labels, memory, room on the disk, a folder to be in. One sentence each."""

import json
import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hostile_law import taskloom
from recorded import Row, record

from taskloom.core.specs import LONGEST_LABEL

SIZES = {"size": 16, "dev_size": 8, "test_size": 4}
GRID: dict[str, Any] = {
    "base": {
        "encoder": {"name": "minbert", "layers": 1, "width": 8, "heads": 2, "vocabulary": 64},
        "tasks": {"sst": {"data": {"name": "generated", "task": "sentiment", **SIZES}}},
        "stages": [{"epochs": 1}],
    }
}
HUGE, LABEL = 2**40, "x" * 10_000_000


def started(*arguments: object, limit: Callable[[], object] | None = None, **more: Any) -> Any:
    command = [sys.executable, "-m", "taskloom.runs.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, preexec_fn=limit, **more)


@pytest.fixture
def plan(tmp_path: Path) -> Callable[..., str]:
    """Plan a grid that is refused, and return the message."""

    def refused(text: str, *options: str) -> str:
        (tmp_path / "grid.json").write_text(text)
        said = taskloom("plan", tmp_path / "grid.json", "--registry", tmp_path / "r", *options)
        assert said.exit_code == 2, said.output
        assert isinstance(said.exception, SystemExit)
        assert len(said.output) < 3000
        return said.output

    return refused


@pytest.mark.parametrize("option", ["width", "layers", "feed_forward", "vocabulary", "max_length"])
def test_an_encoder_that_no_machine_has_room_for(option: str, plan: Callable[..., str]) -> None:
    said = plan(json.dumps(GRID), "--set", f"encoder.{option}={HUGE}")
    assert f"{option} {HUGE}" in said
    assert "weights; at most 1e+11 are allowed" in said


@pytest.mark.parametrize("path", ["stages.0.epochs", "tasks.sst.data.size"])
def test_numbers_that_no_run_reaches(path: str, plan: Callable[..., str]) -> None:
    assert f"{path}: should be an integer of at least" in plan(json.dumps(GRID), "--set", f"{path}={HUGE}")


#: A grid with a number in every kind of place; each is named by its path.
NUMBERS = (
    '{"base": {"encoder": {"name": "minbert", "dropout": N}, "tasks": {"sst": {"data": "generated"}}},'
    ' "axes": {"stages.0.optimizer.lr": [0.1, N], "stages.0.combiner": {"a": {"name": "sum", "alpha": N}}},'
    ' "cells": [{"label": "b", "set": {"stages.0.clip": N}, "reported": {"sst": N}}], "margin": N, "seeds": [N]}'
)
PLACES = (
    "base.encoder.dropout",
    "axes.stages.0.optimizer.lr.1",
    "axes.stages.0.combiner.a.alpha",
    "cells.0.set.stages.0.clip",
    "cells.0.reported.sst",
    "margin",
    "seeds.0",
)


@pytest.mark.parametrize(
    ("number", "why"),
    [("1e400", "beyond 1.8e308, such as 1e400"), ("-1e999", "beyond 1.8e308"), (str(2**64), "at most 64 bits")],
)
def test_numbers_too_large_are_named_with_their_places(number: str, why: str, plan: Callable[..., str]) -> None:
    said = plan(NUMBERS.replace("N", number))
    assert [line.split(":")[0].strip() for line in said.splitlines() if why in line] == [*PLACES]
    for path in ("stages.0.optimizer.lr", "encoder.dropout"):
        said = plan(json.dumps(GRID), "--set", f"{path}={number}")
        assert f"settings.{path} should be a" in said
        assert why in said


def test_long_labels_are_refused_in_a_grid(plan: Callable[..., str]) -> None:
    limit = f"a label should be up to {LONGEST_LABEL} characters long, not 10,000,000"
    assert f"cells.0.label: {limit}" in plan(json.dumps({**GRID, "cells": [{"label": LABEL}]}))
    for key, axes in {"axes": {"stages.0.clip": {LABEL: 1}}, "zip": [{"stages.0.clip": {LABEL: 1}}]}.items():
        assert plan(json.dumps({**GRID, key: axes})).count(limit) == 1


@pytest.mark.parametrize(
    "part",
    [
        {"baseline": LABEL},
        {LABEL: 1},
        {"base": LABEL},
        {"extends": LABEL},
        {"claims": [{"better": "base", "than": LABEL}]},
        {"axes": {"stages.0.combiner": [LABEL]}},
        {"axes": {f"stages.0.combiner.{LABEL}": [1]}},
    ],
)
def test_no_message_repeats_ten_megabytes(part: dict[str, Any], plan: Callable[..., str]) -> None:
    assert "xxx…" in plan(json.dumps({**GRID, **part}))


def test_labels_made_of_long_values_are_cut(tmp_path: Path) -> None:
    tasks = {letter * 60: GRID["base"]["tasks"]["sst"] for letter in "abcd"}
    (tmp_path / "grid.json").write_text(json.dumps({**GRID, "axes": {"tasks": [tasks]}}))
    said = taskloom("plan", tmp_path / "grid.json", "--registry", tmp_path / "r")
    assert "…" in said.output
    assert max(map(len, said.output.splitlines())) < LONGEST_LABEL + 120


def test_a_long_label_in_a_registry_is_cut_where_it_is_shown(tmp_path: Path) -> None:
    registry = record(tmp_path / "r", [Row("sum"), Row("pcgrad", 0.5)], name="mine")
    with sqlite3.connect(registry / "ledger.sqlite") as database:
        database.execute("UPDATE grid_cells SET label = ? WHERE label = 'pcgrad'", (LABEL,))
    database.close()
    assert taskloom("report", "mine", "-o", tmp_path / "page.html", "--registry", registry).exit_code == 0
    assert (tmp_path / "page.html").stat().st_size < 2_000_000
    for command in ("table", "cells"):
        said = taskloom(command, "mine", "--registry", registry)
        assert (said.exit_code, len(said.output) < 200_000) == (0, True), command


def test_a_current_folder_that_was_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    said = started("table", "quickstart", cwd=folder, limit=folder.rmdir)
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr == "Error: the current folder was deleted; change to one that exists\n"


def test_too_little_memory_ends_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "grid.json").write_text(json.dumps(GRID))
    limit = 300 << 20  # enough for Python and pydantic, too little for torch
    said = started(
        *("plan", tmp_path / "grid.json", "--registry", tmp_path / "r"),
        limit=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    assert said.returncode in (1, 2)
    assert "Traceback" not in said.stderr
    assert said.stderr.startswith("Error: ")


def test_export_without_room_leaves_nothing(theirs: Path, tmp_path: Path) -> None:
    """Neither on a disk without room, nor under a name that no folder can have."""
    (tmp_path / "out").mkdir()
    said = started(
        *("export", "mine", tmp_path / "out" / "model", "--registry", theirs / "registry"),
        limit=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
    )
    assert said.returncode == 2
    assert f"{tmp_path / 'out' / 'model'} cannot be written: " in said.stderr
    assert "Traceback" not in said.stderr
    assert [*(tmp_path / "out").iterdir()] == []
    said = taskloom("export", "mine", tmp_path / "out" / ("x" * 300), "--registry", theirs / "registry")
    assert (said.exit_code, "cannot be written: File name too long; choose another" in said.output) == (2, True)
