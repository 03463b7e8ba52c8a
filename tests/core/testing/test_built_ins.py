"""Every built-in component keeps every law of its kind."""

import json
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from taskloom.core import Component
from taskloom.core.testing import KINDS_WITH_LAWS, check
from taskloom.plugins.datasets import CS224N
from taskloom.plugins.heads import BothOrders, Cosine, Embedding, Linear
from taskloom.plugins.losses import MNR, MSE, CrossEntropy, DynamicMargin
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.runs.scaffold import package_files

TINY = {"layers": 2, "width": 8, "heads": 2, "vocabulary": 50}
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
    ("head", "linear"): [{}, {"layers": 2}, {"dropout": 0.0}, {"layers": 1, "activation": "tanh"}],
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
    ("loss", "mnr_hinge"): [{}, {"similarity": "cos"}, {"negatives": "anchor"}],
    ("loss", "total"): [
        {"losses": [MSE(), MNR(scale=2.0)], "weights": [1.0, 0.5]},
        {"losses": [CrossEntropy(), DynamicMargin(per_sample=True)]},
    ],
    ("loss", "smart"): [
        {"loss": CrossEntropy()},
        {"loss": CrossEntropy(), "kl_target": "attached"},
        {"loss": MSE(), "bound": "project", "steps": 2, "proximal": 1.0},
    ],
    ("sampler", "round_robin"): [{}, {"batch_size": 3, "iterations": "3x", "buckets": True}],
    ("sampler", "alternating"): [{}, {"batch_size": 3, "iterations": 5, "buckets": True}],
    ("engine", "local"): [{"workers": 2, "threads": 1}],
}
#: Read files that are made on the spot, by :func:`written`.
NEED_FILES = {("data", "sick"), ("data", "snli"), ("data", "table")}
#: Held to the laws elsewhere: cs224n below on the real files, ray where a cluster is started for several tests,
#: huggingface where models are made for it, trackers beside tests of what others read of what they write.
ELSEWHERE = {("data", "cs224n"), ("engine", "ray"), ("encoder", "huggingface")}
ELSEWHERE |= {("tracker", name) for name in ("mlflow", "trackio", "wandb")}


def built_ins() -> Iterator[type[Component]]:
    """Everything in the catalogue that comes with taskloom."""
    yield from (entry.cls for entry in load_catalogue().entries if entry.plugin.builtin)


def cases() -> Iterator[Any]:
    for component in built_ins():
        key = component.kind, component.name
        if key in ELSEWHERE:
            continue
        for options in OPTIONS.get(key, [{}]):
            yield pytest.param(component, options, id=f"{component.kind}-{component.name}-{options}")


def written(name: str, folder: Path) -> list[dict[str, Any]]:
    """Small files for a data set, and the options that name them."""
    labels = ("entailment", "neutral", "contradiction")
    for split, part in (("train", "TRAIN"), ("dev", "TRIAL"), ("test", "TEST")):
        rows = [(label, f"{split} text {row}", f"{label} {split} {row}") for row in range(4) for label in labels]
        lines = [{"gold_label": a, "sentence1": b, "sentence2": c, "pairID": f"{b}{c}"} for a, b, c in rows]
        (folder / f"snli_1.0_{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        pairs = "".join(f"{split}{row},left {split} {row},right {row},{row % 6}\n" for row in range(20))
        (folder / f"{split}.csv").write_text("id,a,b,score\n" + pairs)
        with (folder / "SICK.txt").open("a") as file:
            if split == "train":
                file.write("pair_ID\tsentence_A\tsentence_B\tentailment_label\trelatedness_score\tentailment_AB\t")
                file.write("entailment_BA\tSemEval_set\n")
            for row, (label, first, second) in enumerate(rows):
                words = f"{label.upper()}\t2.5\tA_{label}_B\tB_neutral_A\t{part}"
                file.write(f"{split}{row}\t{first}\t{second}\t{words}\n")
    table = {"train": str(folder / "train.csv"), "text": ["a", "b"], "label": "score", "id": "id"}
    return {
        "snli": [{"task": task, "dir": str(folder)} for task in ("entailment", "triples")],
        "sick": [{"task": task, "dir": str(folder)} for task in ("entailment", "relatedness")],
        "table": [
            {**table, "dev_share": 0.2, "range": (0, 5)},
            {**table, "dev": str(folder / "dev.csv"), "classes": 6},
        ],
    }.get(name, [])


@pytest.mark.parametrize(("component", "options"), cases())
def test_built_in_keeps_every_law(component: type[Component], options: dict[str, Any], tmp_path: Path) -> None:
    needs_files = (component.kind, component.name) in NEED_FILES
    for each in written(component.name, tmp_path) if needs_files else [options]:
        check(component, **each)


@pytest.mark.parametrize("task", ["sst", "cfimdb", "sts", "para"])
def test_the_courses_data_keep_the_laws(task: str, course_data: Path) -> None:
    check(CS224N, task=task, dir=str(course_data), limit=300, strict=False)


def test_every_kind_has_a_built_in_that_is_tested() -> None:
    assert {component.kind for component in built_ins()} == set(KINDS_WITH_LAWS) - {"grid", "plugin"}
    known = {(component.kind, component.name) for component in built_ins()}
    assert set(OPTIONS) | NEED_FILES | ELSEWHERE <= known


@pytest.mark.parametrize("kind", ["encoder", "engine", "sampler"])
def test_what_new_plugin_writes_keeps_every_law(kind: str, install: Callable[..., None]) -> None:
    install(f"new_{kind}", package_files(f"new_{kind}", kind)[f"taskloom_new_{kind}/__init__.py"])
    check(import_module(f"taskloom_new_{kind}"))
