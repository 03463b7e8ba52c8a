"""Every built-in component keeps the laws of its kind, and the kit catches components that break one."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pluggy
import pytest
import torch
from torch import Tensor, nn

import taskloom.plugins
from taskloom.core import Component, Prediction, hookspecs
from taskloom.core.testing import KINDS, Law, check, laws, untouched_randomness
from taskloom.plugins.combiners import Sum
from taskloom.plugins.datasets import CS224N, Table
from taskloom.plugins.heads import BothOrders, Cosine, Embedding, Linear
from taskloom.plugins.losses import MNR, MSE, CrossEntropy, DynamicMargin

TINY = {"layers": 2, "width": 16, "heads": 2, "vocabulary": 200}
SMALL = {"size": 30, "dev_size": 10, "test_size": 10}
#: Options under which a component is tested, where its defaults do not suffice or leave a branch out.
OPTIONS: dict[tuple[str, str], list[dict[str, Any]]] = {
    ("encoder", "minbert"): [
        *({**TINY, "pooling": pooling} for pooling in ("pooler", "cls", "mean", "max")),
        {**TINY, "trainable": False},
    ],
    ("data", "generated"): [
        {**SMALL, "task": task} for task in ("sentiment", "paraphrase", "similarity", "entailment")
    ],
    ("head", "linear"): [{}, {"layers": 2}, {"dropout": 0.0}],
    ("head", "cosine"): [{}, {"layers": 1}, {"relu": True, "scale": 1.0}],
    ("head", "cosine_sigmoid"): [{}, {"dropout": 0.3, "steepness": 2.0, "scale": 1.0}],
    ("head", "both_orders"): [
        {},
        {"difference": True},
        {"difference": True, "activation": "tanh"},
        {"activation": "gelu", "dropout": 0.0},
    ],
    ("head", "shared_layer"): [
        {"head": Linear(layers=1)},
        {"head": Cosine(), "dropout": 0.2},
        {"head": BothOrders(difference=True)},
        {"head": Embedding(reads="triple")},
    ],
    ("loss", "cross_entropy"): [{}, {"label_smoothing": 0.1}],
    ("loss", "mse"): [{}, {"target": "scaled"}],
    ("loss", "binary_cross_entropy"): [{}, {"target": "scaled"}],
    ("loss", "cosine_embedding"): [{}, {"margin": 0.3, "positive_from": 0.5}],
    ("loss", "dynamic_margin"): [
        {},
        {"margin": 0.3, "step": 0.2, "direction": "up", "positive_from": 0.5},
        {"per_sample": True},
    ],
    ("loss", "mnr"): [
        {"scale": 2.0},
        {"similarity": "dot", "scale": 1.0, "symmetric": True, "positive_from": 0.5},
    ],
    ("loss", "mnr_hinge"): [{}, {"similarity": "cos"}],
    ("loss", "total"): [
        {"losses": [MSE(), MNR(scale=2.0)], "weights": [1.0, 0.5]},
        {"losses": [CrossEntropy(), DynamicMargin(per_sample=True)]},
    ],
    # As "normalise" (tests/test_smart.py) it hangs on noise that is drawn row by row.
    ("loss", "smart"): [{"loss": CrossEntropy(), "bound": "project"}, {"loss": MSE(), "bound": "project", "steps": 2}],
    ("sampler", "round_robin"): [{}, {"batch_size": 3, "iterations": "3x", "buckets": True}],
    ("sampler", "alternating"): [{}, {"batch_size": 3, "iterations": 5, "buckets": True}],
    ("combiner", "pcgrad"): [{}, {"reduction": "sum"}],
}
#: Read files that they are pointed to: two tests of their own below, the others in tests/test_nli.py.
NEED_FILES = {("data", "cs224n"), ("data", "sick"), ("data", "snli"), ("data", "table")}


def built_ins() -> Iterator[type[Component]]:
    """Every class that a module of taskloom.plugins names in a hook."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    for module in pkgutil.iter_modules(taskloom.plugins.__path__, "taskloom.plugins."):
        if module.ispkg:
            manager.register(importlib.import_module(module.name))
    manager.check_pending()
    for hook in ("encoders", "heads", "losses", "samplers", "combiners", "datasets", "metrics"):
        for found in getattr(manager.hook, f"taskloom_{hook}")():
            yield from found


def cases() -> Iterator[Any]:
    for component in built_ins():
        key = component.kind, component.name
        if key in NEED_FILES:
            continue
        for options in OPTIONS.get(key, [{}]):
            for law in laws(component.kind):
                yield pytest.param(component, options, law, id=f"{component.name}-{options}-{law}")


@pytest.mark.parametrize(("component", "options", "law"), cases())
def test_built_in_keeps_the_law(component: type[Component], options: dict[str, Any], law: Law) -> None:
    law(component, **options)


@pytest.mark.parametrize("task", ["sst", "cfimdb", "sts", "para"])
def test_the_courses_data_keep_the_laws(task: str, course_data: Path) -> None:
    check(CS224N, task=task, dir=str(course_data), limit=500)


def test_a_table_keeps_the_laws(tmp_path: Path) -> None:
    rows = "".join(f"pair {row},left {row},right {row},{row % 6}\n" for row in range(40))
    path = tmp_path / "pairs.csv"
    path.write_text("id,a,b,score\n" + rows)
    options = {"train": str(path), "dev_share": 0.2, "text": ["a", "b"], "label": "score", "id": "id"}
    check(Table, **options, range=(0, 5))
    check(Table, **options, classes=6)


def test_every_kind_has_a_built_in_that_is_tested() -> None:
    assert {component.kind for component in built_ins()} == set(KINDS)
    known = {(component.kind, component.name) for component in built_ins()}
    assert set(OPTIONS) | NEED_FILES <= known


def test_a_sound_component_passes_whole() -> None:
    check(Sum)
    check(MSE, target="scaled")


def test_the_error_names_law_component_options_and_input() -> None:
    class Shifted(Linear):
        """Moves with the size of the batch."""

        name = "shifted"

        def forward(self, vectors: Tensor) -> Prediction:
            return Prediction(super().forward(vectors).score + vectors.shape[1], vectors)

    with pytest.raises(AssertionError) as caught:
        check(Shifted, layers=1)
    message = str(caught.value)
    assert message.startswith("head 'shifted' (layers=1) breaks the law 'each example is scored by itself': with ")
    assert "{'reads': 'single'}, 3 outputs, labels of 3 classes: an example alone gets another score" in message


def test_all_broken_laws_are_in_one_error() -> None:
    class Hopeless(Linear):
        name = "Hopeless!"

        def forward(self, vectors: Tensor) -> Prediction:
            return Prediction(super().forward(vectors).score.sum(), vectors)

        def decide(self, score: Tensor) -> Tensor:
            return score

    with pytest.raises(AssertionError) as caught:
        check(Hopeless)
    lines = [line for line in str(caught.value).splitlines() if "breaks the law" in line]
    assert len(lines) >= 4


def test_a_component_that_raises_breaks_the_law_it_was_held_to() -> None:
    class Raises(MSE):
        """Raises on one example."""

        name = "raises"

        def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
            if len(target) == 1:
                raise RuntimeError("batch too small")
            return super().forward(prediction, target)

    with pytest.raises(AssertionError, match=r"'it is one finite number': with .* 1 examples: RuntimeError: batch too"):
        check(Raises)


def test_a_loss_may_refuse_labels_with_a_message_but_not_all() -> None:
    check(next(c for c in built_ins() if c.name == "binary_cross_entropy"))


@pytest.mark.parametrize("draw", [lambda: torch.rand(1), lambda: np.random.rand(), lambda: nn.Linear(2, 2)])
def test_global_draws_are_noticed(draw: Callable[[], Any]) -> None:
    with (
        pytest.raises(AssertionError, match=r"global random state of (torch|numpy) was touched"),
        untouched_randomness(),
    ):
        draw()


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(ValueError, match="no kind 'losss'; did you mean 'loss'"):
        laws("losss")


def test_laws_are_documented_by_their_names() -> None:
    for kind in KINDS:
        names = [law.name for law in laws(kind)]
        assert len(set(names)) == len(names) >= 6
        assert all(inspect.isfunction(law.holds) and law.kind == kind for law in laws(kind))
