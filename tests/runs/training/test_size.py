"""What is said of a cell before it runs is what it then does."""

from pathlib import Path
from typing import Any

import pytest
from small_runs import ENCODER, generated, run_grid

from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.tensors import load_folder
from taskloom.runs.training.size import Sizes

TASKS = {
    "sst": generated("sentiment", 22),
    "sts": generated("similarity", 50, head="cosine", loss="mse", metric="pearson"),
}


@pytest.mark.parametrize(
    "stages",
    [
        [{"epochs": 2, "sampler": {"name": "round_robin", "batch_size": 4}}],
        [{"epochs": 1, "sampler": {"name": "mixed", "batch_size": 4}}, {"epochs": 3, "tasks": ["sts"]}],
        [{"epochs": 1, "tasks": ["sts"], "sampler": {"name": "sequential", "batch_size": 8}}, {"epochs": 0}],
    ],
)
def test_steps_and_weights_are_known_before_a_cell_runs(tmp_path: Path, stages: list[dict[str, Any]]) -> None:
    grid = {"base": {"encoder": ENCODER, "tasks": TASKS, "stages": stages}}
    plan, outcome, _ = run_grid(tmp_path / "registry", grid)
    assert outcome.finished == 1, outcome.reasons
    (cell,) = plan.cells
    with Ledger.open(tmp_path / "registry", create=False) as ledger:
        last = {epoch.stage: epoch.step for epoch in ledger.epochs(cell.id)}
    sizes = Sizes(load_catalogue())
    assert sizes.steps(cell.spec) == sum(step or 0 for step in last.values()) > 0
    tensors, _ = load_folder(tmp_path / "registry" / "cells" / cell.id / "best")
    assert sizes.weights(cell.spec) == sum(tensor.nbytes for tensor in tensors.values())
