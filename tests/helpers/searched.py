"""A small grid with a search, a third party's data set and loss, and the records of a run of it."""

from pathlib import Path
from typing import Any

from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.records import GridRecord
from taskloom.runs.api.grid import Grid

GRID: dict[str, Any] = {
    "base": {
        "encoder": {"name": "minbert", "layers": 1, "width": 8, "heads": 2, "vocabulary": 64},
        "tasks": {"sst": {"data": {"name": "generated", "task": "sentiment", "size": 64, "dev_size": 32}}},
        "stages": [{"epochs": 3, "optimizer": {"lr": 0.001}}],
        "score": {"test": True},
    },
    "cells": [{"label": "sum"}, {"label": "surgery", "set": {"stages.0.combiner": "pcgrad"}}],
    "seeds": [0, 1],
    "baseline": "sum",
    "claims": [{"better": "surgery", "than": "sum"}],
    "search": {"over": {"stages.0.optimizer.lr": {"log": [1e-4, 1e-1]}}, "trials": 4, "hold_out": 0.25},
}
#: A third party's data set, whose dev split is what the environment says, and a loss of theirs.
THEIRS = '''
import os
import numpy as np
from torch.nn.functional import cross_entropy
from taskloom.core import Component, DataSet, Examples, Labels, Loss, hookimpl

class Words(DataSet):
    """Words of two kinds; a row that is held out may have another label."""
    name, columns, labels = "words", 1, Labels.of_classes(2)
    def load(self, split):
        size = {"train": 60, "dev": 20, "test": 20}[split]
        texts = tuple(f"{split if split != 'train' else ''} {'good' if i % 2 else 'bad'} {i % 50}" for i in range(size))
        labels = np.array([float(i % 2) for i in range(size)])
        if split == os.environ.get("OTHER_SPLIT"):
            labels = 1 - labels
        return Examples((texts,), labels, tuple(map(str, range(size))))
    def fingerprint(self):
        return "the same"

class Theirs(Loss):
    """Cross-entropy, twice."""
    name, expects = "theirs", "classes"
    def forward(self, prediction, target):
        return 2 * cross_entropy(prediction.score, target)

@hookimpl
def taskloom_components() -> list[type[Component]]:
    return [Words, Theirs]
'''


def tuned(folder: Path, **changes: Any) -> Grid:
    """The grid with changes to its search."""
    grid = {**GRID, "name": "tuned", "search": {**GRID["search"], **changes}}
    return Grid(grid, registry=folder / "registry")


def records(grid: Grid) -> tuple[GridRecord, GridRecord]:
    """The grid's table, and that of its trials."""
    with Ledger.open(grid.registry, create=False) as ledger:
        return ledger.grid("tuned"), ledger.grid("tuned+trials")
