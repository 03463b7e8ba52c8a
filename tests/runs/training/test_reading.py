"""How a task has its texts laid out and pooled: through a run, before it, and from one cell to another."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from small_runs import ENCODER, NO_DROPOUT, Bench, generated, run_grid

from taskloom.core import RequestError
from taskloom.plugins.encoders import MinBert
from taskloom.plugins.encoders.folders import find_folder
from taskloom.runs.scaffold import package_files

CALM = {**ENCODER, **NO_DROPOUT}
SST = generated("sentiment", head={"name": "linear", "dropout": 0.0})


def para(**options: Any) -> dict[str, Any]:
    return generated("paraphrase", head={"dropout": 0.0, **options}, loss="binary_cross_entropy")


@pytest.mark.parametrize("head", [{"name": "linear", "reads": "joint"}, {"name": "both_orders"}])
def test_a_run_lays_a_pair_out_as_its_head_says(tmp_path: Path, head: dict[str, Any]) -> None:
    options: list[dict[str, Any]] = [{}, {"segments": False}, {"layout": "concatenated"}]
    wrapped = {"name": "shared_layer", "head": {**head, **options[2]}}
    heads = {"bert": {**head, **options[0]}, "plain": {**head, **options[1]}, "twice": {**head, **options[2]}}
    tasks = {name: para(**each) for name, each in heads.items()} | {
        "common": generated("paraphrase", head=wrapped, loss="binary_cross_entropy")
    }
    run = Bench(tmp_path, tasks, encoder=CALM).run
    start = run.model.encoder.special_tokens.start[0]
    laid = {name: run.train[name].host_tokens(np.arange(5)) for name in tasks}
    starts = {name: int((tokens.ids == start).sum()) / len(tokens) for name, tokens in laid.items()}
    assert starts == {"bert": 1, "plain": 1, "twice": 2, "common": 2}
    assert {name: bool(tokens.types.any()) for name, tokens in laid.items()} == {
        "bert": True,
        "plain": False,
        "twice": False,
        "common": False,
    }
    assert laid["twice"].ids.equal(laid["common"].ids)


@pytest.mark.parametrize("pooling", ["pooler", "cls", "mean", "max"])
@pytest.mark.parametrize("own", ["pooler", "mean"])
def test_asking_for_a_pooling_is_to_have_an_encoder_with_it(tmp_path: Path, own: str, pooling: str) -> None:
    """The same weights, losses and scores as if the encoder had that pooling by itself."""
    scores = []
    for name, encoder, head in (
        ("asked", own, {"pooling": pooling}),
        ("own", pooling, {}),
    ):
        base = {
            "encoder": {**CALM, "pooling": encoder},
            "tasks": {"para": para(name="linear", reads="pair", **head)},
            "stages": [{"epochs": 2, "optimizer": {"lr": 0.01}}],
        }
        _, outcome, events = run_grid(tmp_path / name, {"base": base})
        assert outcome.failed == 0
        scores.append([(e.facts["losses"], e.facts["scores"]) for e in events if e.what == "epoch"])
    assert scores[0] == scores[1]
    assert len(scores[0]) == 2


def test_an_encoder_that_knows_no_pooling_is_not_asked_for_one(tmp_path: Path, install: Callable[..., None]) -> None:
    install("plain", package_files("plain", "encoder")["taskloom_plain/__init__.py"])
    tasks = {"para": para(name="shared_layer", head={"name": "linear", "reads": "pair", "pooling": "mean"})}
    with pytest.raises(RequestError) as caught:
        run_grid(tmp_path / "r", {"base": {"encoder": "plain", "tasks": tasks}})
    assert "tasks.para.head: no pooling 'mean' (known to encoder 'plain': none); leave pooling out" in str(caught.value)


def test_a_pooler_that_the_weights_do_not_have_is_missed_before_training(tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    for file in find_folder("minilm").iterdir():
        if file.suffix != ".safetensors":
            (folder / file.name).symlink_to(file)
    tensors = load_file(find_folder("minilm") / "model.safetensors")
    save_file({name: t for name, t in tensors.items() if "pooler" not in name}, folder / "model.safetensors")
    base = {
        "encoder": {"name": "minbert", "weights": str(folder), "pooling": "mean"},
        "tasks": {"para": para(name="linear", reads="pair", pooling="pooler")},
    }
    with pytest.raises(RequestError, match=r"encoder: .* has no pooler; pooling should be 'cls', 'mean' or 'max'"):
        run_grid(tmp_path / "r", {"base": base})


@pytest.mark.parametrize("order", [("plain", "asking"), ("asking", "plain")])
def test_a_stage_is_shared_by_cells_whose_later_tasks_ask_for_different_poolings(
    tmp_path: Path, order: tuple[str, str]
) -> None:
    """Whichever cell trains the stage, both have the scores that they have without sharing."""
    cells = {"plain": {}, "asking": {"tasks.para.head.pooling": "pooler"}}
    base = {
        "encoder": {**CALM, "pooling": "mean"},
        "tasks": {"sst": SST, "para": para(name="linear", reads="pair")},
        "stages": [{"tasks": ["sst"], "optimizer": {"lr": 0.01}}, {"tasks": ["para"], "optimizer": {"lr": 0.01}}],
    }

    def scores(name: str, *labels: str) -> tuple[dict[str, Any], list[bool]]:
        grid = {"base": base, "cells": [{"label": label, "set": cells[label]} for label in labels]}
        plan, outcome, events = run_grid(tmp_path / name, grid)
        assert outcome.failed == 0
        labelled = {cell.id: cell.label for cell in plan.cells}
        found = {labelled[e.cell]: e.facts["scores"] for e in events if e.what == "finished"}
        return found, [e.facts["shared"] for e in events if e.what == "stage" and e.facts["index"] == 0]

    together, shared = scores("together", *order)
    assert shared == [False, True]
    assert together == {**scores("one", "plain")[0], **scores("other", "asking")[0]}


def test_a_pooler_that_is_asked_for_changes_no_other_first_weight() -> None:
    states = []
    for asked in (frozenset[str](), frozenset({"pooler"})):
        encoder = MinBert(layers=1, width=8, heads=2, vocabulary=64, pooling="mean")
        encoder.requested_poolings = asked
        encoder.build(generator=torch.Generator().manual_seed(0))
        states.append(encoder.state_dict())
    assert {*states[1]} - {*states[0]} == {"pooler.dense.weight", "pooler.dense.bias"}
    assert all(tensor.equal(states[1][name]) for name, tensor in states[0].items())
