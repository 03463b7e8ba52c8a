"""The layer that all tasks share: really one, in the model, in its gradients and in its files."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from taskloom.core import Dropout, Head, Labels, RequestError, SharedModules, TrainingError, bind_generator
from taskloom.core.tokens import SEQUENCES
from taskloom.plugins.datasets import Generated
from taskloom.plugins.encoders import MinBert
from taskloom.plugins.heads import BothOrders, Cosine, CosineFeatures, Embedding, Linear, SharedLayer
from taskloom.plugins.losses import MSE, BinaryCrossEntropy, CrossEntropy
from taskloom.plugins.metrics import Accuracy, Pearson
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.installed.task import Task
from taskloom.registry.results.tensors import load_folder, save_folder
from taskloom.runs.training.checkpoint import load_module_state, module_state
from taskloom.runs.training.model import Model

TINY: dict[str, Any] = {"layers": 1, "width": 16, "heads": 2, "vocabulary": 256}
DPHA: dict[str, Any] = {"difference": True, "activation": "tanh"}


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


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
    head, alone, x = SharedLayer(head=Cosine()), Cosine(), draw(2, 4, 6)
    for one in (head, alone):
        generator = torch.Generator().manual_seed(0)
        one.build(width=6, outputs=1, labels=Labels.of_range(0, 5), generator=generator, shared=SharedModules())
        one.eval()
    w, b = (p.detach().double().numpy() for p in (head.layer.linear.weight, head.layer.linear.bias))
    passed = torch.from_numpy(np.tanh(x.double().numpy() @ w.T + b)).float()
    torch.testing.assert_close(head(x).vectors, passed)
    torch.testing.assert_close(head(x).score, alone(passed).score)


@pytest.mark.parametrize("options", [{}, {"difference": True}, DPHA], ids=["PH", "DPH", "DPHA"])
def test_the_difference_is_that_of_the_embeddings_in_front_of_the_layer(options: dict[str, Any]) -> None:
    """The third view is tanh(W (p − q) + b), not tanh(W p + b) − tanh(W q + b); p and q are dropped first."""
    head, x, drop = SharedLayer(head=BothOrders(dropout=0.0, **options), dropout=0.5), draw(2, 4, 6), Dropout(0.5)
    generator = torch.Generator().manual_seed(0)
    head.build(width=6, outputs=1, labels=Labels.of_range(0, 5), generator=generator, shared=SharedModules())
    for module in (head.train(), drop):
        bind_generator(module, torch.Generator().manual_seed(3))
    prediction, inner = head(x), cast(Any, head.head)
    p, q = drop(x)
    seen = [head.layer.linear(one).tanh() for one in (p, q, p - q)[: len(inner.views)]]
    logits = torch.cat([view(one) for view, one in zip(inner.views, seen, strict=True)], 1)
    torch.testing.assert_close(prediction.score, inner.last(inner.act(logits))[:, 0])
    torch.testing.assert_close(prediction.vectors, torch.stack(seen[:2]))


@pytest.mark.parametrize(
    "inner", [Linear(reads="joint"), Cosine(), BothOrders(), CosineFeatures(), Embedding(reads="triple")]
)
def test_shared_layer_reads_and_gives_what_its_head_does(inner: Head) -> None:
    head = SharedLayer(head=inner)
    assert (head.reads, head.gives) == (inner.reads, inner.gives)


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
        load_catalogue().make(Head, {"name": "shared_layer", "head": inner})
