"""One cell from Python: what it predicted, how it learned, and its model, which predicts the same again."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from taskloom.core.errors import RegistryError, TaskloomError
from taskloom.registry.results.ledger import Ledger
from taskloom.runs import Grid
from taskloom.runs.api.cell import Cell
from taskloom.runs.cli import cli

PAIR: dict[str, Any] = {
    "name": "pair",
    "base": {
        "encoder": {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 256},
        "tasks": {
            "sst": {"data": {"name": "generated", "task": "sentiment", "size": 64, "dev_size": 32}},
            "sts": {
                "data": {"name": "generated", "task": "similarity", "size": 64, "dev_size": 32},
                "head": "cosine",
                "loss": "mse",
                "metric": "pearson",
            },
        },
        "stages": [{"epochs": 2}],
    },
    "cells": [{"label": "sum"}, {"label": "wild", "set": {"stages.0.optimizer.lr": 1e38}}],
    "seeds": [0, 1],
}


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Grid:
    """A grid of which one row is finished and one has failed."""
    made = Grid(PAIR, registry=tmp_path_factory.mktemp("cells"))
    ran = made.run(progress=False, engine="inline")
    assert (ran.outcome.finished, ran.outcome.failed) == (2, 2)
    assert ran.failures.startswith("2 of 4 cells did not succeed:")
    assert ran.failures in repr(ran)
    return made


@pytest.fixture
def cell(grid: Grid) -> Cell:
    return grid.cell("sum", seed=1)


def test_a_cell_is_found_by_its_row_and_seed_or_by_its_identity(grid: Grid, cell: Cell) -> None:
    assert cell == grid.cell(cell.id) == grid.cell(cell.id[:9])
    with Ledger.open(grid.registry, create=False) as ledger:
        assert cell.scores == ledger.cell(cell.id).scores
    assert repr(cell).startswith(f"Cell {cell.id[:12]}: row 'sum', seed 1: overall ")
    for wrong, message in (
        (("sum",), r"row 'sum' has the seeds 0, 1; say which one\. Found none\."),
        (("sum", 7), r"Found 7\."),
        (("smu", 0), "no row 'smu'; did you mean 'sum'"),
    ):
        with pytest.raises(TaskloomError, match=message):
            grid.cell(*wrong)  # type: ignore[arg-type]


def test_the_scores_follow_from_the_predictions(cell: Cell) -> None:
    frame = cell.predictions("sst").to_pandas()
    assert (frame["label"] == frame["predicted"]).mean() == pytest.approx(cell.scores["sst"])
    assert frame["text"].map(len).min() > 0
    values = cell.predictions("sts").found
    assert np.corrcoef(values.score[0], values.expected)[0, 1] == pytest.approx(cell.scores["sts"], abs=1e-6)
    with pytest.raises(RegistryError, match="no task 'stst'; did you mean 'sts'"):
        cell.predictions("stst")


def test_the_curves_end_at_the_scores_of_the_best_epoch(cell: Cell) -> None:
    frame = cell.curves().to_pandas()
    assert len(frame) == 2 * 3  # epochs × (two tasks and overall)
    best = frame[(frame["epoch"] == cell.record.best_epoch) & (frame["task"] == "sst")]
    assert best["score"].item() == cell.scores["sst"]


def test_the_model_is_a_torch_module_that_predicts_what_was_recorded(cell: Cell) -> None:
    recorded = cell.predictions("sst").to_pandas()
    model = cell.model()
    assert isinstance(model, torch.nn.Module)
    assert model.predict("sst", recorded["text"].tolist()).values.tolist() == recorded["predicted"].tolist()
    pairs = cell.predictions("sts").to_pandas()  # whose metric leaves the scale to the model
    values = model.predict("sts", list(zip(pairs["text 1"], pairs["text 2"], strict=True))).values
    assert values.tolist() == pytest.approx(pairs["predicted"].tolist(), abs=1e-5)
    assert model.encode(recorded["text"].tolist()).shape == (32, 16)
    for message, ask in {
        "texts should be several strings. Found None": lambda: model.predict("sst", None),  # type: ignore[arg-type]
        "batch_size should be .* an integer. Found '8'": lambda: model.predict("sst", ["a"], batch_size="8"),  # type: ignore[arg-type]
        "batch_size should be .* an integer. Found 2.5": lambda: model.encode(["a"], batch_size=2.5),  # type: ignore[arg-type]
        "texts should be UTF-8. Found": lambda: model.encode(["\udcff"]),
    }.items():
        with pytest.raises(TaskloomError, match=message):
            ask()


def test_the_best_cell_is_that_of_the_highest_overall_score(grid: Grid) -> None:
    cells = [grid.cell("sum", seed) for seed in (0, 1)]
    assert grid.best() == max(cells, key=lambda cell: cell.scores["overall"])
    assert grid.best("sum", seed=0) == cells[0]
    with pytest.raises(RegistryError, match="none of the 2 cells of grid 'pair' that match is finished"):
        grid.best("wild")


def test_an_exported_model_is_what_the_command_line_exports(cell: Cell, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "a" / "model", tmp_path / "b" / "model"  # a card names the folder
    made = cell.export(ours, "transformers")
    arguments = ["export", cell.id, str(theirs), "--format", "transformers", "--registry", str(cell.registry)]
    said = CliRunner().invoke(cli, arguments)
    assert said.stdout.replace(str(theirs), str(ours)) == f"{made}\n"
    assert len({path.stat().st_mode for path in made.found.files}) == 1  # who may read one may read all
    with pytest.raises(TaskloomError, match=r"the format should be one of .* Found 'torch'"):
        cell.export(tmp_path / "c", "torch")  # type: ignore[arg-type]
    for path in made.found.files:
        assert path.read_bytes() == (theirs / path.relative_to(ours)).read_bytes(), path


def test_a_cell_that_failed_says_why_it_has_nothing(grid: Grid) -> None:
    failed = grid.cell("wild", seed=0)
    assert failed.status == "failed"
    for ask in (lambda: failed.predictions("sst"), failed.errors, failed.model):
        with pytest.raises(RegistryError, match="only a finished cell"):
            ask()
    assert failed.curves().found == ()


def test_a_cell_answers_for_itself(grid: Grid, cell: Cell) -> None:
    assert str(cell.errors(limit=1)) == str(grid.errors(cell.id, limit=1))
    assert str(cell.compare(grid.cell("sum", 0), limit=1)) == str(
        grid.compare(cell.id, grid.cell("sum", 0).id, limit=1)
    )
    assert cell.explain().found.state == "cached"
    for ask in (lambda: cell.errors(limit=-1), lambda: grid.compare("sum", "sum", limit=1.5)):  # type: ignore[arg-type]
        with pytest.raises(TaskloomError, match=r"limit should be an integer from 0 on. Found"):
            ask()
    with pytest.raises(TaskloomError, match="other should be a cell"):
        cell.compare("sum")  # type: ignore[arg-type]


def test_a_registry_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match="taskloom run"):
        Grid("quickstart", registry=tmp_path / "none").table()
