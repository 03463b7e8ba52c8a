"""One pass for all tasks: the losses and gradients of the tasks one after another, summed or apart."""

from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import ENCODER, NO_DROPOUT, Bench, generated, job_of
from torch import Tensor

from taskloom.core import Gradients, Loss, Prediction, Step, TrainingError
from taskloom.core.testing.device import PretendGPU
from taskloom.runs.training.optimize import GroupStep
from taskloom.runs.training.train import train, train_epoch

CALM = {**ENCODER, **NO_DROPOUT, "layers": 2}
PAIR = {"name": "linear", "reads": "pair", "dropout": 0.0}
TASKS: dict[str, Any] = {
    "sst": generated("sentiment", head={"name": "linear", "dropout": 0.0}),
    "para": generated("paraphrase", head=PAIR, loss="binary_cross_entropy"),
    "sts": generated("similarity", head="cosine", loss="mse", metric="pearson"),
}
APART = {**PAIR, "reads": "joint", "segments": False}
SMOOTH = {"name": "smart", "loss": "cross_entropy", "noise": 0.1}
CALM_COSINE = {"name": "cosine", "dropout": 0.0}
COMMON = {"name": "shared_layer", "dropout": 0.0}
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # label → encoder, tasks
    "pooler": (CALM, TASKS),
    "mean": ({**CALM, "pooling": "mean"}, TASKS),
    "max": ({**CALM, "pooling": "max"}, TASKS),
    "cls, joined pairs": (
        {**CALM, "pooling": "cls"},
        {**TASKS, "para": generated("paraphrase", head={"name": "both_orders"}, loss="binary_cross_entropy")},
    ),
    "a pooling for each task": (
        {**CALM, "pooling": "cls"},
        {
            "sst": generated("sentiment", head={"name": "linear", "dropout": 0.0, "pooling": "pooler"}),
            "para": generated("paraphrase", head={**PAIR, "pooling": "mean"}, loss="binary_cross_entropy"),
            "sts": generated("similarity", head={"name": "cosine", "pooling": "max"}, loss="mse", metric="pearson"),
            "own": generated("sentiment", head={"name": "linear", "dropout": 0.0}),
        },
    ),
    "pooler and cls, pairs laid out in two ways": (
        CALM,
        {
            "sst": generated("sentiment", head={"name": "linear", "dropout": 0.0, "pooling": "cls"}),
            "para": generated("paraphrase", head={"name": "both_orders", "layout": "concatenated"}, loss="mse"),
            "sts": generated("similarity", head=APART, loss="mse", metric="pearson"),
        },
    ),
    "a layer in common": (
        CALM,
        {
            **TASKS,
            "sst": generated("sentiment", head={**COMMON, "head": {"name": "linear", "dropout": 0.0}}),
            "para": generated("paraphrase", head={**COMMON, "head": PAIR}, loss="binary_cross_entropy"),
        },
    ),
    "losses that replay": (
        CALM,
        {
            **TASKS,
            "sts": generated("similarity", head=CALM_COSINE, loss="mse", metric="pearson"),
            "sst": generated("sentiment", head={"name": "linear", "dropout": 0.0}, loss=SMOOTH),
            "views": generated("sentiment", head={"name": "embedding", "reads": "single"}, loss="simcse"),
        },
    ),
    "losses that all replay": (
        CALM,
        {
            "sst": generated("sentiment", head={"name": "linear", "dropout": 0.0}, loss=SMOOTH),
            "para": generated("paraphrase", head=PAIR, loss={**SMOOTH, "loss": "binary_cross_entropy", "steps": 2}),
            "sts": generated("similarity", head=CALM_COSINE, loss={**SMOOTH, "loss": "mse"}, metric="pearson"),
        },
    ),
    "a frozen encoder": ({**CALM, "trainable": False}, TASKS),
}


def reset(bench: Bench) -> None:
    """Clear the gradients, and begin the random numbers anew."""
    bench.run.model.zero_grad()
    for generator in bench.state.generators.values():
        generator.manual_seed(0)


def dense(gradient: Tensor | None) -> Tensor | None:
    return None if gradient is None else gradient.to_dense().float()


def state_of(bench: Bench, step: GroupStep, *, together: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The losses of a weighted sum, and every gradient that it leaves."""
    reset(bench)
    factors = [1.0, 0.5, 2.0, 1.5][: len(step.tasks)]
    losses = step.add_up(factors) if together else Step.add_up(step, factors)
    named = bench.run.model.named_parameters()
    return losses, {name: p.grad.to_dense().clone() for name, p in named if p.grad is not None}


def assert_near(found: Any, expected: Any, within: float = 1e-4) -> None:
    # SMART's ascent divides by small norms, so that rounding counts for more than elsewhere.
    torch.testing.assert_close(found, expected, rtol=within, atol=within)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_sum_in_one_pass_is_that_of_the_tasks_one_by_one(tmp_path: Path, variant: str) -> None:
    encoder, tasks = VARIANTS[variant]
    bench = Bench(tmp_path, tasks, encoder=encoder)
    bench.run.model.freeze_encoder(False)
    step = bench.step(None)
    losses, gradients = state_of(bench, step, together=True)
    expected, others = state_of(bench, step, together=False)
    assert_near(losses, expected)
    assert gradients.keys() == others.keys()
    assert_near(gradients, others)
    assert bool([name for name in gradients if name.startswith("encoder.")]) == (variant != "a frozen encoder")


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_apart_are_those_of_each_task_by_itself(tmp_path: Path, variant: str) -> None:
    encoder, tasks = VARIANTS[variant]
    bench = Bench(tmp_path, tasks, "pcgrad", encoder=encoder)
    bench.run.model.freeze_encoder(False)
    step, found = bench.step(None), list[tuple[dict[str, Tensor], list[Gradients]]]()
    for task in step.tasks:
        step._model.loss(task).replays = False  # or a loss that does would be taken by itself, to save memory
    for collect in (step.gradients, lambda: Step.gradients(step)):
        reset(bench)
        losses, taken = collect()
        own = [p.grad for task in step.tasks for p in step.own(task)]
        found.append((losses, [[dense(part) for part in parts] for parts in [*taken, own]]))
    (losses, gradients), (expected, others) = found
    assert_near(losses, expected)
    assert len(gradients) == len(step.tasks) + 1
    for some, same in zip(gradients, others, strict=True):
        for part, other in zip(some, same, strict=True):
            zero = (
                torch.zeros(())
                if part is None and other is None
                else torch.zeros_like(part if other is None else other)
            )
            assert_near(zero if part is None else part, zero if other is None else other)


@pytest.mark.parametrize("combiner", ["sum", "pcgrad"])
def test_in_half_precision_it_is_as_near_to_float32_as_task_by_task(tmp_path: Path, combiner: str) -> None:
    found = {}
    for precision in ("float32", "bfloat16"):
        bench = Bench(tmp_path, TASKS, combiner, encoder=CALM, precision=precision)
        step = bench.step(None)
        reset(bench)
        together = step.gradients()[1] if combiner == "pcgrad" else [_summed(step, step.add_up([1.0] * 3))]
        reset(bench)
        apart = Step.gradients(step)[1] if combiner == "pcgrad" else [_summed(step, Step.add_up(step, [1.0] * 3))]
        found[precision] = tuple(
            torch.cat([dense(part).reshape(-1) for parts in each for part in parts if part is not None])  # type: ignore[union-attr]
            for each in (together, apart)
        )
    exact = found["float32"][1]
    errors = [((half - exact).norm() / exact.norm()).item() for half in found["bfloat16"]]
    assert 0 < errors[0] < 2 * errors[1] < 0.2


def _summed(step: GroupStep, losses: dict[str, Tensor]) -> Gradients:
    assert losses
    return [parameter.grad for parameter in step.shared]


def test_a_task_whose_gradient_is_not_finite_is_named(tmp_path: Path) -> None:
    bench = Bench(tmp_path, TASKS, encoder=CALM)

    class Sharp(Loss):
        name = "sharp"
        expects = "score"

        def forward(self, prediction: Any, target: Tensor) -> Tensor:
            return (prediction.score * 0).abs().sqrt().sum()  # 0, with a slope that is not a number

    bench.run.model.losses["sts"] = Sharp()
    with pytest.raises(TrainingError, match="the gradient of task 'sts' is not finite"):
        bench.step(None).add_up([1.0, 1.0, 1.0])


def test_a_loss_may_differentiate_by_its_embeddings(tmp_path: Path) -> None:
    """As gradient penalties do: the embeddings that it is shown lead to its score."""
    bench = Bench(tmp_path, TASKS, encoder=CALM)

    class Penalty(Loss):
        name = "penalty"
        expects = "score"
        replays = True

        def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
            assert prediction.replay is not None
            score = prediction.score.sum()
            (slope,) = torch.autograd.grad(score, prediction.replay.embedded, retain_graph=True)
            return score * 0 + slope.square().sum() + prediction.score.square().mean()

    bench.run.model.losses["sts"] = Penalty()
    step = bench.step(None)
    reset(bench)
    found = step.add_up([1.0] * 3)
    reset(bench)
    apart, taken = step.gradients()
    assert_near(found, apart)
    assert len(taken) == 3


@pytest.mark.parametrize("combiner", ["sum", "pcgrad"])
def test_on_a_gpu_the_first_thing_that_went_wrong_is_named(tmp_path: Path, combiner: str) -> None:
    """Nothing is read there before it has to be, and then in order."""

    class Lost(Loss):
        name = "lost"
        expects = "score"

        def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
            return prediction.score.sum() * float("nan")

    with PretendGPU():
        bench = Bench(tmp_path, TASKS, combiner, encoder=CALM)
        bench.run.model.losses["para"] = Lost()
        with pytest.raises(TrainingError) as caught:
            train_epoch(bench.run, bench.state, 1)
    assert str(caught.value).startswith("the loss 'lost' of task 'para' is nan (stage 1, epoch 1, step 1); lr ")


@pytest.mark.parametrize("combiner", ["sum", "pcgrad"])
def test_a_cell_with_nothing_to_learn_takes_its_steps(tmp_path: Path, combiner: str) -> None:
    encoder, tasks = {**CALM, "trainable": False}, dict.fromkeys(("one", "other"), TASKS["sts"])
    stage = {"combiner": combiner, "epochs": 1}  # and nothing is clipped
    events: list[str] = []
    train(job_of(tmp_path, {"encoder": encoder, "tasks": tasks, "stages": [stage]}), lambda e: events.append(e.what))
    assert events[-1] == "finished"
