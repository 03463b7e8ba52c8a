"""A batch in parts gives the update of the whole batch, whatever the loss, the head and the combiner."""

from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import ENCODER, NO_DROPOUT, SMART_AND_RANKED, Bench, generated
from torch import Tensor

from taskloom.core import Head, Loss, LossProgram, Prediction, Replay, TrainingError
from taskloom.core.forward import Pass
from taskloom.plugins.losses.smart import Smart
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.runs.training import optimize
from taskloom.runs.training.microbatch import PartedPass

SOME_DROPOUT = {"dropout": 0.2, "attention_dropout": 0.2}
PAIR = {"name": "linear", "reads": "pair", "dropout": 0.0}
COSINE = {"name": "cosine", "dropout": 0.0}
SHARED = {"name": "shared_layer", "head": {"name": "linear", "dropout": 0.0}}
PROXIMAL = {"name": "smart", "weight": 0, "proximal": 1, "momentum": 0.5}
#: Label → kind of generated text, head, loss.
CASES: dict[str, tuple[str, Any, Any]] = {
    "classes, one text": ("sentiment", {"name": "linear", "dropout": 0.0}, "cross_entropy"),
    "classes, shared layer": ("sentiment", SHARED, {"name": "cross_entropy", "label_smoothing": 0.1}),
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
    "proximal": ("similarity", COSINE, {"loss": "mse", **PROXIMAL}),
    "proximal ranking": ("paraphrase", PAIR, {"loss": "mnr", **PROXIMAL}),
}
SMART: dict[str, tuple[str, Any, Any]] = {
    "smooth ranking": ("paraphrase", PAIR, {"name": "smart", "loss": "mnr", "proximal": 1, "noise": 0.1}),
    "smooth and ranked": ("paraphrase", PAIR, SMART_AND_RANKED),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("micro")


def task_of(case: tuple[str, Any, Any]) -> dict[str, Any]:
    kind, head, loss = case
    metric = "pearson" if kind == "similarity" else "accuracy"
    return generated(kind, dev_size=4, head=head, loss=loss, metric=metric)


def exact(folder: Path, tasks: dict[str, Any], combiner: Any = "sum", dropout: Any = NO_DROPOUT) -> Bench:
    """A run in float64."""
    bench = Bench(folder, tasks, combiner, encoder={**ENCODER, **dropout})
    bench.run.model.double()
    return bench


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor], within: float) -> None:
    torch.testing.assert_close(ours, theirs, rtol=within, atol=within, equal_nan=True)


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
            again = bench.step(micro).evaluate("t")
            ours = {"loss": found, "evaluated": again, **gradients, **bench.run.model.losses.state_dict()}
            theirs = {"loss": loss, "evaluated": evaluated, **expected, **whole.run.model.losses.state_dict()}
            assert_same(ours, theirs, 1e-9)
        with torch.no_grad():
            for parameter in [p for bench in (whole, *dict(parted).values()) for p in bench.run.model.parameters()]:
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

    def perturbation(self, prediction: Prediction) -> LossProgram:
        assert prediction.replay is not None
        return 0.3 * torch.sin(9 * prediction.replay.embedded.detach())
        yield


def test_smart_smooths_every_example_by_itself(folder: Path) -> None:
    found = []
    for weight, micro in ((2.0, None), (2.0, 2), (0.0, None)):
        bench = exact(folder, {"t": task_of(CASES["value, cosine"])})
        loss = Steady(loss=bench.run.model.loss("t"), weight=weight).train()
        bench.run.model.losses["t"] = loss
        assert loss.separable
        found.append(bench.gradients(bench.step(micro), "t"))
    (smooth, whole), (_, parted), (plain, _) = found
    assert_same(parted, whole, 1e-9)
    assert smooth > plain


@pytest.mark.parametrize("combiner", load_catalogue().names("combiner"))
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


class Kept:
    """A tensor that autograd keeps for the way back; ``now`` and ``most`` are the bytes of all such."""

    now = most = 0

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        # Weights are there anyway.
        self.bytes = 0 if isinstance(tensor, torch.nn.Parameter) else tensor.numel() * tensor.element_size()
        Kept.now += self.bytes
        Kept.most = max(Kept.most, Kept.now)

    def __del__(self) -> None:
        Kept.now -= self.bytes


@pytest.mark.parametrize("label", ["classes, one text", "value, cosine", "ranking", "contrast, triples", "proximal"])
def test_only_a_part_is_in_memory(folder: Path, label: str) -> None:
    most = {}
    for micro in (None, 1):
        bench, Kept.most = exact(folder, {"t": task_of(CASES[label])}), Kept.now
        with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
            bench.gradients(bench.step(micro), "t")
        most[micro] = Kept.most
    assert most[1] < 0.35 * most[None]


class Twice(Loss):
    """A loss with the gradient of a gradient in it."""

    name = "twice"
    expects = "score"

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
