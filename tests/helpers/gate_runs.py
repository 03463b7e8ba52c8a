"""Tiny training runs, with every built-in component and of the trainer itself, and the numbers that describe them."""

import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from small_runs import generated, job_of
from torch import Tensor

from taskloom.core import DataError, DataSet, Event, Metric
from taskloom.core.component import Component
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.installed.resolution import homes_of
from taskloom.registry.results.tensors import load_folder
from taskloom.runs.grid.trainer import TRAINER
from taskloom.runs.training import checkpoint as saved
from taskloom.runs.training.cell import Run
from taskloom.runs.training.train import train

#: Engines and trackers change no result.
KINDS = ("encoder", "head", "loss", "sampler", "combiner", "data", "metric")
Digest = dict[str, float | str]

#: The mean of its states tells texts apart before it has learned anything: cosines of the default pooling are all 1,
#: and what a score then makes of them are rounding errors.
ENCODER = {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 512, "pooling": "mean"}
#: With this eps the size of a gradient counts, not only its sign, and rounding errors stay small.
STAGE: dict[str, Any] = {"epochs": 2, "optimizer": {"lr": 0.01, "eps": 0.001}}
PAIR = {"name": "linear", "reads": "pair"}
SST = generated("sentiment", 24, 16)
PARA = generated("paraphrase", 16, 16, head=PAIR, loss="binary_cross_entropy")
STS = generated("similarity", 16, 16, head="cosine", loss="mse", metric="pearson")
ALIKE = {**PARA, "head": "cosine"}
TRIPLES = generated("entailment", 16, 16, head={"name": "embedding", "reads": "triple"}, loss="simcse")
TASKS = {"sst": SST, "para": PARA, "sts": STS}

#: The task in which a head or loss is trained, and its required options.
HEADS: dict[str, dict[str, Any]] = {
    "both_orders": {"para": {**PARA, "head": "both_orders"}},
    "cosine": {"sts": STS},
    "cosine_features": {"sts": {**STS, "head": "cosine_features"}},
    # At its own steepness every pair of an untrained encoder is at the end of the sigmoid, where nothing is learned.
    "cosine_sigmoid": {"sts": {**STS, "head": {"name": "cosine_sigmoid", "steepness": 2.0}}},
    "embedding": {"para": {**PARA, "head": "embedding", "loss": "cosine_embedding"}},
    "linear": {"sst": SST},
    "shared_layer": {
        "sst": {**SST, "head": {"name": "shared_layer", "head": "linear"}},
        "sts": {**STS, "head": {"name": "shared_layer", "head": "cosine"}},
    },
}
LOSSES: dict[str, dict[str, Any]] = {
    "binary_cross_entropy": PARA,
    "cosine_embedding": {**ALIKE, "loss": "cosine_embedding"},
    "cross_entropy": SST,
    "dynamic_margin": {**ALIKE, "loss": "dynamic_margin"},
    "mnr": {**ALIKE, "loss": "mnr"},
    "mnr_hinge": {**ALIKE, "loss": "mnr_hinge"},
    "mse": STS,
    "simcse": TRIPLES,
    "smart": {**SST, "loss": {"name": "smart", "loss": "cross_entropy"}},
    "total": {**PARA, "loss": {"name": "total", "losses": ["binary_cross_entropy", "mnr"]}},
}
METRICS = dict.fromkeys(("accuracy", "f1", "macro_f1", "mcc"), SST) | dict.fromkeys(("mae", "pearson", "spearman"), STS)
#: What reacts to an epoch shows so in the next ones.
EPOCHS = {"dwa": 4, "dynamic_margin": 3}

#: The trainer's own settings, each in a run of its own.
TRAINER_RUNS: dict[str, dict[str, Any]] = {
    "defaults": {"stages": [{"epochs": 2}]},
    "two stages": {
        "stages": [
            {**STAGE, "tasks": ["sst", "sts"], "frozen": True},
            {**STAGE, "clip": 0.5, "schedule": {"name": "linear", "warmup": 2}},
        ]
    },
    "selection": {
        "stages": [
            {
                "epochs": 3,
                "schedule": {"name": "cosine", "warmup": 0.2},
                "optimizer": {"lr": 0.01, "eps": 0.001, "betas": [0.8, 0.9], "weight_decay": 0.1},
            }
        ],
        "selection": "sts",
        "overall": {"name": "normalised", "weights": {"sst": 2.0, "para": 0.5}},
        "score": {"train": 8, "test": True},
    },
    "micro-batches": {"stages": [{**STAGE, "micro_batch": 3}]},
}


@dataclass(frozen=True)
class Measured:
    """What the gate holds of a component or of the trainer, and what it needs to judge a change."""

    revision: int
    defaults: dict[str, Any]
    digest: Digest
    #: The components of its runs, and the trainer: a raised revision of any of them explains another digest.
    uses: frozenset[str]
    #: Where its revision is raised.
    source: str


def built_in() -> dict[str, type[Component]]:
    """Every built-in component that may influence a result, by ``"<kind> <name>"``."""
    entries = load_catalogue().entries
    return {
        f"{entry.kind} {entry.name}": entry.cls for entry in entries if entry.plugin.builtin and entry.kind in KINDS
    }


def without_run() -> list[str]:
    """A sentence for every built-in component that no tiny run trains with."""
    tables = {"head": HEADS, "loss": LOSSES, "metric": METRICS, "data": DATA}
    names = {"head": "HEADS", "loss": "LOSSES", "metric": "METRICS", "data": "DATA"}
    return [
        f"{key!r} has no tiny run: add one to {names[kind]} in tests/helpers/gate_runs.py"
        for key in built_in()
        for kind, _, name in [key.partition(" ")]
        if name not in tables.get(kind, {name})
    ]


def measure(key: str) -> Measured:
    """Train with a component, or with ``"trainer"`` the trainer's own settings, and describe the outcome."""
    with TemporaryDirectory() as name:
        folder, digest, uses = Path(name), Digest(), {key, "trainer"}
        for title, run in runs_of(key, folder).items():
            job = job_of(folder / title, {"encoder": ENCODER, "stages": [STAGE], "selection": "last", **run})
            job = replace(job, stage_keys=tuple(f"stage{index}" for index in range(1, len(job.spec["stages"]))))
            uses |= {f"{entry.kind} {entry.name}" for entry in load_catalogue().used(job.spec)}
            numbers = trained(job)
            if key.startswith("data "):
                numbers |= {title: value for task in job.spec["tasks"] for title, value in texts_of(task, job.spec)}
            digest |= {f"{title}: {name}" if title else name: value for name, value in numbers.items()}
        if key == "trainer":
            return Measured(TRAINER, trainer_defaults(), digest, frozenset(uses), "TRAINER in runs/grid/trainer.py")
        kind, component = key.split(" ")
        if kind == "metric":
            digest |= metric_values(component)
        cls = built_in()[key]
        source = cls.__module__.removeprefix("taskloom.").replace(".", "/")
        defaults, source = defaults_of(kind, component, folder), f"`revision` in {source}.py"
        return Measured(getattr(cls, "revision", None) or 1, defaults, digest, frozenset(uses), source)


def runs_of(key: str, folder: Path) -> dict[str, dict[str, Any]]:
    """The runs of a component or of the trainer by title; a single one has none."""
    kind, _, name = key.partition(" ")
    stage = {**STAGE, "epochs": EPOCHS.get(name, STAGE["epochs"])}
    if kind == "trainer":
        return {title: {"tasks": TASKS, "selection": "overall", **run} for title, run in TRAINER_RUNS.items()}
    if kind in ("sampler", "combiner"):
        return {"": {"tasks": TASKS, "stages": [{**stage, kind: name}]}}
    if kind == "metric":
        return {"": {"tasks": {"task": {**METRICS[name], "metric": name}}}}
    if kind == "loss":
        return {"": {"tasks": {"task": LOSSES[name]}, "stages": [stage]}}
    if kind == "head":
        return {"": {"tasks": HEADS[name]}}
    if kind == "encoder":
        tasks = {"sst": SST, "para": PARA}  # not the cosine: see ENCODER
        small = {**STAGE, "optimizer": {"lr": 0.001, "eps": 0.001}}
        return {
            title: {"encoder": {"name": name, **options}, "tasks": tasks, "stages": [small]}
            for title, options in encoder_options(name, folder).items()
        }
    fits = {"classes": SST, "two classes": PARA, "values": STS, "triples": TRIPLES}
    tasks = {
        title: {**fits[like], "data": {"name": name, **options}, **({"head": PAIR} if title == "entailment" else {})}
        for title, (like, options) in DATA[name](folder).items()
    }
    return {"": {"tasks": tasks}}


def given_options(kind: str, name: str, folder: Path) -> dict[str, Any]:
    """The options that a component's run sets because it has no default for them."""
    if kind == "head" and name == "shared_layer":
        return {"head": "linear"}
    if kind == "loss" and name in ("smart", "total"):
        return {key: value for key, value in LOSSES[name]["loss"].items() if key != "name"}
    if kind == "encoder":
        return next(iter(encoder_options(name, folder).values()))
    return next(iter(DATA[name](folder).values()))[1] if kind == "data" else {}


def defaults_of(kind: str, name: str, folder: Path) -> dict[str, Any]:
    """A component's options that have a default, with it."""
    options = given_options(kind, name, folder)
    resolved, problems = load_catalogue().resolve(kind, {"name": name, **options})
    assert not problems, problems
    return {key: value for key, value in resolved.items() if key not in options and key != "name"}


def trainer_defaults() -> dict[str, Any]:
    """What a run is when it says nothing but its data: components by name, for theirs are entries of their own."""
    run, problems = load_catalogue().resolve_run({"tasks": {"task": generated("sentiment")}})
    assert not problems, problems
    for _, home, key, _ in list(homes_of(run)):
        home[key] = home[key]["name"]
    return run


# What a run comes to


def trained(job: Any) -> Digest:
    """Train, and describe losses, scores and how far the weights have moved."""
    before = saved.module_state(Run.build(job, lambda event: None, load_catalogue()).model, "")
    events: list[Event] = []
    train(job, events.append)
    after, _ = load_folder(Path(job.folder, "cells", job.cell, "best"))
    (end,) = (event for event in events if event.what == "finished")
    digest: Digest = {}
    for facts in (event.facts for event in events if event.what == "epoch"):
        stage = f"stage {facts['stage'] + 1}, " if len(job.spec["stages"]) > 1 else ""
        where = f"{stage}epoch {facts['epoch']}"
        groups = {"loss": facts["losses"], "score": facts["scores"], "training score": facts["train"]}
        groups |= {f"figures of {owner}": values for owner, values in facts["metrics"].items()}
        for what, values in groups.items():
            digest |= {f"{what} of {name} in {where}": value for name, value in values.items()}
    digest |= {f"test score of {name}": value for name, value in end.facts["test"].items()}
    digest |= {"best epoch": end.facts["best_epoch"], **end.facts["costs"]}
    return digest | dict(moves(before, after))


def moves(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> Iterator[tuple[str, float]]:
    """Of each part of the model the norm of the change of its weights, and the change along the diagonal."""
    parts: dict[str, list[Tensor]] = {}
    for name, tensor in after.items():
        change = (tensor.double() - before[name].double()).nan_to_num() if name in before else tensor.double()
        parts.setdefault(".".join(name.split(".")[:2]), []).append(change.flatten())
    for part, changes in sorted(parts.items()):
        change = torch.cat(changes)
        yield f"change of {part}", float(change.norm())
        yield f"drift of {part}", float(change.sum() / max(1, len(change)) ** 0.5)


def texts_of(task: str, spec: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """A hash of the examples of each split, which are the same on every machine."""
    data = load_catalogue().make(DataSet, spec["tasks"][task]["data"])
    for split in ("train", "dev", "test"):
        try:
            examples = data.load(split)  # type: ignore[arg-type]
        except DataError:
            continue
        labels = None if examples.labels is None else examples.labels.tolist()
        written = json.dumps([examples.columns, labels, examples.ids])
        yield f"{split} examples of {task}", hashlib.sha256(written.encode()).hexdigest()[:12]


def metric_values(name: str) -> Digest:
    """A metric of fixed numbers: the predictions of a tiny run leave much of it unseen."""
    metric = load_catalogue().make(Metric, {"name": name})
    expected, predicted = np.array([0.0, 1, 1, 2, 2, 2, 3, 3, 4, 0]), np.array([0.0, 1, 2, 2, 2, 1, 3, 0, 1, 0])
    if metric.reads != "classes":
        predicted = predicted + np.sin(np.arange(10.0))
    return {
        "value for fixed predictions": metric(predicted, expected),
        "value for equal predictions": metric(np.ones(10), expected),
    }


# Files of our own text


def encoder_options(name: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Options of an encoder by title; weights that transformers runs itself, and weights that the packed layers run."""
    if name != "huggingface":
        return {"": {}}
    from tiny_models import new_model, new_tokenizer

    options = {}
    for kind in ("bert", "distilbert"):
        path, model = folder / "weights" / kind, new_model(kind)
        with torch.no_grad():  # the first weights of transformers may change with its version
            for key, parameter in model.named_parameters():
                random = np.random.Generator(np.random.Philox(zlib.crc32(key.encode())))
                parameter.copy_(
                    torch.from_numpy(random.normal(float("norm.weight" in key.lower()), 0.2, parameter.shape))
                )
        if not path.exists():
            model.save_pretrained(path)
            new_tokenizer(kind).save_pretrained(path)
        options[kind] = {"weights": str(path)}
    return options


WORDS = (
    "the",
    "a",
    "small",
    "old",
    "red",
    "cat",
    "dog",
    "river",
    "sings",
    "runs",
    "sees",
    "near",
    "never",
    "good",
    "bad",
)


def text(number: int) -> str:
    """A made-up sentence, another one for every number."""
    draws = [zlib.crc32(f"{number} {place}".encode()) for place in range(5 + number % 4)]
    return " ".join(WORDS[draw % len(WORDS)] for draw in draws)


def generated_texts(folder: Path) -> dict[str, tuple[str, dict[str, Any]]]:
    kinds = {"sentiment": "classes", "paraphrase": "two classes", "similarity": "values", "entailment": "triples"}
    sizes = {"size": 16, "dev_size": 8, "test_size": 4}
    return {f"{task}s": (like, {"task": task, **sizes}) for task, like in kinds.items()}


def write_table(path: Path, rows: list[tuple[Any, ...]], separator: str = "\t") -> None:
    path.write_text("".join(separator.join(map(str, row)) + "\n" for row in rows), encoding="utf-8")


def course_files(folder: Path) -> dict[str, tuple[str, dict[str, Any]]]:
    single, pair = ("id", "sentence", "sentiment"), ("id", "sentence1", "sentence2")
    for split, rows in (("train", range(20)), ("dev", range(30, 42)), ("test-student", range(50, 54))):
        for stem, classes in (("ids-sst", 5), ("ids-cfimdb", 2)):
            lines = [(f"s{row}", text(row), row % classes) for row in rows]
            write_table(folder / f"{stem}-{split}.csv", [single, *lines])
        for stem, label, step in (("quora", "is_duplicate", 1.0), ("sts", "similarity", 0.7)):
            values = [(f"p{row}", text(row), text(row // 2), step * (row % (2 if step == 1 else 8))) for row in rows]
            write_table(folder / f"{stem}-{split}.csv", [(*pair, label), *values])
    tasks = {"sst": "classes", "cfimdb": "classes", "para": "two classes", "sts": "values"}
    return {task: (like, {"task": task, "dir": str(folder)}) for task, like in tasks.items()}


def sick_file(folder: Path) -> dict[str, tuple[str, dict[str, Any]]]:
    header = ("pair_ID", "sentence_A", "sentence_B", "entailment_label", "relatedness_score", "entailment_AB")
    rows: list[tuple[Any, ...]] = [(*header, "entailment_BA", "SemEval_set")]
    for row in range(42):
        part, relation = ("TRAIN", "TRAIN", "TRIAL", "TEST")[row // 3 % 4], row % 3
        label = ("ENTAILMENT", "NEUTRAL", "CONTRADICTION")[relation]
        directions = [f"{a}_{('entails', 'neutral', 'contradicts')[relation]}_{b}" for a, b in ("AB", "BA")]
        rows.append((row, text(row // 3), text(100 + row), label, 1 + row % 9 / 2, *directions, part))
    write_table(folder / "SICK.txt", rows)
    tasks = {"entailment": "classes", "relatedness": "values", "triples": "triples"}
    return {task: (like, {"task": task, "dir": str(folder)}) for task, like in tasks.items()}


def snli_files(folder: Path) -> dict[str, tuple[str, dict[str, Any]]]:
    labels = ("entailment", "neutral", "contradiction", "-")
    for split, rows in (("train", range(32)), ("dev", range(40, 56)), ("test", range(60, 68))):
        keys = ("gold_label", "sentence1", "sentence2", "pairID")
        lines = [
            dict(zip(keys, (labels[row % 4], text(row // 4), text(100 + row), f"p{row}"), strict=True)) for row in rows
        ]
        path = folder / f"snli_1.0_{split}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return {
        task: (like, {"task": task, "dir": str(folder)})
        for task, like in (("entailment", "classes"), ("triples", "triples"))
    }


def table_files(folder: Path) -> dict[str, tuple[str, dict[str, Any]]]:
    write_table(
        folder / "moods.csv", [("text", "mood"), *((text(row), ("good", "bad")[row % 2]) for row in range(24))], ","
    )
    options = {"train": str(folder / "moods.csv"), "text": "text", "label": "mood", "classes": ["bad", "good"]}
    return {"moods": ("classes", {**options, "dev_share": 0.3})}


#: Data set → what writes its files into a folder: task → what the task is like, and the options of its data.
DATA = {
    "cs224n": course_files,
    "generated": generated_texts,
    "sick": sick_file,
    "snli": snli_files,
    "table": table_files,
}
