"""bfloat16: the pass is in half precision, everything that learns is not; it works with every combiner and in parts."""

from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import ENCODER, NO_DROPOUT, SMART_AND_RANKED, Bench, generated, job_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from taskloom.core import Event, Loss, Prediction
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.runs.training.train import train

TASKS: dict[str, Any] = {
    "sst": generated("sentiment"),
    "para": generated("paraphrase", head={"name": "linear", "reads": "pair"}, loss=SMART_AND_RANKED),
    "sts": generated("similarity", head="cosine", loss="mse", metric="pearson"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("precision")


@pytest.mark.parametrize("combiner", load_catalogue().names("combiner"))
def test_every_combiner_steps_in_bfloat16_and_in_parts(folder: Path, combiner: str) -> None:
    bench = Bench(folder, TASKS, combiner, precision="bfloat16")
    state = bench.state
    before = [parameter.detach().clone() for parameter in state.trained]
    for _ in range(2):
        losses = state.combiner.update(bench.step(3))
        assert all(loss.dtype == torch.float32 and loss.isfinite() for loss in losses.values())
    assert all(parameter.dtype == torch.float32 for parameter in state.trained)
    assert all(parameter.isfinite().all() for parameter in state.trained)
    assert any(not parameter.equal(old) for parameter, old in zip(state.trained, before, strict=True))


class Looking(Loss):
    """Notes what a loss is given, in the pass and in a replay."""

    name = "looking"
    expects = "score"

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        assert prediction.replay is not None
        again = prediction.replay(prediction.replay.embedded)
        self.seen = {part.dtype for one in (prediction, again) for part in (one.score, one.vectors)}
        self.autocast = torch.is_autocast_enabled("cpu")
        return again.score.square().mean()


@pytest.mark.parametrize("micro", [None, 3])
def test_losses_work_in_float32_and_layers_in_bfloat16(folder: Path, micro: int | None) -> None:
    bench = Bench(folder, TASKS, precision="bfloat16")
    loss, found = Looking(), set()
    bench.run.model.losses["sst"] = loss
    linear = next(module for name, module in bench.run.model.encoder.named_modules() if name.endswith(".out"))
    assert isinstance(linear, torch.nn.Linear)

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            output = func(*args, **(kwargs or {}))
            if func is torch.ops.aten.addmm.default:
                found.add(output.dtype)
            return output

    with Products():
        bench.step(micro).backward("sst")
    assert loss.seen == {torch.float32}
    assert not loss.autocast
    assert found == {torch.bfloat16}
    assert linear.weight.grad is not None
    assert linear.weight.grad.dtype == torch.float32


def test_bfloat16_is_near_to_float32_and_parts_are_as_near(folder: Path) -> None:
    gradients = {}
    for precision, micro in (("float32", None), ("bfloat16", None), ("bfloat16", 3)):
        bench = Bench(folder, TASKS, precision=precision, encoder={**ENCODER, **NO_DROPOUT})
        bench.run.model.heads.eval()  # no dropout there either
        _, found = bench.gradients(bench.step(micro), "sst")
        gradients[precision, micro] = torch.cat([g.flatten() for name, g in found.items() if "encoder" in name])
    exact = gradients.pop(("float32", None))
    for found in gradients.values():
        assert 0 < (found - exact).norm() < 0.1 * exact.norm()


def test_a_run_in_bfloat16_from_end_to_end(tmp_path: Path) -> None:
    events: list[Event] = []
    stage = {"epochs": 1, "optimizer": {"lr": 0.001}, "combiner": "gse"}
    run = {"encoder": ENCODER, "tasks": TASKS, "stages": [stage], "precision": "bfloat16"}
    train(job_of(tmp_path, run), events.append)
    assert events[-1].what == "finished"
    assert set(events[-1].facts["scores"]) == {*TASKS, "overall"}
