"""The moving margin: the paper's algorithm traced on paper, a margin for each pair, and its state in a run."""

import math
import statistics
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from small_runs import run_grid
from torch import Tensor

from taskloom.core import Labels, Prediction
from taskloom.plugins.losses import DynamicMargin, Smart, Total
from taskloom.registry.results.tensors import load_folder

BINARY, VALUES = Labels.of_classes(2), Labels.of_range(0, 5)
SCORES = [0.5, 0.6, 0.6, 0.4, 0.7]  # better (than 0), better, equal, worse, better


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def seen(vectors: Tensor, rows: list[int] | None = None) -> Prediction:
    return Prediction(torch.zeros(vectors.shape[1]), vectors, None if rows is None else torch.tensor(rows))


def at_cosines(*cosines: float) -> Tensor:
    """Pairs of unit vectors in the plane with these cosines, [2, B, 2]."""
    angles = torch.tensor([math.acos(c) for c in cosines], dtype=torch.float64)
    first = torch.tensor([[1.0, 0.0]], dtype=torch.float64).expand(len(cosines), 2)
    return torch.stack([first, torch.stack([angles.cos(), angles.sin()], 1)])


@pytest.mark.parametrize(
    ("direction", "expected"),
    [
        # 0.25 − 0.2/1, − 0.2/2, + 0.2/3, + 0.2/4, − 0.2/5
        ("down", [0.05, -0.05, 0.05 / 3, 0.2 / 3, 0.08 / 3]),
        # 0.25 + 0.2/1, + 0.2/2, − 0.2/3, − 0.2/4, + 0.2/5
        ("up", [0.45, 0.55, 1.45 / 3, 1.3 / 3, 1.42 / 3]),
    ],
)
def test_dynamic_margin_follows_algorithm_1_for_five_epochs(direction: Any, expected: list[float]) -> None:
    loss = DynamicMargin(margin=0.25, step=0.2, direction=direction)
    loss.prepare(labels=BINARY, rows=3)
    margins, values = [], []
    for epoch, score in enumerate(SCORES, start=1):
        loss.epoch_ended(epoch=epoch, score=score, overall=0.0)
        margins.append(loss.metrics()["margin"])
        values.append(loss(seen(at_cosines(0.9)), torch.tensor([0])).item())
    assert margins == pytest.approx(expected)
    assert values == pytest.approx([0.9 - margin for margin in expected])


def test_the_overall_score_moves_the_margin_where_it_is_followed() -> None:
    """The task's own metric plays no part then, nor the overall one otherwise; wrapped in another loss, too."""
    margins = []
    ways: tuple[Literal["overall", "task"], ...] = ("overall", "task")
    for follows in ways:
        inner = DynamicMargin(margin=0.25, step=0.2, follows=follows)
        loss = Total(losses=[Smart(loss=inner)])
        for epoch, score in enumerate(SCORES, start=1):
            falling = -float(epoch)
            scores = (falling, score) if follows == "overall" else (score, falling)
            loss.epoch_ended(epoch=epoch, score=scores[0], overall=scores[1])
        margins.append(inner.metrics()["margin"])
    assert margins == pytest.approx([0.08 / 3] * 2)


def test_a_first_metric_below_zero_is_not_an_improvement() -> None:
    loss = DynamicMargin(step=0.1)
    loss.epoch_ended(epoch=1, score=-0.02, overall=0.0)
    assert loss.margins.item() == pytest.approx(0.1)
    loss.epoch_ended(epoch=2, score=-0.01, overall=0.0)  # still below zero, but better than before
    assert loss.margins.item() == pytest.approx(0.05)


def test_a_margin_per_pair_traced_by_hand() -> None:
    """Distances 1 − cos against the epoch before: larger lowers a pair's margin, not larger raises it."""
    loss = DynamicMargin(step=0.3, per_sample=True).train()
    loss.prepare(labels=BINARY, rows=4)  # row 3 is never seen
    negative = torch.tensor([0, 0, 0])

    loss(seen(at_cosines(1.0, 0.8, 0.5), [2, 0, 1]), negative)
    loss.epoch_ended(epoch=1, score=0.9, overall=0.0)  # all but the equal texts of row 2 are farther apart than 0
    assert loss.margins.tolist() == pytest.approx([-0.3, -0.3, 0.3, 0])

    loss(seen(at_cosines(0.9, 0.9), [2, 0]), negative[:2])  # row 1 is not in this epoch
    loss.epoch_ended(epoch=2, score=0.1, overall=0.0)  # row 0 from 0.2 to 0.1, row 2 from 0 to 0.1
    assert loss.margins.tolist() == pytest.approx([-0.15, -0.3, 0.15, 0])

    value = loss(seen(at_cosines(0.4, 0.6, 0.7), [0, 1, 2]), negative)
    assert value.item() == pytest.approx((0.4 + 0.15 + 0.6 + 0.3 + 0.7 - 0.15) / 3)
    loss.epoch_ended(
        epoch=3, score=0.5, overall=0.0
    )  # row 0 from 0.1 to 0.6, row 1 from 0.5 to 0.4, row 2 from 0.1 to 0.3
    assert loss.margins.tolist() == pytest.approx([-0.25, -0.2, 0.05, 0])
    assert loss.metrics()["margin"] == pytest.approx(statistics.fmean([-0.25, -0.2, 0.05, 0]))


@pytest.mark.parametrize("mode", ["evaluated", "scored"])
def test_only_training_steps_are_remembered(mode: str) -> None:
    loss = DynamicMargin(per_sample=True).train(mode == "evaluated")
    loss.prepare(labels=BINARY, rows=1)
    with torch.no_grad() if mode == "evaluated" else torch.enable_grad():
        loss(seen(at_cosines(0.5), [0]), torch.tensor([0]))
    loss.epoch_ended(epoch=1, score=0.5, overall=0.0)
    assert loss.margins.tolist() == [0]


@pytest.mark.parametrize("follows", ["task", "overall"])
def test_in_a_run_the_margin_follows_the_dev_score(tmp_path: Path, follows: str) -> None:
    data = {"name": "generated", "task": "similarity", "size": 48, "dev_size": 32}
    other = {"data": data, "head": {"name": "linear", "reads": "pair"}, "loss": "mse", "metric": "pearson"}
    base = {
        "encoder": {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 256},
        "tasks": {
            "sts": {
                "data": data,
                "head": "cosine",
                "loss": {"name": "dynamic_margin", "margin": 0.25, "step": 0.2, "positive_from": 3, "follows": follows},
                "metric": "pearson",
            },
            "one": other,
            "two": other,
        },
        "stages": [{"epochs": 4, "optimizer": {"lr": 0.01}}],
        "selection": "last",
    }
    plan, _, events = run_grid(tmp_path / "r", {"base": base})
    scores = [event.facts["scores"] for event in events if event.what == "epoch"]
    assert len(scores) == 4
    margins = {}
    for followed, key in (("task", "sts"), ("overall", "overall")):
        margin, previous = 0.25, 0.0
        for epoch, score in enumerate((each[key] for each in scores), start=1):
            margin += -0.2 / epoch if score > previous else 0.2 / epoch
            previous = score
        margins[followed] = margin
    assert margins["task"] != pytest.approx(margins["overall"]), "the run should tell the two apart"
    tensors, _ = load_folder(tmp_path / "r" / "cells" / plan.cells[0].id / "best")
    assert tensors["losses.sts.margins"].item() == pytest.approx(margins[follows])
