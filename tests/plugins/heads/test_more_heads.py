"""The papers' heads: scores worked out layer by layer, symmetry, and a layer that is really one for all tasks."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from taskloom.core import (
    COLUMNS,
    SEQUENCES,
    Dropout,
    Head,
    Labels,
    RequestError,
    SharedModules,
    Task,
    TrainingError,
    arrange,
    bind_generator,
    predict,
)
from taskloom.plugins.datasets import Generated
from taskloom.plugins.encoders import MinBert
from taskloom.plugins.heads import BothOrders, Cosine, CosineFeatures, CosineSigmoid, Embedding, Linear, SharedLayer
from taskloom.plugins.losses import MSE, BinaryCrossEntropy, CrossEntropy
from taskloom.plugins.metrics import Accuracy, Pearson
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.driver.drive import run_plan
from taskloom.runs.grid.grid import load_grid
from taskloom.runs.grid.plan import make_plan
from taskloom.runs.training.checkpoint import load_folder, load_module_state, module_state, save_folder
from taskloom.runs.training.model import Model

CLASSES, BINARY, VALUES = Labels.of_classes(5), Labels.of_classes(2), Labels.of_range(0, 5)
TINY: dict[str, Any] = {"layers": 1, "width": 16, "heads": 2, "vocabulary": 256}

seeds = st.integers(0, 10**6)


def built(head: Head, *, outputs: int = 1, labels: Labels = VALUES, seed: int = 0, width: int = 6) -> Any:
    generator = torch.Generator().manual_seed(seed)
    head.build(width=width, outputs=outputs, labels=labels, generator=generator, shared=SharedModules())
    return head.eval()


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def naive_cosine(u: Any, v: Any) -> float:
    return float(np.dot(u, v) / max(np.linalg.norm(u) * np.linalg.norm(v), 1e-8))


def numbers(layer: Any) -> tuple[Any, Any]:
    return layer.weight.detach().double().numpy(), layer.bias.detach().double().numpy()


# --- cosine_sigmoid


@pytest.mark.parametrize("options", [{}, {"steepness": 3.0, "scale": 2.0}])
def test_cosine_sigmoid_is_its_formula(options: dict[str, Any]) -> None:
    head, x = built(CosineSigmoid(**options)), draw(2, 4, 6)
    w, b = numbers(head.front[1])
    for row, found in enumerate(head(x).score.tolist()):
        u, v = (w @ side[row].double().numpy() + b for side in x)
        cosine = naive_cosine(u, v)
        expected = options.get("scale", 5.0) / (1 + np.exp(-options.get("steepness", 20.0) * cosine))
        assert found == pytest.approx(expected, abs=1e-5)


def test_cosine_sigmoid_projects_both_texts_alike_and_shows_it_to_losses() -> None:
    head, x = built(CosineSigmoid()), draw(2, 4, 6)
    prediction = head(x)
    torch.testing.assert_close(prediction.vectors, torch.stack([head.front(x[0]), head.front(x[1])]))
    torch.testing.assert_close(head(x.flip(0)).score, prediction.score)
    same = head(torch.stack([x[0], x[0]])).score
    torch.testing.assert_close(same, torch.full((4,), 5 / (1 + np.exp(-20.0))))


def test_cosine_sigmoid_drops_nothing_unless_told() -> None:
    x = draw(2, 4, 6)
    assert built(CosineSigmoid()).train()(x).score.equal(built(CosineSigmoid())(x).score)
    dropping = built(CosineSigmoid(dropout=0.5)).train()
    bind_generator(dropping, torch.Generator().manual_seed(0))
    assert not dropping(x).score.equal(built(CosineSigmoid())(x).score)


# --- cosine_features


@pytest.mark.parametrize("outputs", [1, 3])
def test_cosine_features_is_linear_in_both_vectors_and_their_cosine(outputs: int) -> None:
    head, x = built(CosineFeatures(), outputs=outputs, labels=Labels.of_classes(3)), draw(2, 4, 6)
    w, b = numbers(head.last)
    assert w.shape == (outputs, 2 * 6 + 1)
    prediction = head(x)
    for row, found in enumerate(prediction.score.reshape(4, outputs).tolist()):
        u, v = x[0, row].double().numpy(), x[1, row].double().numpy()
        features = np.concatenate([u, v, [naive_cosine(u, v)]])
        assert found == pytest.approx((w @ features + b).tolist(), abs=1e-6)
    assert prediction.vectors is x
    assert prediction.score.shape == ((4,) if outputs == 1 else (4, 3))


def test_cosine_features_drops_after_the_cosine_is_taken() -> None:
    head, x = built(CosineFeatures(dropout=0.5)).train(), draw(2, 4, 6)
    bind_generator(head, torch.Generator().manual_seed(3))
    score = head(x).score
    cosine = torch.tensor([naive_cosine(u, v) for u, v in zip(x[0].numpy(), x[1].numpy(), strict=True)])
    drop = Dropout(0.5)
    bind_generator(drop, torch.Generator().manual_seed(3))
    torch.testing.assert_close(score, head.last(drop(torch.cat([x[0], x[1], cosine[:, None]], 1)))[:, 0])


# --- both_orders

PH, DPH, DPHA = {}, {"difference": True}, {"difference": True, "activation": "tanh"}  # type: ignore[var-annotated]
VARIANTS = pytest.mark.parametrize("options", [PH, DPH, DPHA], ids=["PH", "DPH", "DPHA"])


@VARIANTS
def test_both_orders_is_a_logit_per_view_and_a_layer_over_them(options: dict[str, Any]) -> None:
    head, x = built(BothOrders(**options)), draw(2, 4, 6)
    weights = [numbers(view) for view in head.views]
    last, bias = numbers(head.last)
    assert len(weights) == last.shape[1] == (3 if options else 2)
    prediction = head(x)
    for row, found in enumerate(prediction.score.tolist()):
        p, q = x[0, row].double().numpy(), x[1, row].double().numpy()
        logits = [float((w @ view + b)[0]) for (w, b), view in zip(weights, (p, q, p - q), strict=False)]
        if "activation" in options:
            logits = [float(np.tanh(logit)) for logit in logits]
        assert found == pytest.approx(float(last[0] @ logits + bias[0]), abs=1e-6)
    assert prediction.vectors is x


def with_equal_orders(head: Any) -> Any:
    """The head with one layer's weights in both orders, and equal weights on their logits."""
    with torch.no_grad():
        head.views[1].load_state_dict(head.views[0].state_dict())
        head.last.weight[0, 1] = head.last.weight[0, 0]
    return head


@settings(max_examples=25)
@given(seed=seeds, activation=st.sampled_from(["none", "tanh", "relu", "gelu"]))
def test_without_difference_and_with_equal_layers_the_order_does_not_matter(seed: int, activation: Any) -> None:
    head, x = with_equal_orders(built(BothOrders(activation=activation), seed=seed)), draw(2, 4, 6, seed=seed)
    torch.testing.assert_close(head(x.flip(0)).score, head(x).score)


@settings(max_examples=25)
@given(seed=seeds, options=st.sampled_from([DPH, DPHA]))
def test_with_equal_layers_only_the_difference_tells_the_orders_apart(seed: int, options: dict[str, Any]) -> None:
    head, x = with_equal_orders(built(BothOrders(**options), seed=seed)), draw(2, 4, 6, seed=seed)
    # The difference changes sign with the order, and so does its logit (whose bias begins at 0), even through tanh.
    logit = head.act(head.views[2](x[0] - x[1]))[:, 0]
    torch.testing.assert_close(head(x).score - head(x.flip(0)).score, 2 * head.last.weight[0, 2] * logit)
    same = torch.stack([x[0], x[0]])
    torch.testing.assert_close(head(same).score, head(same.flip(0)).score)


@settings(max_examples=25)
@given(seed=seeds, options=st.sampled_from([PH, DPH, DPHA]))
def test_exchanging_texts_and_their_layers_changes_nothing(seed: int, options: dict[str, Any]) -> None:
    head, x = built(BothOrders(**options), seed=seed), draw(2, 4, 6, seed=seed)
    other = copy.deepcopy(head)
    with torch.no_grad():
        other.views[0].load_state_dict(head.views[1].state_dict())
        other.views[1].load_state_dict(head.views[0].state_dict())
        other.last.weight[0, :2] = head.last.weight[0, :2].flip(0)
        if head.difference:
            other.views[2].weight.neg_()
    torch.testing.assert_close(other(x.flip(0)).score, head(x).score)
    assert not torch.allclose(head(x.flip(0)).score, head(x).score)  # of itself it is not symmetric


def test_swapped_texts_reach_the_head_as_swapped_orders() -> None:
    encoder = MinBert(**TINY)
    encoder.build(generator=torch.Generator().manual_seed(0))
    encoder.eval()
    a, b = encoder.tokenize(["one dog runs", "red"]), encoder.tokenize(["a cat", "the green car"])
    head = with_equal_orders(built(BothOrders(), width=16))
    scores, seen = [], []
    for columns in ([a, b], [b, a]):
        prediction = predict(encoder, head, arrange(columns, head.reads, encoder.special_tokens, encoder.max_length))
        scores.append(prediction.score)
        seen.append(prediction.vectors)
    torch.testing.assert_close(seen[0], seen[1].flip(0))
    assert not torch.allclose(seen[0][0], seen[0][1])
    torch.testing.assert_close(scores[0], scores[1])


def test_both_orders_takes_the_difference_of_what_dropout_left() -> None:
    head, x = built(BothOrders(difference=True, dropout=0.5)).train(), draw(2, 4, 6)
    bind_generator(head, torch.Generator().manual_seed(1))
    score = head(x).score
    drop = Dropout(0.5)
    bind_generator(drop, torch.Generator().manual_seed(1))
    p, q = drop(x)
    logits = [view(y) for view, y in zip(head.views, (p, q, p - q), strict=True)]
    torch.testing.assert_close(score, head.last(torch.cat(logits, 1))[:, 0])


def test_the_gradient_to_the_encoder_is_not_all_but_cut_by_the_last_layer() -> None:
    """Over many draws, the weights over the logits are as large as those of torch's own linear layers."""
    drawn = torch.cat([built(BothOrders(difference=True), seed=seed).last.weight.flatten() for seed in range(200)])
    assert drawn.std().item() == pytest.approx(1 / 3, rel=0.1)  # U(±1/√3) has a deviation of 1/3


# --- what the heads of one number decide


@pytest.mark.parametrize(
    ("head", "bound"),
    [
        (CosineSigmoid(), 2.5),
        (CosineSigmoid(scale=1.0), 0.5),
        (CosineFeatures(), 0.0),
        (BothOrders(), 0.0),
        (Embedding(), 0.5),
    ],
)
def test_one_number_is_decided_in_the_units_of_the_labels(head: Head, bound: float) -> None:
    score = torch.tensor([bound - 0.1, bound + 0.1])
    assert built(head, labels=BINARY).decide(score).tolist() == [0, 1]
    assert built(head, labels=VALUES).decide(score).equal(score)
    assert built(head, labels=CLASSES).decide(torch.tensor([-3.0, 1.2, 2.9, 9.0])).tolist() == [0, 1, 3, 4]


def test_cosine_features_decides_for_the_largest_logit() -> None:
    logits = torch.tensor([[0.1, 0.9, 0.0], [2.0, 1.0, 3.0]])
    assert built(CosineFeatures(), outputs=3, labels=Labels.of_classes(3)).decide(logits).tolist() == [1, 2]


# --- embedding


@pytest.mark.parametrize("reads", ["single", "pair", "triple"])
def test_embedding_passes_vectors_on_and_has_no_weights(reads: Any) -> None:
    head, x = built(Embedding(reads=reads)).train(), draw(SEQUENCES[reads], 4, 6)
    prediction = head(x)
    assert prediction.vectors is x
    assert not list(head.parameters())
    pairs = [0.0] * 4 if reads == "single" else [naive_cosine(u, v) for u, v in zip(*x[:2].numpy(), strict=True)]
    assert prediction.score.tolist() == pytest.approx(pairs)


def test_embedding_is_refused_by_a_loss_that_needs_a_score() -> None:
    task = Task("sts", Generated(task="similarity"), Embedding(), MSE(), Pearson())
    (problem,) = task.problems()
    assert "head 'embedding' gives only vectors" in problem.message


# --- shared_layer


def tasks(**dropout: float) -> dict[str, Task]:
    """Three tasks whose heads read in three ways, each behind the shared layer."""
    parts: dict[str, tuple[Any, Head, Any, Any]] = {
        "sst": ("sentiment", Linear(), CrossEntropy(), Accuracy()),
        "para": ("paraphrase", BothOrders(**DPHA), BinaryCrossEntropy(), Accuracy()),
        "sts": ("similarity", Cosine(), MSE(), Pearson()),
    }
    return {
        name: Task(name, Generated(task=data), SharedLayer(head=head, dropout=dropout.get(name, 0.0)), loss, metric)
        for name, (data, head, loss, metric) in parts.items()
    }


def model(seed: int = 0, names: tuple[str, ...] = ("sst", "para", "sts")) -> Model:
    made = tasks()
    return Model(MinBert(**TINY), {name: made[name] for name in names}, seed=seed)


def test_shared_layer_is_tanh_of_one_linear_layer_in_front_of_the_head() -> None:
    head, x = built(SharedLayer(head=Cosine())), draw(2, 4, 6)
    w, b = numbers(head.layer.linear)
    passed = torch.from_numpy(np.tanh(x.double().numpy() @ w.T + b)).float()
    torch.testing.assert_close(head(x).vectors, passed)
    torch.testing.assert_close(head(x).score, built(Cosine())(passed).score)


def test_shared_layer_drops_from_its_input() -> None:
    head, x = built(SharedLayer(head=Embedding(), dropout=0.5)).train(), draw(2, 4, 6)
    bind_generator(head, torch.Generator().manual_seed(2))
    drop = Dropout(0.5)
    bind_generator(drop, torch.Generator().manual_seed(2))
    seen = head(x).vectors
    torch.testing.assert_close(seen, head.layer.linear(drop(x)).tanh())
    assert not torch.allclose(seen, head.eval()(x).vectors)


@pytest.mark.parametrize(
    "inner", [Linear(reads="joint"), Cosine(), BothOrders(), CosineFeatures(), Embedding(reads="triple")]
)
def test_shared_layer_reads_gives_and_decides_what_its_head_does(inner: Head) -> None:
    head = SharedLayer(head=inner)
    assert (head.reads, head.gives) == (inner.reads, inner.gives)
    built(head, labels=BINARY)
    score = draw(9)
    assert head.decide(score).equal(inner.decide(score))
    assert COLUMNS[head.reads] == COLUMNS[inner.reads]


def test_a_task_that_does_not_fit_the_inner_head_is_found_before_training() -> None:
    task = Task("sst", Generated(task="sentiment"), SharedLayer(head=Cosine()), CrossEntropy(), Accuracy())
    messages = " ".join(problem.message for problem in task.problems())
    assert "reads 'pair', which needs 2 texts" in messages
    assert "needs one logit per class; head 'shared_layer' gives one number" in messages


def test_the_layer_is_one_for_all_tasks_and_counts_once() -> None:
    whole = model()
    layers = {name: whole.head(name).layer for name in whole.heads}  # type: ignore[attr-defined]
    assert len({id(layer) for layer in layers.values()}) == 1
    own = [layers["sst"].linear.weight, layers["sst"].linear.bias]
    for parameter in own:
        assert sum(parameter is other for other in whole.shared_parameters()) == 1
        assert sum(parameter is other for _, other in whole.trained_parameters(("sst", "sts"))) == 1
    names = [name for name, _ in whole.trained_parameters(("sst",))]
    assert [name for name in names if "shared_layer" in name] == [
        "shared.shared_layer.linear.weight",
        "shared.shared_layer.linear.bias",
    ]
    assert not any("layer.linear" in name for name in names if name.startswith("heads."))
    in_shared = {id(p) for p in whole.shared_parameters()}
    assert not any(id(p) in in_shared for task in whole.heads for p in whole.head(task).head.parameters())  # type: ignore[union-attr]


def test_the_layer_learns_from_every_task() -> None:
    whole = model().eval()
    x = {name: draw(SEQUENCES[whole.head(name).reads], 4, 16, seed=k) for k, name in enumerate(whole.heads)}
    weight = whole.shared_parameters()[-2]
    each = []
    for name, vectors in x.items():
        (gradient,) = torch.autograd.grad(whole.head(name)(vectors).score.square().sum(), weight)
        assert gradient.any()
        each.append(gradient)
    sum(whole.head(name)(vectors).score.square().sum() for name, vectors in x.items()).backward()  # type: ignore[union-attr]
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, torch.stack(each).sum(0))


def test_a_head_begins_the_same_whoever_is_first() -> None:
    whole, other = model(names=("sst", "sts", "para")), model(names=("para", "sst"))
    for name in ("sst", "para"):
        inner, again = whole.head(name).head, other.head(name).head  # type: ignore[attr-defined]
        assert all(a.equal(b) for a, b in zip(inner.parameters(), again.parameters(), strict=True))


def test_a_model_with_a_shared_layer_survives_saving_with_one_copy(tmp_path: Path) -> None:
    first, second = model(seed=1).eval(), model(seed=2).eval()
    tensors = module_state(first, "model.")
    assert [name for name in tensors if name.endswith("linear.weight") and "layer." in name] == [
        "model.shared.shared_layer.linear.weight"
    ]
    save_folder(tmp_path / "kept", tensors, {})
    loaded, _ = load_folder(tmp_path / "kept")
    load_module_state(second, loaded, "model.")
    for name in first.heads:
        x = draw(SEQUENCES[first.head(name).reads], 4, 16)
        assert second.head(name)(x).score.equal(first.head(name)(x).score)
    assert len({id(second.head(name).layer) for name in second.heads}) == 1  # type: ignore[attr-defined]


def test_two_tasks_cannot_share_a_layer_on_different_terms() -> None:
    with pytest.raises(TrainingError, match=r"one dropout in all tasks, .* share the layer\. Found 0 and 0\.5\."):
        Model(MinBert(**TINY), tasks(sts=0.5), seed=0)


def test_a_shared_layer_inside_a_shared_layer_is_refused_with_the_request() -> None:
    inner = {"name": "shared_layer", "head": "linear"}
    with pytest.raises(RequestError, match="should not be inside another"):
        load_catalogue().make("head", {"name": "shared_layer", "head": inner})


def test_a_grid_trains_the_papers_heads_behind_a_shared_layer(tmp_path: Path) -> None:
    """DPHA and CL from a grid on generated text with surgery; the run and its weights hold the layer once."""
    dpha = {"name": "both_orders", **DPHA}

    def task(data: str, head: Any, loss: str, metric: str) -> dict[str, Any]:
        return {
            "data": {"name": "generated", "task": data, "size": 24, "dev_size": 16},
            "head": {"name": "shared_layer", "head": head, "dropout": 0.1},
            "loss": loss,
            "metric": metric,
        }

    base = {
        "encoder": {"name": "minbert", **TINY},
        "tasks": {
            "sst": task("sentiment", "linear", "cross_entropy", "accuracy"),
            "para": task("paraphrase", dpha, "binary_cross_entropy", "accuracy"),
            "sts": task("similarity", dpha, "mse", "pearson"),
        },
        "stages": [{"epochs": 2, "combiner": "pcgrad"}],
    }
    (tmp_path / "grid.json").write_text(json.dumps({"base": base}))
    catalogue = load_catalogue()
    with Ledger.open(tmp_path / "r", create=True) as ledger:
        plan = make_plan(load_grid(str(tmp_path / "grid.json")), catalogue, ledger)
        outcome = run_plan(plan, catalogue, ledger, listen=lambda event: None)
    assert (outcome.finished, outcome.failed) == (1, 0)
    tensors, _ = load_folder(tmp_path / "r" / "cells" / plan.cells[0].id / "best")
    assert [name for name in tensors if "layer.linear.weight" in name] == ["shared.shared_layer.linear.weight"]
