"""What a cell keeps beside its dev scores: those of examples, training data and test split, costs, conflicts."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from small_runs import generated, job_of, run_grid

from taskloom.core import Event, Metric
from taskloom.plugins.metrics import Accuracy, Pearson
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.scores import find_scores, load_examples
from taskloom.runs.cli import cli
from taskloom.runs.grid.plan import Plan
from taskloom.runs.predict.trained import load_trained
from taskloom.runs.training import evaluate
from taskloom.runs.training.cell import Run
from taskloom.runs.training.diagnostics import POINTS, Diagnostics

METRICS: dict[str, Metric] = {"sst": Accuracy(), "sts": Pearson()}
BASE: dict[str, Any] = {
    "encoder": {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 256},
    "tasks": {
        "sst": generated("sentiment", 64, 32),
        "sts": generated("similarity", 48, 32, head="cosine", loss="mse", metric="pearson"),
    },
    "stages": [{"epochs": 1, "tasks": ["sst"]}, {"epochs": 2, "optimizer": {"lr": 0.01}}],
    "score": {"train": 20, "test": True},
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Plan, list[Event]]:
    folder = tmp_path_factory.mktemp("scores")
    cells = [{"label": "surgery", "set": {"stages.1.combiner": "pcgrad"}}, {"label": "sum"}]
    plan, outcome, events = run_grid(folder / "r", {"base": BASE, "cells": cells}, name="kept")
    assert outcome.failed == 0
    return folder / "r", plan, events


def test_the_stored_scores_of_examples_give_the_scores_of_the_ledger(ran: tuple[Path, Plan, list[Event]]) -> None:
    registry, plan, _ = ran
    for place in plan.cells:
        with Ledger.open(registry, create=False) as ledger:
            cell = ledger.cell(place.id)
        for split, scores in (("dev", cell.scores), ("test", cell.test)):
            stored = find_scores(registry, cell, split)
            assert stored is not None
            assert list(stored.tasks) == list(METRICS)
            for task, metric in METRICS.items():
                expected = load_examples(registry, stored.tasks[task].examples).expected
                predicted = stored.read(task, "predicted")
                assert metric(predicted, expected) == scores[task]
                assert stored.read(task, "influence").tolist() == metric.influence(predicted, expected).tolist()
            assert scores["overall"] == pytest.approx((scores["sst"] + scores["sts"]) / 2)


def test_test_scores_are_those_of_the_best_weights(
    ran: tuple[Path, Plan, list[Event]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, plan, _ = ran
    monkeypatch.chdir(tmp_path)
    with Ledger.open(registry, create=False) as ledger:
        cells = {place.id: ledger.cell(place.id) for place in plan.cells}
    for id, cell in cells.items():
        arguments = ["predict", id, "--split", "test", "--format", "jsonl", "--out", id, "--registry", str(registry)]
        assert CliRunner().invoke(cli, arguments).exit_code == 0
        for task, metric in METRICS.items():
            lines = map(json.loads, Path(id, f"predictions-{task}-test.jsonl").read_text().splitlines())
            rows = [(line["predicted"], line["expected"]) for line in lines]
            assert len(rows) == 300
            predicted, expected = np.array(rows).T
            assert metric(predicted, expected) == cell.test[task]


def test_the_sample_of_training_data_is_the_same_in_every_cell(tmp_path: Path) -> None:
    def sample(most: int, **changes: Any) -> dict[str, list[int]]:
        job = job_of(tmp_path, {**BASE, "score": {"train": most}, **changes})
        run = Run.build(job, lambda event: None, load_catalogue())
        return {task: run.train_sample(task).tolist() for task in run.tasks}

    first = sample(20)
    assert {task: len(set(rows)) for task, rows in first.items()} == {"sst": 20, "sts": 20}
    assert first == sample(20, seed=7, stages=[{"epochs": 3, "combiner": "pcgrad"}])
    assert sample(1000)["sts"] == list(range(48)), "all, if there are no more"


def test_train_scores_are_those_of_the_sample(ran: tuple[Path, Plan, list[Event]], tmp_path: Path) -> None:
    registry, plan, _ = ran
    with Ledger.open(registry, create=False) as ledger:
        cell = ledger.cell(plan.cells[0].id)
        epochs = ledger.epochs(cell.id)
    assert list(epochs[0].train) == ["sst", "overall"], "what the first stage trains"
    catalogue = load_catalogue()
    run = Run.build(job_of(tmp_path, cell.spec), lambda event: None, catalogue)
    model = load_trained(cell, catalogue, registry)
    best = next(epoch for epoch in epochs if (epoch.stage, epoch.epoch) == (1, cell.best_epoch))
    for task, metric in METRICS.items():
        rows, feed = run.train_sample(task), run.train[task]
        assert feed.examples.labels is not None
        with torch.no_grad():
            score = model.forward_pass(task, feed.tokens(rows))(None).score
        decided = model.head(task).decide(score).double().numpy()
        # Similarities that hardly differ from each other make rounding show in a correlation.
        assert metric(decided, feed.examples.labels[rows]) == pytest.approx(best.train[task], abs=2e-3)


def test_a_task_without_a_labelled_test_split_has_no_test_score_and_the_log_says_so(tmp_path: Path) -> None:
    lines = "".join(f"text {n},{n % 2}\n" for n in range(20))
    (tmp_path / "own.csv").write_text(f"text,y\n{lines}")
    data = {"name": "table", "train": str(tmp_path / "own.csv"), "dev_share": 0.3, "text": "text", "label": "y"}
    base = {**BASE, "tasks": {**BASE["tasks"], "own": {"data": {**data, "classes": 2}}}, "stages": [{"epochs": 0}]}
    _, outcome, events = run_grid(tmp_path / "r", {"base": base})
    assert outcome.finished == 1
    assert list(events[-1].facts["test"]) == ["sst", "sts", "overall"]
    said = [event.facts["message"] for event in events if event.what == "log"]
    assert any("'own' has no test score" in message and '"test"' in message for message in said)


def test_what_training_cost_is_the_same_with_a_stage_that_another_cell_has_trained(
    ran: tuple[Path, Plan, list[Event]],
) -> None:
    _, _, events = ran
    assert [event.facts["shared"] for event in events if event.what == "stage"] == [False, False, True, False]
    costs = [event.facts["costs"] for event in events if event.what == "finished"]
    # Batches of 8: 8 steps of sst; then 2 epochs of round-robin over both tasks.
    assert costs[0] == costs[1]
    assert costs[0]["examples"] > 64
    assert costs[0]["backwards"] >= 8 + 2 * 12


def test_diagnostics_of_two_steps_worked_by_hand() -> None:
    # a = (2, 0), b = (−1, √8): norms 2 and 3, a·b = −2; then the same with a·b = +2.
    found = Diagnostics()
    a, b = np.array([2.0, 0.0]), np.array([-1.0, math.sqrt(8)])
    surgery = np.array([1.5, 1 + 2 / 9])  # a + (2/9) b and b + (2/4) a
    for step, sign in enumerate((1, -1)):
        jacobian = torch.tensor(np.stack([a, b * [sign, 1]]))
        found.begin_step(step, 2, 0.1 / (step + 1))
        found.add_gramian(("b", "a"), jacobian @ jacobian.T, torch.tensor(surgery if sign > 0 else [1.0, 1.0]))
        found.add_norm(torch.tensor(2.0 + 2 * step))
    update, total = surgery @ np.stack([a, b]), a + b
    cosine = update @ total / math.sqrt(update @ update * (total @ total))
    report = found.report()
    assert report["pairs"] == {"a+b": {"cosine": pytest.approx(0.0), "conflicts": 0.5}}
    assert report["norm_ratio"] == pytest.approx(1.5)
    assert report["removed"] == pytest.approx(math.sqrt(1 - cosine**2) / 2), "nothing in the second step"
    assert (report["gradient_norm"], report["learning_rate"]) == (3.0, 0.05)
    assert report["points"] == [[0, {"a+b": pytest.approx(-1 / 3)}], [1, {"a+b": pytest.approx(1 / 3)}]]


@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0], [1 / 3, 1 / 3, 1 / 3]])
def test_combiners_that_only_scale_the_sum_remove_nothing(weights: list[float]) -> None:
    jacobian = torch.randn(3, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = Diagnostics()
    found.begin_step(0, 1, 0.1)
    found.add_gramian(("a", "b", "c"), jacobian @ jacobian.T, torch.tensor(weights, dtype=torch.float64))
    assert found.report()["removed"] == 0.0
    assert set(found.report()["pairs"]) == {"a+b", "a+c", "b+c"}


def test_a_step_of_one_task_or_without_a_gradient_says_nothing_of_conflicts() -> None:
    found = Diagnostics()
    found.begin_step(0, 1, 0.1)
    found.add_gramian(("a",), torch.ones(1, 1), torch.ones(1))
    found.add_gramian(("a", "b"), torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.ones(2))
    assert found.report() == {"learning_rate": 0.1}


def test_a_long_epoch_keeps_a_few_points_and_all_sums() -> None:
    found = Diagnostics()
    for step in range(1001):
        found.begin_step(step, 1001, 0.1)
        found.add_gramian(("a", "b"), torch.eye(2), torch.ones(2))
    assert len(found.points) <= POINTS
    assert found.observed == 1001


def test_epochs_report_conflicts_where_a_combiner_looks_at_gradients(ran: tuple[Path, Plan, list[Event]]) -> None:
    registry, plan, _ = ran
    with Ledger.open(registry, create=False) as ledger:
        surgery, plain = ([epoch.diagnostics for epoch in ledger.epochs(cell.id)] for cell in plan.cells)
    for found in surgery[1:]:
        assert set(found) == {"learning_rate", "gradient_norm", "pairs", "norm_ratio", "removed", "points"}
        (pair,) = found["pairs"].values()
        assert -1 <= pair["cosine"] <= 1
        assert 0 <= pair["conflicts"] <= 1
        assert (found["removed"] > 0) == (pair["conflicts"] > 0)
    assert all(set(found) == {"learning_rate", "gradient_norm"} for found in plain)


@pytest.mark.parametrize("rows", [0, 1, 2, 300])
def test_batches_of_scoring_are_even_and_take_every_row_once(rows: int) -> None:
    lengths = np.random.default_rng(0).integers(1, 40, rows)
    batches = evaluate._batches(lengths, 1024, 2)
    assert sorted(row for batch in batches for row in batch.tolist()) == list(range(rows))
    assert [lengths[batch].tolist() for batch in batches] == [sorted(lengths[batch].tolist()) for batch in batches]
    tokens = [int((lengths[batch] + 3).sum()) for batch in batches]
    assert max(tokens, default=0) <= 1024
    if rows > 2:
        assert len(batches) % 2 == 0
        assert max(tokens) - min(tokens) <= 2 * (40 + 3)
