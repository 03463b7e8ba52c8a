"""A grid whose driver is killed in the middle and that is resumed, and what the ledger knows of it in the end."""

import json
from pathlib import Path
from typing import Any

from faults import Driver, Hold

from taskloom.core import TrackedRun, figures
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import CellRecord

NAME = "followed"
GRID: dict[str, Any] = {
    "base": {
        "encoder": {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 128},
        "tasks": {
            "sst": {
                "data": {"name": "generated", "task": "sentiment", "size": 32, "dev_size": 16},
                "loss": "faulty",
            },
            "para": {
                "data": {"name": "generated", "task": "paraphrase", "size": 32, "dev_size": 16},
                "head": "embedding",
                "loss": "dynamic_margin",
            },
            "sts": {
                "data": {"name": "generated", "task": "similarity", "size": 32, "dev_size": 16},
                "head": "cosine",
                "loss": "mse",
                "metric": "pearson",
            },
        },
        "stages": [
            {"tasks": ["sst"], "sampler": {"name": "round_robin", "batch_size": 8}, "epochs": 1},
            {"sampler": {"name": "round_robin", "batch_size": 8}, "combiner": "pcgrad", "epochs": 3},
        ],
        "score": {"train": 8, "test": True},
    },
    "cells": [{"label": "a/b [c=1]"}, {"label": "famo", "set": {"stages.1.combiner": "famo"}}],
    "seeds": [5],
}
#: Training steps of ``faulty`` in one epoch.
EPOCH = 4


def kill_and_resume(folder: Path, *trackers: str, again: bool = True) -> Path:
    """The registry of a run that was killed in the third of its first cell's four epochs, and went on to its end.

    Then the grid may be run ``again``, which trains nothing.
    """
    grid, registry = folder / f"{NAME}.json", folder / "registry"
    grid.write_text(json.dumps(GRID))
    options = [word for one in trackers for word in ("--tracker", one)]
    hold = Hold(folder / "hold", 2 * EPOCH + 2)
    with Driver(grid, registry, *options, hold=hold) as driver:
        driver.wait_until_held()
        driver.kill()
    for words in ("resumed", "") if again else ("resumed",):
        with Driver(grid, registry, *options) as driver:
            code, _, said = driver.finish()
        assert code == 0, said
        assert words in said
        assert "tracker" not in said
    return registry


class Known:
    """A cell in the ledger, as a tracker should have it."""

    def __init__(self, ledger: Ledger, label: str, cell: CellRecord) -> None:
        self.run = TrackedRun(cell.id, label, 5, NAME, cell.spec)
        epochs = ledger.epochs(cell.id)
        self.curves = {self.run.epoch_number(vars(one)): figures(vars(one)) for one in epochs}
        names = ("scores", "test", "best_epoch", "costs", "seconds", "peak_memory")
        self.final = figures({name: getattr(cell, name) for name in names})
        self.names = {name for epoch in self.curves.values() for name in epoch}


def known_cells(registry: Path) -> list[Known]:
    with Ledger.open(registry, create=False) as ledger:
        found = [Known(ledger, place.label, place.cell) for place in ledger.grid(NAME).cells]
    assert [[*one.curves] for one in found] == [[1, 2, 3, 4], [2, 3, 4]]  # the second has its first stage of the first
    for one in found:
        wanted = {"loss/sst", "dev/overall", "train/sts", "diagnostics/learning_rate", "diagnostics/gradient_norm"}
        assert wanted <= one.names
        assert {"final/overall", "test/sst", "costs/backwards"} <= one.final.keys()
    conflicts = {f"diagnostics/pairs/{pair}/conflicts" for pair in ("para+sst", "para+sts", "sst+sts")}
    assert conflicts <= found[0].names
    assert "metrics/para/margin" in found[0].names
    assert any(name.startswith("metrics/combiner/") for name in found[1].names)
    return found
