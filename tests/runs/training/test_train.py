"""Runs from their specification to their scores: what stages, freezing, sharing, failures and a grown grid do."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from small_runs import Bench, generated, job_of, run_grid
from torch import Tensor

from taskloom.core import Event, Loss, Prediction, TrainingError
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.scores import load_examples, read_scores
from taskloom.runs.analysis.cell_states import states_of
from taskloom.runs.driver.drive import Outcome
from taskloom.runs.grid.plan import Plan
from taskloom.runs.training import cell as at_work
from taskloom.runs.training import evaluate, feed
from taskloom.runs.training.train import train, train_epoch

SST = generated("sentiment", 64, 32)
STS = generated("similarity", 48, 32, head="cosine", loss="mse", metric="pearson")
PAIR = {"name": "linear", "reads": "pair"}
ENCODER = {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 256}
STAGE = {"epochs": 1, "optimizer": {"lr": 0.001}}


def run(registry: Path, base: dict[str, Any], **rest: Any) -> tuple[Plan, Outcome, list[Event]]:
    return run_grid(registry, {"base": {"encoder": ENCODER, **base}, **rest})


def weights(registry: Path, cell: str) -> dict[str, torch.Tensor]:
    return load_file(registry / "cells" / cell / "best" / "tensors.safetensors")


def of(events: list[Event], what: str) -> list[Event]:
    return [event for event in events if event.what == what]


def test_a_frozen_stage_trains_heads_and_leaves_the_encoder(tmp_path: Path) -> None:
    cells = [
        {"label": "untrained", "set": {"stages.0.epochs": 0}},
        {"label": "frozen", "set": {"stages.0.frozen": True}},
    ]
    plan, outcome, events = run(tmp_path / "r", {"tasks": {"sst": SST}, "stages": [STAGE]}, cells=cells)
    assert (outcome.finished, outcome.failed) == (2, 0)
    untrained, frozen = (weights(tmp_path / "r", cell.id) for cell in plan.cells)
    moved = {name for name in untrained if not untrained[name].equal(frozen[name])}
    assert moved
    assert all(name.startswith("heads.") for name in moved)
    assert [event.facts["best_epoch"] for event in of(events, "finished")] == [0, 1]


def test_adding_a_task_changes_nothing_in_how_the_others_begin(tmp_path: Path) -> None:
    cells = [{"label": "one"}, {"label": "two", "set": {"tasks.sts": STS}}]
    plan, _, _ = run(tmp_path / "r", {"tasks": {"sst": SST}, "stages": [{"epochs": 0}]}, cells=cells)
    one, two = (weights(tmp_path / "r", cell.id) for cell in plan.cells)
    assert all(tensor.equal(two[name]) for name, tensor in one.items())


def test_a_shared_stage_is_trained_once_and_hands_on_nothing_of_tasks_that_it_did_not_train(tmp_path: Path) -> None:
    para = generated("paraphrase", 32, 16, head=PAIR, loss="binary_cross_entropy")
    base = {"tasks": {"sst": SST, "sts": {**STS, "head": PAIR}}, "stages": [{**STAGE, "tasks": ["sst"]}, STAGE]}
    variants: list[dict[str, Any]] = [
        {"label": "one more task", "set": {"tasks.para": para}},
        {"label": "no layer"},
        {"label": "a layer", "set": {"tasks.sts.head.layers": 1}},
        {"label": "joint", "set": {"tasks.sts.head.reads": "joint"}},
    ]
    together, outcome, events = run(tmp_path / "r", base, cells=variants)
    assert (outcome.finished, outcome.failed) == (4, 0)
    assert [e.facts["shared"] for e in of(events, "stage") if e.facts["index"] == 0] == [False, True, True, True]
    with Ledger.open(tmp_path / "r", create=False) as ledger:
        states = states_of(ledger, ledger.grids())
        assert [state.epochs for state in states] == ["2/2", *["1/1 + 1 shared"] * 3], "finished is finished"
    for variant, cell in zip(variants[1:], together.cells[1:], strict=True):
        alone, _, _ = run(tmp_path / variant["label"], base, cells=[variant])
        assert alone.cells[0].id == cell.id
        ours, theirs = weights(tmp_path / "r", cell.id), weights(tmp_path / variant["label"], cell.id)
        assert all(tensor.equal(theirs[name]) for name, tensor in ours.items()), variant["label"]


def test_growing_a_grid_runs_only_what_is_new(tmp_path: Path) -> None:
    base = {"tasks": {"sst": SST}, "stages": [STAGE]}
    run(tmp_path / "r", base, axes={"stages.0.epochs": [0, 1]})
    plan, outcome, _ = run(tmp_path / "r", base, axes={"stages.0.epochs": [0, 1, 2]})
    assert [cell.status for cell in plan.cells] == ["finished", "finished", "new"]
    assert (outcome.finished, outcome.cached) == (1, 2)


def test_a_failing_cell_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    base = {"tasks": {"sst": SST, "sts": STS}, "stages": [STAGE]}
    plan, outcome, events = run(tmp_path / "r", base, axes={"stages.0.optimizer.lr": {"wild": 1e30, "tame": 1e-3}})
    assert (outcome.finished, outcome.failed) == (1, 1)
    (failed,) = of(events, "failed")
    assert failed.cell == plan.cells[0].id
    assert "task 'sst'" in failed.facts["reason"] or "task 'sts'" in failed.facts["reason"]
    assert "epoch 1, step " in failed.facts["reason"]
    assert "Traceback" in (tmp_path / "r" / "cells" / failed.cell / "log.txt").read_text()


def test_a_damaged_stage_is_trained_again_once(tmp_path: Path) -> None:
    base = {"tasks": {"sst": SST, "sts": STS}, "stages": [{**STAGE, "tasks": ["sst"]}, STAGE]}
    run(tmp_path / "r", base, axes={"stages.1.optimizer.lr": [0.001]})
    (result,) = (tmp_path / "r" / "stages").glob("*/result/tensors.safetensors")
    result.write_bytes(result.read_bytes()[:-1])
    _, outcome, events = run(tmp_path / "r", base, axes={"stages.1.optimizer.lr": [0.002, 0.003]})
    assert (outcome.finished, outcome.failed) == (2, 0)
    assert [e.facts["shared"] for e in of(events, "stage") if e.facts["index"] == 0] == [False, True]
    (log,) = of(events, "log")
    assert "trained again" in log.facts["message"]
    assert "is damaged" in log.facts["message"]


def test_a_task_may_have_any_plain_name(tmp_path: Path) -> None:
    names = ("train", "type", "keys", "forward")
    _, outcome, _ = run(tmp_path / "r", {"tasks": dict.fromkeys(names, SST), "stages": [STAGE]})
    assert outcome.finished == 1


def test_scores_that_are_not_finite_fail_the_cell_although_a_class_could_be_chosen(tmp_path: Path) -> None:
    one = {**SST, "data": {**SST["data"], "size": 8}}  # a single step: no loss sees the weights that it leaves
    stage = {"epochs": 1, "optimizer": {"lr": 1e38}}
    _, outcome, events = run(tmp_path / "r", {"tasks": {"sst": one}, "stages": [stage]})
    assert outcome.failed == 1
    reason = of(events, "failed")[0].facts["reason"]
    where = "(head 'linear') (stage 1, epoch 1, step 1); lr 1e+38, no clipping, last losses before: sst "
    assert reason.startswith(f"the scores of task 'sst' are not finite {where}")
    assert reason.endswith("""; try "lr": 0.001, "clip": 1, a warmup in "schedule\"""")


class Cusp(Loss):
    """0 everywhere, with a gradient that is none."""

    name = "cusp"
    expects = "score"

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        return (prediction.score * 0).square().sum().sqrt()


@pytest.mark.parametrize("frozen", [False, True])
def test_a_gradient_that_is_not_finite_names_task_and_parts(tmp_path: Path, frozen: bool) -> None:
    bench = Bench(tmp_path, {"sst": SST})
    bench.run.model.losses["sst"] = Cusp()
    bench.run.model.freeze_encoder(frozen)
    with pytest.raises(TrainingError) as caught:
        train_epoch(bench.run, bench.state, 1)
    expected = "the gradient of task 'sst' is not finite (head 'linear', loss 'cusp') (stage 1, epoch 1, step 1)"
    assert str(caught.value).startswith(f"{expected}; lr ")
    assert "none, this was the first step; try " in str(caught.value)


def test_reading_and_scoring_give_signs_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at_work, "PULSE", -1.0)  # whenever it may
    monkeypatch.setattr(feed, "TEXTS_AT_A_TIME", 16)
    monkeypatch.setattr(evaluate, "TOKENS", 64)
    events: list[Event] = []
    train(job_of(tmp_path, {"encoder": ENCODER, "tasks": {"sst": SST}, "stages": [STAGE]}), events.append)
    whats = [event.what for event in events]
    assert whats[0] == "started"
    first = next(place for place, event in enumerate(events) if event.facts.get("step"))
    assert whats[1:first].count("progress") >= 64 // 16 + 32 // 16  # while the texts are tokenized
    scoring = [event for event in events[: whats.index("epoch")] if event.facts.get("step") == 8]
    assert len(scoring) > 32 * 3 // 64  # one for the step, the others for parts of the dev set
    keys = {"stage", "epoch", "step", "steps", "rate", "losses", "micro_batch", "memory"}
    assert all(event.facts.keys() == keys for event in events if event.what == "progress")


@pytest.mark.parametrize("how", ["mean", "normalised"])
def test_selection_keeps_the_epoch_it_names_with_its_scores_and_predictions(tmp_path: Path, how: str) -> None:
    base = {"tasks": {"sst": SST, "sts": STS}, "stages": [{**STAGE, "epochs": 4}], "overall": how}
    _, _, events = run(tmp_path / "r", base, axes={"selection": ["overall", "sts", "last"]})
    for event, key in zip(of(events, "finished"), ("overall", "sts", None), strict=True):
        epochs = [e.facts for e in of(events, "epoch") if e.cell == event.cell]
        wanted = max(epochs, key=lambda facts: facts["scores"][key])["epoch"] if key else 4
        scores = epochs[wanted - 1]["scores"]
        assert (event.facts["best_epoch"], event.facts["scores"]) == (wanted, scores)
        sts = (scores["sts"] + 1) / 2 if how == "normalised" else scores["sts"]
        assert scores["overall"] == pytest.approx((scores["sst"] + sts) / 2, abs=1e-12)
        stored = read_scores(tmp_path / "r" / "cells" / event.cell / "scores-dev.safetensors")
        expected = load_examples(tmp_path / "r", stored.tasks["sst"].examples).expected
        assert (stored.read("sst", "predicted") == expected).mean() == pytest.approx(scores["sst"])
        assert stored.read("sst", "score").argmax(1).tolist() == stored.read("sst", "predicted").tolist()


def test_the_best_epoch_is_the_best_by_the_weights(tmp_path: Path) -> None:
    """The epochs are the same; which of them is kept follows the overall score that the weights make."""
    tasks = {"sst": {**SST, "metric": ["accuracy", "macro_f1"]}, "sts": STS}
    stage = {**STAGE, "epochs": 4, "optimizer": {"lr": 0.01}}
    axes = {"overall": {"mean": "mean", "sst": {"weights": {"sts": 0}}, "sts": {"weights": {"sst": 0.25, "sts": 3}}}}
    plan, outcome, events = run(tmp_path / "r", {"tasks": tasks, "stages": [stage]}, axes=axes)
    assert outcome.finished == 3
    shares = {"mean": (0.5, 0.5), "sst": (1, 0), "sts": (1 / 13, 12 / 13)}
    for cell in plan.cells:
        epochs = [event.facts["scores"] for event in of(events, "epoch") if event.cell == cell.id]
        for scores in epochs:
            assert scores.keys() == {"sst", "sts", "overall"}
            parts = zip(shares[cell.label], (scores["sst"], scores["sts"]), strict=True)
            assert scores["overall"] == pytest.approx(sum(share * score for share, score in parts))
        (ended,) = [event.facts for event in of(events, "finished") if event.cell == cell.id]
        assert ended["scores"]["overall"] == max(scores["overall"] for scores in epochs)
    assert len({tuple(event.facts["losses"].values()) for event in of(events, "epoch")}) == 4, "one training"
