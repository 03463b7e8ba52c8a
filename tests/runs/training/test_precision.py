"""bfloat16: the pass is in half precision, everything that learns is not; it works with every combiner and in parts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from taskloom.core import Event, Job, Loss, Prediction, TaskBatch
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.runs.grid.identity import digest
from taskloom.runs.training.optimize import GroupStep
from taskloom.runs.training.stage import StageState
from taskloom.runs.training.train import Run, train

TASKS: dict[str, Any] = {
    "sst": {"data": {"name": "generated", "task": "sentiment", "size": 16, "dev_size": 8}},
    "para": {
        "data": {"name": "generated", "task": "paraphrase", "size": 16, "dev_size": 8},
        "head": {"name": "linear", "reads": "pair"},
        "loss": {"name": "total", "losses": [{"name": "smart", "loss": "binary_cross_entropy"}, "mnr"]},
    },
    "sts": {
        "data": {"name": "generated", "task": "similarity", "size": 16, "dev_size": 8},
        "head": "cosine",
        "loss": "mse",
        "metric": "pearson",
    },
}
ENCODER = {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 64}


def ignore(event: Event) -> None:
    pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("precision")


def resolved(**changes: Any) -> dict[str, Any]:
    stage = {"epochs": 1, "optimizer": {"lr": 0.001}, "combiner": changes.pop("combiner", "sum")}
    run = {"encoder": ENCODER, "tasks": TASKS, "stages": [stage], **changes}
    spec, problems = load_catalogue().resolve_run(run)
    assert not problems, problems
    return spec


def build(folder: Path, **changes: Any) -> tuple[Run, StageState]:
    spec = resolved(**changes)
    run = Run.build(Job("x", "x", 0, spec, str(folder)), ignore, load_catalogue())
    run.model.train()
    return run, StageState.build(run, 0, spec["stages"][0], tuple(spec["tasks"]))


def step_of(run: Run, state: StageState, micro: int | None) -> GroupStep:
    return GroupStep(
        tuple(TaskBatch(task, np.arange(8)) for task in run.tasks),
        model=run.model,
        feeds=run.train,
        shared=run.model.shared_parameters(),
        trained=state.trained,
        optimizer=state.optimizer,
        clip=1.0,
        micro_batch=micro,
    )


@pytest.mark.parametrize("combiner", load_catalogue().names("combiner"))
def test_every_combiner_steps_in_bfloat16_and_in_parts(folder: Path, combiner: str) -> None:
    run, state = build(folder, precision="bfloat16", combiner=combiner)
    before = [parameter.detach().clone() for parameter in state.trained]
    for _ in range(2):
        losses = state.combiner.update(step_of(run, state, 3))
        assert all(loss.dtype == torch.float32 and loss.isfinite() for loss in losses.values())
    assert all(parameter.dtype == torch.float32 for parameter in state.trained)
    assert all(parameter.isfinite().all() for parameter in state.trained)
    assert any(not parameter.equal(old) for parameter, old in zip(state.trained, before, strict=True))


class Looking(Loss):
    """Notes what a loss is given, in the pass and in a replay."""

    name = "looking"

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        assert prediction.replay is not None
        again = prediction.replay(prediction.replay.embedded)
        self.seen = {part.dtype for one in (prediction, again) for part in (one.score, one.vectors)}
        self.autocast = torch.is_autocast_enabled("cpu")
        return again.score.square().mean()


@pytest.mark.parametrize("micro", [None, 3])
def test_losses_work_in_float32_and_layers_in_bfloat16(folder: Path, micro: int | None) -> None:
    run, state = build(folder, precision="bfloat16")
    loss, found = Looking(), set()
    run.model.losses["sst"] = loss
    linear = next(module for name, module in run.model.encoder.named_modules() if name.endswith(".out"))
    assert isinstance(linear, torch.nn.Linear)
    linear.register_forward_hook(lambda module, args, output: found.add(output.dtype))
    step_of(run, state, micro).backward("sst")
    assert loss.seen == {torch.float32}
    assert not loss.autocast
    assert found == {torch.bfloat16}
    assert linear.weight.grad is not None
    assert linear.weight.grad.dtype == torch.float32


def test_bfloat16_is_near_to_float32_and_parts_are_as_near(folder: Path) -> None:
    none = {"dropout": 0.0, "attention_dropout": 0.0}
    gradients = {}
    for precision, micro in (("float32", None), ("bfloat16", None), ("bfloat16", 3)):
        run, state = build(folder, precision=precision, encoder={**ENCODER, **none})
        run.model.heads.eval()  # no dropout there either
        step_of(run, state, micro).backward("sst")
        flat = [p.grad.to_dense().flatten() for p in run.model.encoder.parameters() if p.grad is not None]
        gradients[precision, micro] = torch.cat(flat)
    exact = gradients.pop(("float32", None))
    for found in gradients.values():
        assert 0 < (found - exact).norm() < 0.1 * exact.norm()


def test_a_run_in_bfloat16_from_end_to_end(tmp_path: Path) -> None:
    events: list[Event] = []
    train(Job("y", "y", 0, resolved(precision="bfloat16", combiner="gse"), str(tmp_path)), events.append)
    assert events[-1].what == "finished"
    assert set(events[-1].facts["scores"]) == {*TASKS, "overall"}


def test_runs_that_use_nothing_new_keep_their_identity() -> None:
    known = "727e2bf2ea92d690a2ed"  # as it was before there were precision, micro-batches and resources
    data = {"name": "generated", "task": "sentiment", "size": 64, "dev_size": 32}
    stage = {"epochs": 1, "optimizer": {"lr": 0.001}}
    catalogue = load_catalogue()

    def name(stage: dict[str, Any] = stage, **rest: Any) -> str:
        spec, problems = catalogue.resolve_run({"tasks": {"sst": {"data": data}}, "stages": [stage], **rest})
        assert not problems
        assert catalogue.resolve_run(spec) == (spec, [])  # what is resolved stays as it is
        return digest(spec)

    assert name() == known
    assert name(precision="float32", resources={}) == known
    assert name({**stage, "micro_batch": None}) == known
    assert len({known, name(precision="bfloat16"), name({**stage, "micro_batch": 4})}) == 3


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"precision": "float16"}, "precision"),
        ({"resources": {"gpus": 2}}, "resources.gpus"),
        ({"resources": {"cpus": 0}}, "resources.cpus"),
        ({"stages": [{"micro_batch": 0}]}, "stages.0.micro_batch"),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, Any], path: str) -> None:
    _, problems = load_catalogue().resolve_run({"tasks": TASKS, **change})
    assert [problem.path for problem in problems] == [path]
