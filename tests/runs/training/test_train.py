"""One run from its specification to its scores: what stages, freezing, sharing and failures do."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from taskloom.core import Engine, Event, Job, Loss, Prediction, TrainingError, perform
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.analysis.cell_states import states_of
from taskloom.runs.driver.drive import Outcome, run_plan
from taskloom.runs.grid.grid import load_grid
from taskloom.runs.grid.plan import Plan, make_plan
from taskloom.runs.training import cell as at_work
from taskloom.runs.training import evaluate, feed
from taskloom.runs.training.stage import StageState
from taskloom.runs.training.train import Run, train, train_epoch

SST: dict[str, Any] = {"data": {"name": "generated", "task": "sentiment", "size": 64, "dev_size": 32}}
STS: dict[str, Any] = {
    "data": {"name": "generated", "task": "similarity", "size": 48, "dev_size": 32},
    "head": "cosine",
    "loss": "mse",
    "metric": "pearson",
}
ENCODER = {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 256}
STAGE = {"epochs": 1, "optimizer": {"lr": 0.001}}


def grid(folder: Path, base: dict[str, Any], **rest: Any) -> Path:
    path = folder / "grid.json"
    path.write_text(json.dumps({"base": {"encoder": ENCODER, **base}, **rest}))
    return path


def run(path: Path, registry: Path, engine: str | Engine = "inline") -> tuple[Plan, Outcome, list[Event]]:
    catalogue, events = load_catalogue(), list[Event]()
    with Ledger.open(registry, create=True) as ledger:
        plan = make_plan(load_grid(str(path)), catalogue, ledger)
        outcome = run_plan(plan, catalogue, ledger, engine=engine, listen=events.append)
    return plan, outcome, events


def weights(registry: Path, cell: str) -> dict[str, torch.Tensor]:
    return load_file(registry / "cells" / cell / "best" / "tensors.safetensors")


def of(events: list[Event], what: str) -> list[Event]:
    return [event for event in events if event.what == what]


def test_a_frozen_stage_trains_heads_and_leaves_the_encoder(tmp_path: Path) -> None:
    cells = [
        {"label": "untrained", "set": {"stages.0.epochs": 0}},
        {"label": "frozen", "set": {"stages.0.frozen": True}},
    ]
    path = grid(tmp_path, {"tasks": {"sst": SST}, "stages": [STAGE]}, cells=cells)
    plan, outcome, events = run(path, tmp_path / "r")
    assert (outcome.finished, outcome.failed) == (2, 0)
    untrained, frozen = (weights(tmp_path / "r", cell.id) for cell in plan.cells)
    moved = {name for name in untrained if not untrained[name].equal(frozen[name])}
    assert moved
    assert all(name.startswith("heads.") for name in moved)
    assert [event.facts["best_epoch"] for event in of(events, "finished")] == [0, 1]


def test_adding_a_task_changes_nothing_in_how_the_others_begin(tmp_path: Path) -> None:
    cells = [{"label": "one"}, {"label": "two", "set": {"tasks.sts": STS}}]
    path = grid(tmp_path, {"tasks": {"sst": SST}, "stages": [{"epochs": 0}]}, cells=cells)
    plan, _, _ = run(path, tmp_path / "r")
    one, two = (weights(tmp_path / "r", cell.id) for cell in plan.cells)
    assert all(tensor.equal(two[name]) for name, tensor in one.items())


def test_a_shared_first_stage_is_trained_once_and_gives_the_same_result(tmp_path: Path) -> None:
    base = {"tasks": {"sst": SST, "sts": STS}, "stages": [{**STAGE, "tasks": ["sst"]}, STAGE]}
    both = grid(tmp_path, base, axes={"stages.1.optimizer.lr": [0.001, 0.002]})
    plan, outcome, events = run(both, tmp_path / "r")
    assert outcome.finished == 2
    shared = [event.facts["shared"] for event in of(events, "stage") if event.facts["index"] == 0]
    assert shared == [False, True]
    with Ledger.open(tmp_path / "r", create=False) as ledger:
        states = states_of(ledger, ledger.grids())
        assert [state.epochs for state in states] == ["2/2", "1/1 + 1 shared"], "finished is finished"
    alone = grid(tmp_path, base, axes={"stages.1.optimizer.lr": [0.002]})
    again, _, _ = run(alone, tmp_path / "other")
    assert again.cells[0].id == plan.cells[1].id
    ours, theirs = weights(tmp_path / "r", again.cells[0].id), weights(tmp_path / "other", again.cells[0].id)
    assert all(tensor.equal(theirs[name]) for name, tensor in ours.items())


def test_a_shared_stage_hands_on_nothing_of_tasks_that_it_did_not_train(tmp_path: Path) -> None:
    para = {
        "data": {"name": "generated", "task": "paraphrase", "size": 32, "dev_size": 16},
        "head": {"name": "linear", "reads": "pair"},
        "loss": "binary_cross_entropy",
    }
    stages = [{**STAGE, "tasks": ["sst"]}, STAGE]
    pair = {**STS, "head": {"name": "linear", "reads": "pair"}}
    base = {"tasks": {"sst": SST, "sts": pair}, "stages": stages}
    variants: list[dict[str, Any]] = [
        {"label": "one more task", "set": {"tasks.para": para}},
        {"label": "no layer"},
        {"label": "a layer", "set": {"tasks.sts.head.layers": 1}},
        {"label": "joint", "set": {"tasks.sts.head.reads": "joint"}},
    ]
    together, outcome, events = run(grid(tmp_path, base, cells=variants), tmp_path / "r")
    assert (outcome.finished, outcome.failed) == (4, 0)
    assert [e.facts["shared"] for e in of(events, "stage") if e.facts["index"] == 0] == [False, True, True, True]
    for variant, cell in zip(variants[1:], together.cells[1:], strict=True):
        alone, _, _ = run(grid(tmp_path, base, cells=[variant]), tmp_path / variant["label"])
        assert alone.cells[0].id == cell.id
        ours, theirs = weights(tmp_path / "r", cell.id), weights(tmp_path / variant["label"], cell.id)
        assert all(tensor.equal(theirs[name]) for name, tensor in ours.items()), variant["label"]


def test_a_layer_that_tasks_share_begins_the_same_whoever_is_first(tmp_path: Path) -> None:
    head = {"name": "shared_layer", "head": "linear"}
    cells = [{"label": "one"}, {"label": "two", "set": {"tasks.aaa": {**SST, "head": head}}}]
    path = grid(tmp_path, {"tasks": {"sst": {**SST, "head": head}}, "stages": [{"epochs": 0}]}, cells=cells)
    plan, _, _ = run(path, tmp_path / "r")
    one, two = (weights(tmp_path / "r", cell.id) for cell in plan.cells)
    assert any(name.startswith("shared.") for name in one)
    assert all(tensor.equal(two[name]) for name, tensor in one.items())


def test_a_damaged_shared_stage_is_trained_again(tmp_path: Path) -> None:
    base = {"tasks": {"sst": SST, "sts": STS}, "stages": [{**STAGE, "tasks": ["sst"]}, STAGE]}
    run(grid(tmp_path, base, axes={"stages.1.optimizer.lr": [0.001]}), tmp_path / "r")
    (result,) = (tmp_path / "r" / "stages").glob("*/result/tensors.safetensors")
    result.write_bytes(result.read_bytes()[:-1])
    _, outcome, events = run(grid(tmp_path, base, axes={"stages.1.optimizer.lr": [0.002]}), tmp_path / "r")
    assert outcome.finished == 1
    assert any("is damaged" in event.facts["message"] for event in of(events, "log"))


class TwoAtOnce(Engine):
    """Takes two cells at once; runs the first of them when it is asked for news. Keeps how many it had then."""

    name, slots = "two_at_once", 2

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.had: list[int] = []

    def open(self, work: str, folder: Path) -> None:
        assert work == "taskloom.runs.training.train:train"

    @property
    def free(self) -> int:
        return 2 - len(self.jobs)

    def submit(self, job: Job) -> None:
        self.jobs.append(job)

    def poll(self, seconds: float) -> list[Event]:
        self.had.append(len(self.jobs))
        events: list[Event] = []
        perform(train, self.jobs.pop(0), events.append)
        return events

    def stop(self, cell: str | None = None, *, at_once: bool = False) -> None:
        self.jobs.clear()

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("damaged", "had"), [(False, [2, 1]), (True, [1, 1])])
def test_cells_that_share_a_damaged_stage_wait_for_it_once(tmp_path: Path, damaged: bool, had: list[int]) -> None:
    base = {"tasks": {"sst": SST, "sts": STS}, "stages": [{**STAGE, "tasks": ["sst"]}, STAGE]}
    run(grid(tmp_path, base, axes={"stages.1.optimizer.lr": [0.001]}), tmp_path / "r")
    (result,) = (tmp_path / "r" / "stages").glob("*/result/tensors.safetensors")
    if damaged:
        result.write_bytes(result.read_bytes()[:-1])
    engine = TwoAtOnce()
    _, outcome, events = run(
        grid(tmp_path, base, axes={"stages.1.optimizer.lr": [0.002, 0.003]}), tmp_path / "r", engine
    )
    assert (outcome.finished, outcome.failed) == (2, 0)
    assert engine.had == had
    assert [e.facts["shared"] for e in of(events, "stage") if e.facts["index"] == 0] == [not damaged, True]
    assert ["trained again" in event.facts["message"] for event in of(events, "log")] == [True] * damaged


def test_a_damaged_token_cache_is_written_again(tmp_path: Path) -> None:
    base = {"tasks": {"sst": SST}, "stages": [STAGE]}
    run(grid(tmp_path, base, axes={"stages.0.epochs": [0]}), tmp_path / "r")
    for file in (tmp_path / "r" / "cache").rglob("ids.npy"):
        file.write_bytes(file.read_bytes()[:100])
    _, outcome, _ = run(grid(tmp_path, base, axes={"stages.0.epochs": [0, 1]}), tmp_path / "r")
    assert (outcome.finished, outcome.failed) == (1, 0)


@pytest.mark.parametrize("name", ["train", "type", "keys", "forward"])
def test_a_task_may_have_any_plain_name(tmp_path: Path, name: str) -> None:
    _, outcome, _ = run(grid(tmp_path, {"tasks": {name: SST}, "stages": [STAGE]}), tmp_path / "r")
    assert outcome.finished == 1


def test_identity_follows_what_decides_the_result_and_nothing_else(tmp_path: Path) -> None:
    table = {"name": "table", "text": "text", "label": "label", "classes": 2}
    for folder, text in (("a", "good"), ("b", "good"), ("c", "bad")):
        (tmp_path / folder).mkdir()
        rows = "".join(f"{text} {i},{i % 2}\n" for i in range(8))
        (tmp_path / folder / "x.csv").write_text("text,label\n" + rows)
    cells = [
        {
            "label": folder,
            "set": {"tasks.t.data": {**table, **{s: str(tmp_path / folder / "x.csv") for s in ("train", "dev")}}},
        }
        for folder in "abc"
    ]
    base = {"tasks": {"t": {"data": {**table, "train": "x.csv", "dev": "x.csv"}}}}
    plan = make_plan(load_grid(str(grid(tmp_path, base, cells=cells))), load_catalogue(), None)
    a, b, c = (cell.id for cell in plan.cells)
    assert a == b  # the same rows in another folder
    assert a != c  # other rows


def test_identity_knows_the_libraries_that_a_component_relies_on(tmp_path: Path) -> None:
    axes = {"stages.0.combiner": ["sum", {"name": "torchjd", "aggregator": "UPGrad"}]}
    plan = make_plan(load_grid(str(grid(tmp_path, {"tasks": {"sst": SST}}, axes=axes))), load_catalogue(), None)
    assert ["torchjd" in cell.versions for cell in plan.cells] == [False, True]


def test_growing_a_grid_runs_only_what_is_new(tmp_path: Path) -> None:
    base = {"tasks": {"sst": SST}, "stages": [STAGE]}
    run(grid(tmp_path, base, axes={"stages.0.epochs": [0, 1]}), tmp_path / "r")
    plan, outcome, _ = run(grid(tmp_path, base, axes={"stages.0.epochs": [0, 1, 2]}), tmp_path / "r")
    assert [cell.status for cell in plan.cells] == ["finished", "finished", "new"]
    assert (outcome.finished, outcome.cached) == (1, 2)


def test_a_failing_cell_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    base = {"tasks": {"sst": SST, "sts": STS}, "stages": [STAGE]}
    path = grid(tmp_path, base, axes={"stages.0.optimizer.lr": {"wild": 1e30, "tame": 1e-3}})
    plan, outcome, events = run(path, tmp_path / "r")
    assert (outcome.finished, outcome.failed) == (1, 1)
    (failed,) = of(events, "failed")
    assert failed.cell == plan.cells[0].id
    assert "task 'sst'" in failed.facts["reason"] or "task 'sts'" in failed.facts["reason"]
    assert "epoch 1, step " in failed.facts["reason"]
    assert "Traceback" in (tmp_path / "r" / "cells" / failed.cell / "log.txt").read_text()


def test_scores_that_are_not_finite_fail_the_cell_although_a_class_could_be_told(tmp_path: Path) -> None:
    one = {**SST, "data": {**SST["data"], "size": 8}}  # a single step: no loss sees the weights that it leaves
    stage = {"epochs": 1, "optimizer": {"lr": 1e38}}
    _, outcome, events = run(grid(tmp_path, {"tasks": {"sst": one}, "stages": [stage]}), tmp_path / "r")
    assert outcome.failed == 1
    reason = of(events, "failed")[0].facts["reason"]
    assert reason == "the scores of task 'sst' are not finite (head 'linear') (stage 1, epoch 1, step 1)"


class Cusp(Loss):
    """0 everywhere, with a gradient that is none."""

    name = "cusp"

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        return (prediction.score * 0).square().sum().sqrt()


@pytest.mark.parametrize("frozen", [False, True])
def test_a_gradient_that_is_not_finite_names_task_and_parts(tmp_path: Path, frozen: bool) -> None:
    spec, problems = load_catalogue().resolve_run({"encoder": ENCODER, "tasks": {"sst": SST}})
    assert not problems
    whole = Run.build(Job("x", "x", 0, spec, str(tmp_path)), lambda event: None, load_catalogue())
    whole.model.losses["sst"] = Cusp()
    whole.model.freeze_encoder(frozen)
    state = StageState.build(whole, 0, spec["stages"][0], ("sst",))
    with pytest.raises(TrainingError) as caught:
        train_epoch(whole, state, 0, 1)
    expected = "the gradient of task 'sst' is not finite (head 'linear', loss 'cusp') (stage 1, epoch 1, step 1)"
    assert str(caught.value) == expected


def test_reading_and_scoring_give_signs_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at_work, "PULSE", -1.0)  # whenever it may
    monkeypatch.setattr(feed, "SOME", 16)
    monkeypatch.setattr(evaluate, "TOKENS", 64)
    events: list[Event] = []
    spec, _ = load_catalogue().resolve_run({"encoder": ENCODER, "tasks": {"sst": SST}, "stages": [STAGE]})
    train(Job("x", "x", 0, spec, str(tmp_path)), events.append)
    whats = [event.what for event in events]
    assert whats[0] == "started"
    first = next(place for place, event in enumerate(events) if event.facts.get("step"))
    assert whats[1:first].count("progress") >= 64 // 16 + 32 // 16  # while the texts are tokenized
    scoring = [event for event in events[: whats.index("epoch")] if event.facts.get("step") == 8]
    assert len(scoring) > 32 * 3 // 64  # one for the step, the others for parts of the dev set
    keys = {"stage", "epoch", "step", "steps", "rate", "losses", "memory"}
    assert all(event.facts.keys() == keys for event in events if event.what == "progress")


def test_selection_keeps_the_epoch_it_names(tmp_path: Path) -> None:
    base = {"tasks": {"sst": SST, "sts": STS}, "stages": [{**STAGE, "epochs": 4}]}
    axes = {"selection": ["overall", "sts", "last"]}
    _, _, events = run(grid(tmp_path, base, axes=axes), tmp_path / "r")
    for event, key in zip(of(events, "finished"), ("overall", "sts", None), strict=True):
        epochs = [e.facts for e in of(events, "epoch") if e.cell == event.cell]
        wanted = max(epochs, key=lambda facts: facts["scores"][key])["epoch"] if key else 4
        assert event.facts["best_epoch"] == wanted
        assert event.facts["scores"] == epochs[wanted - 1]["scores"]


@pytest.mark.parametrize("how", ["mean", "normalised"])
def test_overall_is_the_mean_of_the_tasks(tmp_path: Path, how: str) -> None:
    base = {"tasks": {"sst": SST, "sts": STS}, "stages": [STAGE], "overall": how}
    _, _, events = run(grid(tmp_path, base), tmp_path / "r")
    scores = of(events, "finished")[0].facts["scores"]
    sts = (scores["sts"] + 1) / 2 if how == "normalised" else scores["sts"]
    assert scores["overall"] == pytest.approx((scores["sst"] + sts) / 2, abs=1e-12)


def test_kept_predictions_give_the_kept_score(tmp_path: Path) -> None:
    plan, _, events = run(grid(tmp_path, {"tasks": {"sst": SST}, "stages": [STAGE]}), tmp_path / "r")
    lines = (tmp_path / "r" / "cells" / plan.cells[0].id / "predictions-sst-dev.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert len(rows) == 32
    right = sum(row["predicted"] == row["expected"] for row in rows) / len(rows)
    assert right == pytest.approx(of(events, "finished")[0].facts["scores"]["sst"])
