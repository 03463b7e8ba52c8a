"""A batch in parts gives the update of the whole batch, whatever the loss, the head and the combiner."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import BATCH, ENCODER, NO_DROPOUT, Bench
from torch import Tensor

from taskloom.core import Head, Loss, Prediction, TrainingError
from taskloom.core.prediction import Pass, Replay
from taskloom.plugins.losses.smart import Smart
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.runs.training import optimize
from taskloom.runs.training.microbatch import PartedPass, parts_of

SOME_DROPOUT = {"dropout": 0.2, "attention_dropout": 0.2}
PAIR = {"name": "linear", "reads": "pair", "dropout": 0.0}
COSINE = {"name": "cosine", "dropout": 0.0}
#: Label → kind of generated text, head, loss.
CASES: dict[str, tuple[str, Any, Any]] = {
    "classes, one text": ("sentiment", {"name": "linear", "dropout": 0.0}, "cross_entropy"),
    "classes, shared layer": (
        "sentiment",
        {"name": "shared_layer", "head": {"name": "linear", "dropout": 0.0}},
        {"name": "cross_entropy", "label_smoothing": 0.1},
    ),
    "logit, pair": ("paraphrase", PAIR, "binary_cross_entropy"),
    "logit, joint": ("paraphrase", {**PAIR, "reads": "joint"}, "binary_cross_entropy"),
    "logit, both orders": ("paraphrase", {"name": "both_orders", "dropout": 0.0}, "binary_cross_entropy"),
    "value, cosine": ("similarity", {**COSINE, "layers": 1}, "mse"),
    "value, features": ("similarity", {"name": "cosine_features", "dropout": 0.0}, "mse"),
    "value, sigmoid": ("similarity", {"name": "cosine_sigmoid", "dropout": 0.0, "steepness": 1}, "mse"),
    "margin": ("similarity", COSINE, {"name": "cosine_embedding", "positive_from": 3}),
    "moving margin": ("similarity", COSINE, {"name": "dynamic_margin", "positive_from": 3, "per_sample": True}),
    "ranking": ("paraphrase", PAIR, {"name": "mnr", "symmetric": True}),
    "ranking, triples": ("entailment", {"name": "embedding", "reads": "triple"}, "mnr"),
    "hinge": ("paraphrase", PAIR, "mnr_hinge"),
    "contrast, one text": ("sentiment", {"name": "embedding", "reads": "single"}, "simcse"),
    "contrast, triples": ("entailment", {"name": "embedding", "reads": "triple"}, "simcse"),
    "a sum": ("paraphrase", PAIR, {"name": "total", "losses": ["binary_cross_entropy", "mnr"], "weights": [1, 0.3]}),
    "proximal": ("similarity", COSINE, {"name": "smart", "loss": "mse", "weight": 0, "proximal": 1, "momentum": 0.5}),
    "proximal ranking": (
        "paraphrase",
        PAIR,
        {"name": "smart", "loss": "mnr", "weight": 0, "proximal": 1, "momentum": 0.5},
    ),
}
SMART: dict[str, tuple[str, Any, Any]] = {
    "smooth ranking": ("paraphrase", PAIR, {"name": "smart", "loss": "mnr", "proximal": 1, "noise": 0.1}),
    "smooth and ranked": (
        "paraphrase",
        PAIR,
        {"name": "total", "losses": [{"name": "smart", "loss": "binary_cross_entropy"}, "mnr"]},
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("micro")


def task_of(case: tuple[str, Any, Any]) -> dict[str, Any]:
    kind, head, loss = case
    metric = "pearson" if kind == "similarity" else "accuracy"
    data = {"name": "generated", "task": kind, "size": 16, "dev_size": 4}
    return {"data": data, "head": head, "loss": loss, "metric": metric}


def exact(folder: Path, tasks: dict[str, Any], combiner: Any = "sum", dropout: Any = NO_DROPOUT) -> Bench:
    """A run in float64."""
    bench = Bench(folder, tasks, combiner, encoder={**ENCODER, **dropout})
    bench.run.model.double()
    return bench


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor], within: float) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        close = torch.allclose(tensor, theirs[name], rtol=within, atol=within, equal_nan=True)
        assert close, f"{name}: {tensor} and {theirs[name]}"


def test_every_loss_and_every_way_of_reading_is_among_the_cases() -> None:
    catalogue = load_catalogue()
    made = [
        catalogue.resolve_run({"tasks": {"t": task_of(case)}})[0]["tasks"]["t"] for case in (CASES | SMART).values()
    ]
    ours = set(catalogue.names("loss"))
    assert ours <= {task["loss"]["name"] for task in made}
    heads = [catalogue.make(Head, task["head"]) for task in made]
    assert {head.reads for head in heads} == {"single", "pair", "triple", "joint", "both_orders"}


@pytest.mark.parametrize("label", CASES)
def test_parts_add_up_to_the_gradient_of_the_batch(folder: Path, label: str) -> None:
    tasks = {"t": task_of(CASES[label])}
    whole = exact(folder, tasks)
    parted = [(micro, exact(folder, tasks)) for micro in (1, 3)]
    for _ in range(2):  # a second time with state that the first has moved
        loss, expected = whole.gradients(whole.step(None), "t", 0.7)
        evaluated = whole.step(None).evaluate("t")
        assert any(gradient.abs().max() > 1e-9 for gradient in expected.values())
        for micro, bench in parted:
            found, gradients = bench.gradients(bench.step(micro), "t", 0.7)
            assert_same({"loss": found, **gradients}, {"loss": loss, **expected}, 1e-9)
            torch.testing.assert_close(bench.step(micro).evaluate("t"), evaluated, rtol=1e-9, atol=1e-9)
            with torch.no_grad():
                for parameter in bench.run.model.parameters():
                    parameter.mul_(1.01)
            assert_same(bench.run.model.losses.state_dict(), whole.run.model.losses.state_dict(), 1e-9)
        with torch.no_grad():
            for parameter in whole.run.model.parameters():
                parameter.mul_(1.01)


class Uncached(PartedPass):
    """The parts with the graphs of all of them: the same draws, nothing cached."""

    def replaced(self, parameters: Any, embedded: Tensor | None) -> Prediction:
        if embedded is None:
            embedded = torch.cat([self._embed(part, parameters) for part in self._parts])
        starts = torch.split(embedded, [len(part.tokens.ids) for part in self._parts])
        found = [
            part.replaced(parameters, start) if parameters else part(start)
            for part, start in zip(self._parts, starts, strict=True)
        ]
        score, vectors = torch.cat([one.score for one in found]), torch.cat([one.vectors for one in found], 1)
        return Prediction(score, vectors, self.rows, Replay(embedded, self))

    def _embed(self, part: Pass, parameters: Any) -> Tensor:
        encoder = {name.removeprefix("encoder."): p for name, p in parameters.items() if name.startswith("encoder.")}
        with torch.nn.utils.stateless._reparametrize_module(part.encoder, encoder):
            return part.embed()


@pytest.mark.parametrize("label", ["contrast, one text", "ranking", "a sum", "proximal ranking", *SMART])
def test_dropout_and_noise_are_the_same_on_the_way_back(
    folder: Path, label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, head, loss = (CASES | SMART)[label]
    head = {key: value for key, value in head.items() if key != "dropout"}  # as it is by default: some
    cached, kept = (exact(folder, {"t": task_of((kind, head, loss))}, dropout=SOME_DROPOUT) for _ in range(2))
    for _ in range(2):
        found = cached.gradients(cached.step(3), "t")
        with monkeypatch.context() as patch:
            patch.setattr(optimize, "PartedPass", Uncached)
            expected = kept.gradients(kept.step(3), "t")
        assert_same({"loss": found[0], **found[1]}, {"loss": expected[0], **expected[1]}, 1e-9)
        ours, theirs = (bench.state.generators["model"].get_state() for bench in (cached, kept))
        assert ours.equal(theirs)


class Steady(Smart):
    """SMART with a perturbation that is no matter of chance, so that parts and whole can be compared."""

    def perturbation(self, prediction: Prediction) -> Tensor:
        assert prediction.replay is not None
        return 0.3 * torch.sin(9 * prediction.replay.embedded.detach())


def test_smart_smooths_every_example_by_itself(folder: Path) -> None:
    kind, head, _ = CASES["value, cosine"]
    found = []
    for micro in (None, 2):
        bench = exact(folder, {"t": task_of((kind, head, "mse"))})
        inner = bench.run.model.loss("t")
        bench.run.model.losses["t"] = Steady(loss=inner, weight=2.0).train()
        assert bench.run.model.loss("t").separable
        found.append(bench.gradients(bench.step(micro), "t"))
    assert_same(found[1][1], found[0][1], 1e-9)
    assert found[0][0] > inner(*_prediction(bench))


def _prediction(bench: Bench) -> tuple[Prediction, Tensor]:
    rows, feed = np.arange(BATCH), bench.run.train["t"]
    return bench.run.model.forward_pass("t", feed.tokens(rows))(None), feed.target(rows)


COMBINERS = load_catalogue().names("combiner")


@pytest.mark.parametrize("combiner", COMBINERS)
def test_every_combiner_takes_the_same_step(folder: Path, combiner: str) -> None:
    tasks = {
        name: task_of(CASES[name_of])
        for name, name_of in (("a", "classes, one text"), ("b", "value, cosine"), ("c", "ranking"))
    }
    states = []
    for micro in (None, 3):
        bench = exact(folder, tasks, combiner)
        for _ in range(2):
            losses = bench.state.combiner.update(bench.step(micro))
            assert list(losses) == list(tasks)
        states.append({**bench.run.model.state_dict(), **bench.state.combiner.state_dict()})
    assert_same(states[1], states[0], 1e-8)


class Alive:
    """What autograd keeps for the way back: bytes now, and at most."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def pack(self, tensor: Tensor) -> "Kept":
        return Kept(self, tensor)

    def unpack(self, kept: "Kept") -> Tensor:
        return kept.tensor


class Kept:
    def __init__(self, alive: Alive, tensor: Tensor) -> None:
        self.alive, self.tensor = alive, tensor
        # Weights are there anyway.
        self.bytes = 0 if isinstance(tensor, torch.nn.Parameter) else tensor.numel() * tensor.element_size()
        alive.now += self.bytes
        alive.most = max(alive.most, alive.now)

    def __del__(self) -> None:
        self.alive.now -= self.bytes


@pytest.mark.parametrize("label", ["classes, one text", "value, cosine", "ranking", "contrast, triples", "proximal"])
def test_only_a_part_is_in_memory(folder: Path, label: str) -> None:
    most = {}
    for micro in (None, 1):
        bench, alive = exact(folder, {"t": task_of(CASES[label])}), Alive()
        with torch.autograd.graph.saved_tensors_hooks(alive.pack, alive.unpack):
            bench.gradients(bench.step(micro), "t")
        most[micro] = alive.most
    assert most[1] < 0.35 * most[None]


class Twice(Loss):
    """A loss with the gradient of a gradient in it."""

    name = "twice"

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        assert prediction.replay is not None
        (slope,) = torch.autograd.grad(
            prediction.score.sum(), prediction.replay.embedded, create_graph=True, retain_graph=True
        )
        return slope.square().mean()


def test_a_loss_that_differentiates_twice_is_refused_in_our_words(folder: Path) -> None:
    bench = exact(folder, {"t": task_of(CASES["value, cosine"])}, dropout=SOME_DROPOUT)
    bench.run.model.losses["t"] = Twice()
    bench.gradients(bench.step(None), "t")
    with pytest.raises(TrainingError, match=r"loss 'twice' differentiates a gradient.*leave micro_batch out"):
        bench.gradients(bench.step(2), "t")


def test_parts_are_as_even_as_can_be() -> None:
    for count in range(1, 20):
        for size in range(1, 22):
            parts = parts_of(np.arange(count), size)
            lengths = [len(part) for part in parts]
            assert np.concatenate(parts).tolist() == list(range(count))
            assert max(lengths) <= size
            assert max(lengths) - min(lengths) <= 1
