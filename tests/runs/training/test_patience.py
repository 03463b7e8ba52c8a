"""Patience ends a stage once its score has not improved, at the same epoch however often the run is interrupted."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from resumed import Ear
from small_runs import ENCODER, generated, job_of

from taskloom.core import Job
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.runs.grid.contents import Contents
from taskloom.runs.grid.identity import stage_keys
from taskloom.runs.grid.overrides import Overrides
from taskloom.runs.training.train import train

EPOCHS = 12


def job(folder: Path, patience: int | None, **stage: Any) -> Job:
    stages = [{"epochs": EPOCHS, "optimizer": {"lr": 0.01}, "patience": patience, **stage}]
    return job_of(folder, {"encoder": ENCODER, "tasks": {"sst": generated("sentiment", 24, 12)}, "stages": stages})


def scores(ear: Ear) -> list[float]:
    return [facts["scores"]["overall"] for facts in ear.told("epoch")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[float], dict[int, Ear]]:
    """The scores of all epochs without patience, and what is told with each patience."""
    ear, told = Ear(), {}
    train(job(tmp_path_factory.mktemp("whole"), None), ear)
    for patience in (1, 2, 3):
        told[patience] = Ear()
        train(job(tmp_path_factory.mktemp("patient"), patience), told[patience])
    return scores(ear), told


@pytest.mark.parametrize("patience", [1, 2, 3])
def test_a_stage_ends_after_so_many_epochs_without_a_better_score(
    whole: tuple[list[float], dict[int, Ear]], patience: int
) -> None:
    """It is the run without patience up to there, and no better epoch lies within its patience."""
    all_scores, told = whole
    ended = scores(told[patience])
    assert ended == all_scores[: len(ended)]
    best = [max(range(count), key=all_scores.__getitem__) for count in range(1, EPOCHS + 1)]
    expected = next((last + 1 for last in range(EPOCHS) if last - best[last] >= patience), EPOCHS)
    assert len(ended) == expected
    (finished,) = told[patience].told("finished")
    assert finished["best_epoch"] == best[expected - 1] + 1


def test_some_stage_of_this_test_ends_early(whole: tuple[list[float], dict[int, Ear]]) -> None:
    assert len(scores(whole[1][1])) < EPOCHS


@pytest.mark.parametrize("patience", [1, 2])
def test_interrupted_anywhere_it_ends_at_the_same_epoch(
    whole: tuple[list[float], dict[int, Ear]], tmp_path: Path, patience: int
) -> None:
    """Also where it is stopped between its last epoch and its end, so that no epoch was left to train."""
    ends, looks, events = ["interrupted"], 0, Ear()
    while ends[-1] == "interrupted":
        assert len(ends) < 200, "it makes no headway"
        ear = Ear(7)
        train(job(tmp_path, patience), ear)
        ends.append(ear.events[-1].what)
        events.events += ear.events
        looks += ear.looks
    assert scores(events) == scores(whole[1][patience])
    told = [ear.told("finished") for ear in (events, whole[1][patience])]
    assert told[0] == told[1]


def test_a_checkpoint_of_its_last_epoch_is_not_trained_on(tmp_path: Path) -> None:
    """Killed after the checkpoint of the epoch that used up its patience, it finishes without another epoch."""
    first = Ear()
    train(job(tmp_path, 1), first)
    epochs = len(scores(first))
    checkpoints = sorted((tmp_path / "cells" / "x").glob("checkpoint-*"))
    assert int(checkpoints[-1].name.split("-")[2]) == epochs < EPOCHS
    shutil.rmtree(checkpoints[0])
    again = Ear()
    train(job(tmp_path, 1), again)
    assert [event.what for event in again.events if event.what == "epoch" and not event.facts.get("retold")] == []
    assert again.told("finished") == first.told("finished")


def test_a_shared_stage_with_patience_is_shared_only_among_runs_that_watch_the_same_score(tmp_path: Path) -> None:
    catalogue, tasks = load_catalogue(), {"sst": generated("sentiment"), "para": generated("paraphrase")}
    keys = {}
    for patience in (None, 2):
        for selection in ("overall", "sst"):
            stages = [{"epochs": 2, "patience": patience}, {"epochs": 1}]
            run = {"encoder": ENCODER, "tasks": tasks, "stages": stages, "selection": selection}
            spec = job_of(tmp_path, run).spec
            contents = Contents(catalogue, Overrides())
            assert not contents.problems(spec, set())
            keys[patience, selection] = stage_keys(spec, catalogue, contents)
    assert keys[None, "overall"] == keys[None, "sst"]
    assert len({*keys.values()}) == 3


def test_a_job_pauses_after_its_epochs_and_goes_on_as_if_it_had_not(tmp_path: Path) -> None:
    whole, first, again, rest = Ear(), Ear(), Ear(), Ear()
    train(job(tmp_path / "whole", None), whole)
    paused = replace(job(tmp_path / "paused", None), pause=4)
    train(paused, first)
    train(paused, again)
    train(replace(paused, pause=None), rest)
    assert [ear.events[-1].what for ear in (first, again, rest)] == ["interrupted", "interrupted", "finished"]
    assert first.events[-1].facts == {"paused": True}
    assert (len(scores(first)), scores(again)) == (4, [])
    assert scores(first) + scores(rest) == scores(whole)
    assert rest.told("finished") == whole.told("finished")
