"""A grid whose rows keep state of every kind, what a cell reports, and whether two runs gave the same result."""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from small_runs import generated

from taskloom.core import Event

SST = generated("sentiment", 30, 12)
STS = generated("similarity", 24, 12, head={"name": "cosine", "layers": 1}, loss="mse", metric="pearson")
for task in (SST, STS):
    task["data"]["test_size"] = 30  # scored in one batch, as looks are counted below
MARGIN = {"name": "dynamic_margin", "positive_from": 3, "per_sample": True}
SMART = {"name": "smart", "loss": "cross_entropy", "proximal": 1, "noise": 0.01}
BASE: dict[str, Any] = {
    "encoder": {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 128, "pooling": "mean"},
    "tasks": {"sst": SST, "sts": STS},
    "stages": [
        {"tasks": ["sst"], "epochs": 1, "optimizer": {"lr": 0.001}},
        {
            "combiner": "pcgrad",
            "optimizer": {"lr": 0.001, "weight_decay": 0.01},
            "schedule": {"name": "linear", "warmup": 5},
            "clip": 1.0,
            "epochs": 3,
        },
    ],
    "score": {"train": 8, "test": True},
}
#: Rows whose state is of different kinds: in combiners, losses, samplers and parts of batches.
VARIANTS: dict[str, dict[str, Any]] = {
    "surgery": {},
    "state in losses": {
        "tasks.sst.loss": SMART,
        "tasks.sts.loss": MARGIN,
        "stages.1.combiner": {"name": "famo", "rate": 0.5},
        "stages.1.sampler": {"name": "mixed", "buckets": True},
    },
    "parts of batches": {
        "stages.*.micro_batch": 3,
        "stages.1.combiner": {"name": "uncertainty", "rate": 100},
        "stages.1.sampler": {"name": "sequential", "batch_size": 6},
        "tasks.sts.loss": {"name": "total", "losses": ["mse", {"name": "mnr", "positive_from": 3}]},
    },
}


def write_grid(folder: Path, rows: dict[str, dict[str, Any]] = VARIANTS) -> Path:
    path = folder / "resume.json"
    cells = [{"label": label, "set": changes} for label, changes in rows.items()]
    path.write_text(json.dumps({"base": BASE, "cells": cells, "seeds": [3]}))
    return path


@dataclass
class Ear:
    """What an engine gives to a cell; asks it to stop when it has looked ``patience`` times."""

    patience: int = sys.maxsize
    looks: int = 0
    scored: int = 0  # looks when the last epoch ended
    events: list[Event] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self.scored = self.looks if event.what == "epoch" else self.scored

    @property
    def stop_asked(self) -> bool:
        self.looks += 1
        return self.looks > self.patience

    def told(self, *whats: str) -> list[dict[str, Any]]:
        """The facts of some events, less how long things took; not what is told again."""
        return [
            {key: value for key, value in event.facts.items() if key not in ("seconds", "peak_memory", "memory")}
            for event in self.events
            if event.what in whats and not event.facts.get("retold")
        ]


def cell_of(registry: Path) -> Path:
    """The folder of the only cell of a registry."""
    (cell,) = (registry / "cells").iterdir()
    return cell


def same_result(one: Path, other: Path) -> None:
    """Assert that two registries hold one cell with the same weights and score files, bit for bit."""
    ours, theirs = (load_file(cell_of(r) / "best" / "tensors.safetensors") for r in (one, other))
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor.nan_to_num(7.0), theirs[name].nan_to_num(7.0)), name  # a margin may be unknown
    for name in ("scores-dev.safetensors", "scores-test.safetensors"):
        assert (cell_of(one) / name).read_bytes() == (cell_of(other) / name).read_bytes()
