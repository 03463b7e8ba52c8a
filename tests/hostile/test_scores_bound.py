"""Score files and examples belong to their cell: what was exchanged or edited is named, and no figure comes from it."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hostile_law import check_table, is_one_sentence, taskloom
from safetensors.numpy import load_file, save_file

from taskloom.runs.api.grid import Grid

SCORES = "scores-dev.safetensors"


def cells_of(registry: Path) -> dict[tuple[str, int], Path]:
    with closing(sqlite3.connect(registry / "ledger.sqlite")) as database:
        rows = database.execute("SELECT label, seed, cell FROM grid_cells").fetchall()
    return {(label, seed): registry / "cells" / cell for label, seed, cell in rows}


def copied(registry: Path) -> None:
    cells = cells_of(registry)
    shutil.copy(cells["pcgrad", 0] / SCORES, cells["sum", 0] / SCORES)


def swapped(registry: Path) -> None:
    cells = cells_of(registry)
    one, other = cells["sum", 0], cells["pcgrad", 0]
    one.rename(registry / "cells" / "aside")
    other.rename(one)
    (registry / "cells" / "aside").rename(other)


def removed(registry: Path) -> None:
    (cells_of(registry)["sum", 0] / SCORES).unlink()


def rescored(registry: Path) -> None:
    with closing(sqlite3.connect(registry / "ledger.sqlite")) as database:
        cell = cells_of(registry)["sum", 0].name
        database.execute("UPDATE scores SET value = 0.99 WHERE cell = ? AND task IN ('sst', 'overall')", [cell])
        database.commit()


@pytest.mark.parametrize("change", [copied, swapped, removed, rescored])
def test_what_is_not_a_cells_own_is_named_and_not_shown(
    copy: Callable[[], Path], change: Callable[[Path], None]
) -> None:
    registry = copy()
    assert check_table(registry) == 12
    change(registry)
    assert check_table(registry) == 12
    shown = json.loads(taskloom("table", "mine", "--format", "json", "--registry", registry).stdout)
    (row,) = [row for row in shown["rows"] if row["label"] == "sum"]
    assert row["n"] == 1
    why = "is missing" if change is removed else "does not belong to it"
    assert [why in entry["why"] for entry in row["missing"]] == [True]
    assert any(
        line.startswith("Not shown, because their files of scores are not their own") for line in shown["checks"]
    )
    labels = ("sum", "pcgrad") if change is swapped else ("sum",)
    changed = {cells_of(registry)[label, 0].name for label in labels}
    for cell in json.loads(taskloom("cells", "mine", "--json", "--registry", registry).stdout)["cells"]:
        assert (cell["score"] is None) == (cell["id"] in changed)
        assert (why in (cell["reason"] or "")) == (cell["id"] in changed)
    assert "Not shown" in taskloom("effects", "mine", "--registry", registry).output
    assert is_one_sentence(taskloom("errors", "sum", "--registry", registry))
    if change is rescored:
        assert Grid("mine", registry=registry).best("sum").seed == 1, "not the one whose score was raised"
    refused = taskloom("archive", "mine", registry / "out.zip", "--registry", registry)
    assert is_one_sentence(refused)
    assert "an archive needs the predictions of every finished cell" in refused.stderr
    assert not (registry / "out.zip").exists()


def test_another_cells_weights_predict_nothing(copy: Callable[[], Path], tmp_path: Path) -> None:
    registry = copy()
    (tmp_path / "new.csv").write_text("text\na film\n")
    cell = cells_of(registry)["sum", 0].name
    request = ["predict", cell, "--task", "sst", "--input", tmp_path / "new.csv", "--registry", registry]
    assert taskloom(*request).exit_code == 0
    swapped(registry)
    refused = taskloom(*request)
    assert is_one_sentence(refused)
    assert "best belongs to another cell" in refused.stderr


def test_examples_that_were_edited_are_named(copy: Callable[[], Path], theirs: Path) -> None:
    registry = copy()
    for path in (registry / "examples").iterdir():
        arrays = load_file(path)
        save_file({**arrays, "expected": np.roll(arrays["expected"], 1)}, path)
    assert "are not those that its scores are about" in taskloom("table", "mine", "--registry", registry).output
    assert check_table(registry) == 0
    # A run reads the data, which are right.
    done = taskloom("run", theirs / "mine.json", "--seeds", "2", "--only", "sum", "--registry", registry)
    assert done.exit_code == 0, done.output
    assert check_table(registry) > 0


def test_an_archive_without_examples_is_not_written(copy: Callable[[], Path], tmp_path: Path) -> None:
    registry = copy()
    shutil.rmtree(registry / "examples")
    assert is_one_sentence(taskloom("archive", "mine", tmp_path / "out.zip", "--registry", registry))
    assert not (tmp_path / "out.zip").exists()
