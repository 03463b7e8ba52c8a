"""A registry with finished cells whose scores are drawn, not trained: a real ledger and real files of scores."""

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from taskloom.core import DataSet, Event, Examples, Overall
from taskloom.plugins.metrics.accuracy import Accuracy
from taskloom.plugins.metrics.pearson import Pearson
from taskloom.registry.installed.light import make_light
from taskloom.registry.results.artifacts import Artifacts
from taskloom.registry.results.binding import bind
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.scores import TaskFacts, save_examples, save_scores
from taskloom.runs.analysis.overview import Overview, overview_of
from taskloom.runs.analysis.results import Results
from taskloom.runs.api.find import finished_results
from taskloom.runs.grid.contents import read_split
from taskloom.runs.grid.paths import assign
from taskloom.runs.grid.planned import PlannedCell

METRICS = {"sst": Accuracy(), "para": Accuracy(), "sts": Pearson()}
CLASSES = {"sst": 5, "para": 2, "sts": 0}
SPEC: dict[str, Any] = {
    "encoder": {"name": "minbert", "layers": 1},
    "tasks": {
        name: {"data": {"name": "generated"}, "head": {"name": "linear"}, "metric": {"name": METRICS[name].name}}
        for name in METRICS
    },
    "stages": [{"epochs": 3, "tasks": list(METRICS), "combiner": {"name": "sum"}, "optimizer": {"lr": 0.001}}],
    "overall": "mean",
    "selection": "overall",
    "seed": 0,
}


@dataclass(frozen=True)
class Row:
    """A row: how good its models are (1 is usual), how that varies over seeds, what it sets, what was published."""

    label: str
    skill: float = 1.0
    noise: float = 0.05
    set: Mapping[str, Any] = field(default_factory=dict)
    reported: Mapping[str, float] = field(default_factory=dict)


def examples_of(task: str, count: int) -> Examples:
    draw = np.random.default_rng(len(task))
    labels = draw.integers(0, CLASSES[task], count) if CLASSES[task] else np.round(5 * draw.random(count), 1)
    texts = tuple(f"{task} text {number}" for number in range(count))
    columns = (texts,) if task == "sst" else (texts, tuple(f"other {text}" for text in texts))
    return Examples(columns, labels.astype(np.float64), tuple(f"{task}-{number}" for number in range(count)))


def results_of(folder: Path, name: str = "made", **options: Any) -> Results:
    """The results of a recorded grid."""
    with Ledger.open(folder, create=False) as ledger:
        return Results(ledger.grid(name), folder, **options)


def record(
    folder: Path,
    rows: Sequence[Row],
    *,
    seeds: Sequence[int] = (0, 1, 2),
    examples: int = 200,
    name: str = "made",
    failed: Mapping[tuple[str, int], str] = {},
    unfinished: Sequence[tuple[str, int]] = (),
    data_sets: Mapping[str, Mapping[str, Any]] = {},
    epochs: Mapping[str, Any] = {},
    test: bool = False,
    **spec: Any,
) -> Path:
    """Record a grid of these rows; ``failed`` cells have a reason, ``unfinished`` ones never started.

    ``data_sets`` are specifications of real ones that tasks have instead of made-up examples. ``epochs`` is what every
    epoch says beside losses and scores. With ``test`` the cells are scored on a test split, too.
    """
    cells = {"cells": [{"label": row.label, "set": dict(row.set)} for row in rows]}
    planned = []
    for row in rows:
        for seed in seeds:
            run = copy.deepcopy({**SPEC, "seed": seed})
            for task, each in data_sets.items():
                run["tasks"][task]["data"] = dict(each)
            for path, value in row.set.items():
                assign(run, path, value)
            id = hashlib.sha256(f"{name} {row.label} {seed}".encode()).hexdigest()[:32]
            planned.append(PlannedCell(id, row.label, seed, "new", run, {}, (), reported=dict(row.reported)))
    artifacts = Artifacts(folder)
    data = {
        task: read_split(data_sets[task], "dev") if task in data_sets else examples_of(task, examples)
        for task in METRICS
    }
    keys = {task: save_examples(artifacts, each).key for task, each in data.items()}
    hard = {task: np.random.default_rng(9).normal(0, 1, len(each)) for task, each in data.items()}
    labels = {task: make_light(DataSet, each).labels for task, each in data_sets.items()}
    names = {task: each.names for task, each in labels.items() if each is not None}
    with Ledger.open(folder, create=True) as ledger:
        ledger.record_grid(name, {"seeds": list(seeds), **({} if "axes" in spec else cells), **spec}, planned)
        for cell in planned:
            if (cell.label, cell.seed) in unfinished:
                continue
            ledger.write(Event("started", cell.id, {"device": "cpu", "versions": {"torch": "2.13"}}))
            if reason := failed.get((cell.label, cell.seed)):
                ledger.write(Event("failed", cell.id, {"reason": reason}))
                continue
            row = next(row for row in rows if row.label == cell.label)
            scores = _score(artifacts.cell(cell.id), row, cell, data, keys, hard, names)
            for epoch in (1, 2, 3):
                facts = {"stage": 0, "epoch": epoch, "step": 10 * epoch, "seconds": 2.0 * epoch}
                shown = {task: score * (0.7 + 0.1 * epoch) for task, score in scores.items()}
                losses = {task: 2 - score for task, score in shown.items() if task != "overall"}
                ledger.write(Event("epoch", cell.id, {**facts, "losses": losses, "scores": shown, **epochs}))
            end: dict[str, Any] = {"scores": scores, "seconds": 6.0, "best_epoch": 3, "peak_memory": 2**28}
            if test:
                end["test"] = _score(artifacts.cell(cell.id), row, cell, data, keys, hard, names, split="test")
            folder_of_cell = artifacts.cell(cell.id)
            end["digests"] = bind(folder_of_cell, "dev", scores) | bind(folder_of_cell, "test", end.get("test", {}))
            ledger.write(Event("finished", cell.id, end))
    return folder


def overview_in(folder: Path, name: str = "made", **spec: Any) -> Overview:
    """The overview of a recorded grid; ``spec`` replaces settings of the grid, such as its baseline."""
    with Ledger.open(folder, create=False) as ledger:
        grid = ledger.grid(name)
        return overview_of(finished_results(ledger, replace(grid, spec={**grid.spec, **spec})), ledger)


def rebind(folder: Path) -> None:
    """Let the cells own the score files that are there now, or that they have none."""
    with Ledger.open(folder, create=False) as ledger:
        for cell in ledger.cells():
            home = folder / "cells" / cell.id
            digests = bind(home, "dev", cell.scores) | bind(home, "test", cell.test)
            with ledger.transaction() as db:
                db.execute("UPDATE cells SET digests = ? WHERE id = ?", [json.dumps(digests), cell.id])


def _score(
    folder: Path,
    row: Row,
    cell: PlannedCell,
    data: Mapping[str, Examples],
    keys: Mapping[str, str],
    hard: Mapping[str, Any],
    names: Mapping[str, tuple[str, ...]],
    split: str = "dev",
) -> dict[str, float]:
    draw = np.random.default_rng([cell.seed + (100 if split == "test" else 0), *row.label.encode()])
    skill = row.skill + row.noise * draw.normal()
    scores, facts, columns = {}, {}, {}
    for task, examples in data.items():
        assert examples.labels is not None
        error = hard[task] + 0.5 * draw.normal(0, 1, len(examples))
        if classes := CLASSES[task]:
            right = np.eye(classes)[examples.labels.astype(int)]
            logits = 2 * skill * right + right * error[:, None] + draw.normal(0, 1, right.shape)
            predicted = logits.argmax(1).astype(np.float64)
        else:
            logits = predicted = skill * examples.labels + error
        scores[task] = METRICS[task](predicted, examples.labels)
        influence = METRICS[task].influence(predicted, examples.labels)
        metric = METRICS[task]
        facts[task] = TaskFacts(keys[task], metric.name, metric.correlation, classes, names=names.get(task, ()))
        columns[task] = {"score": logits.astype(np.float32), "predicted": predicted, "influence": influence}
    save_scores(folder, split, facts, columns)
    overall = Overall.of(cell.spec).score(scores, [task for task in scores if METRICS[task].correlation])
    assert overall is not None
    return {**scores, "overall": overall}
