"""One run, from its resolved specification to its scores. Read from top to bottom."""

import time
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from taskloom.core import Emit, Encoder, Event, Job, Task, TrainingError
from taskloom.registry.artifacts import Artifacts, write_text
from taskloom.registry.catalogue import load_catalogue
from taskloom.runs import checkpoint as saved
from taskloom.runs.build import make, make_task
from taskloom.runs.evaluate import overall, predictions
from taskloom.runs.feed import Feed
from taskloom.runs.machine import keep_freed_memory, machine_versions, peak_memory, reset_peak_memory, seed_globals
from taskloom.runs.model import Model, device_for_this_process
from taskloom.runs.optimize import GroupStep, rate_factor
from taskloom.runs.stage import StageState
from taskloom.runs.submission import json_lines

if TYPE_CHECKING:
    from taskloom.registry.catalogue import Catalogue

#: Seconds between two progress events.
PULSE = 0.5


def train(job: Job, emit: Emit) -> None:
    """Run a cell: build it, go on from its last checkpoint if there is one, train every stage, report.

    Raises what goes wrong; the engine turns that into the cell's failure.
    """
    keep_freed_memory()
    reset_peak_memory()
    seed_globals(job.spec["seed"])
    run = Run.build(job, emit, load_catalogue())
    resumed = run.find_checkpoint()
    run.tell("resumed" if resumed else "started", versions=machine_versions(), device=str(run.device))
    first = resumed[1]["stage"] if resumed else 0
    for index in range(first, len(job.spec["stages"])):
        run_stage(run, index, resumed if index == first else None)
    run.finish()


@dataclass
class Best:
    """The epoch that selection prefers so far."""

    epoch: int = -1
    score: float = float("-inf")
    scores: dict[str, float] = field(default_factory=dict)


@dataclass
class Run:
    """What the stages of one run work on."""

    job: Job
    emit: Emit
    catalogue: "Catalogue"
    device: torch.device
    tasks: dict[str, Task]
    model: Model
    train: dict[str, Feed]
    dev: dict[str, Feed]
    artifacts: Artifacts
    folder: Path
    best: Best = field(default_factory=Best)
    began: float = field(default_factory=time.monotonic)

    @classmethod
    def build(cls, job: Job, emit: Emit, catalogue: "Catalogue") -> "Run":
        device = device_for_this_process()
        artifacts = Artifacts(Path(job.folder))
        tasks = {name: make_task(catalogue, name, task) for name, task in job.spec["tasks"].items()}
        model = Model(make(catalogue, Encoder, job.spec["encoder"]), tasks, seed=job.spec["seed"])

        def feeds(split: Any) -> dict[str, Feed]:
            return {
                name: Feed.open(task, task.data.load(split), model.encoder, artifacts.cache(), device)
                for name, task in tasks.items()
            }

        train_feeds, dev_feeds = feeds("train"), feeds("dev")
        for name, task in tasks.items():
            task.loss.prepare(labels=task.labels, rows=len(train_feeds[name]))
        model.to(device)
        folder = artifacts.cell(job.cell)
        return cls(job, emit, catalogue, device, tasks, model, train_feeds, dev_feeds, artifacts, folder)

    def tell(self, what: str, **facts: Any) -> None:
        self.emit(Event(what, self.job.cell, facts))

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def find_checkpoint(self) -> "tuple[saved.Tensors, dict[str, Any]] | None":
        """The newest whole checkpoint; takes over how long the run has worked and its best epoch."""
        found, damaged = saved.newest_checkpoint(self.folder)
        for message in damaged:
            self.tell("log", message=f"checkpoint passed over: {message}")
        if found:
            self.began -= found[1]["seconds"]
            self.best = Best(**(found[1]["best"] or {}))
        return found

    def scored(self, index: int) -> list[str]:
        """The tasks with a dev score after stage ``index``: labelled, trained by then, their head predicting."""
        trained = {name for stage in self.job.spec["stages"][: index + 1] for name in stage["tasks"]}
        return [
            name
            for name, task in self.tasks.items()
            if name in trained and task.data.labels is not None and task.head.gives != "vectors"
        ]

    def keep_best(self, epoch: int, scores: dict[str, float], predicted: dict[str, NDArray[np.float64]]) -> None:
        """Keep weights and predictions if selection prefers this epoch; of equals, the first."""
        how = self.job.spec["selection"]
        score = float(epoch) if how == "last" or not scores else scores[how]
        if not score > self.best.score:
            return
        self.best = Best(epoch, score, scores)
        saved.save_folder(self.folder / "best", saved.module_state(self.model, ""), {"epoch": epoch, "scores": scores})
        for name, values in predicted.items():
            write_text(self.folder / f"predictions-{name}-dev.jsonl", json_lines(self.dev[name].examples, values))

    def finish(self) -> None:
        self.tell(
            "finished",
            scores=self.best.scores,
            best_epoch=self.best.epoch,
            seconds=self.seconds,
            peak_memory=peak_memory(),
        )


def run_stage(run: Run, index: int, resumed: "tuple[saved.Tensors, dict[str, Any]] | None") -> None:
    """Train one stage, from its beginning or from a checkpoint, or take over its result from another cell."""
    stage, last = run.job.spec["stages"][index], index == len(run.job.spec["stages"]) - 1
    began, key = time.monotonic(), "" if last else run.job.stage_keys[index]
    shared = run.artifacts.stage(key) / "result" if key else None
    if shared is not None and shared.is_dir() and resumed is None:
        try:
            tensors, _ = saved.load_folder(shared)
        except ValueError as error:
            run.tell("log", message=f"shared stage trained again: {error}")
        else:
            saved.load_module_state(run.model, tensors, "")
            run.tell("stage", index=index, key=key, shared=True, seconds=0.0)
            return

    names: tuple[str, ...] = tuple(stage["tasks"])
    run.model.freeze_encoder(stage["frozen"])
    state = StageState.build(run, index, stage, names)
    done = 0
    if resumed is not None:
        state.load(run, *resumed)
        done = resumed[1]["epoch"]
    elif stage["epochs"] == 0 and last:
        score_epoch(run, index, 0, {}, state)  # an untrained baseline still has scores

    for epoch in range(done + 1, stage["epochs"] + 1):
        losses = train_epoch(run, state, index, epoch)
        score_epoch(run, index, epoch, losses, state)
        state.save(run, index, epoch)
    if shared is not None:
        trained = {name for one in run.job.spec["stages"][: index + 1] for name in one["tasks"]}
        saved.save_folder(shared, saved.unique(run.model.trained_state(trained)), {"stage": index})
    run.tell("stage", index=index, key=key, shared=False, seconds=time.monotonic() - began)


def train_epoch(run: Run, state: StageState, index: int, epoch: int) -> dict[str, float]:
    """One pass of the sampler; returns each task's mean loss."""
    stage, optimizer = state.stage, state.optimizer
    steps = state.sampler.steps
    shared, trained = run.model.shared_parameters(), state.trained
    sums: dict[str, float] = {}
    counts: dict[str, int] = {}
    began = told = time.monotonic()
    run.model.train()
    for place, group in enumerate(state.sampler.epoch(), start=1):
        factor = rate_factor(state.step, steps * stage["epochs"], stage["schedule"])
        for parameters in optimizer.param_groups:
            parameters["lr"] = stage["optimizer"]["lr"] * factor
        step = GroupStep(
            group,
            model=run.model,
            feeds=run.train,
            shared=shared,
            trained=trained,
            optimizer=optimizer,
            clip=stage["clip"],
        )
        try:
            losses = state.combiner.update(step)
        except TrainingError as error:
            raise TrainingError(f"{error} (stage {index}, epoch {epoch}, step {place})") from None
        state.step += 1
        for name, loss in losses.items():
            sums[name] = sums.get(name, 0.0) + float(loss)
            counts[name] = counts.get(name, 0) + 1
        if time.monotonic() - told > PULSE:
            told = time.monotonic()
            rate = place / (told - began)
            means = {name: sums[name] / counts[name] for name in sums}
            run.tell("progress", stage=index, epoch=epoch, step=place, steps=steps, rate=rate, losses=means)
    return {name: sums[name] / counts[name] for name in sums}


def score_epoch(run: Run, index: int, epoch: int, losses: dict[str, float], state: StageState) -> None:
    """Score the dev sets, let losses and combiner react, report, and keep the epoch if it is the best."""
    spec = run.job.spec
    predicted = {name: predictions(run.model, name, run.dev[name]) for name in run.scored(index)}
    scores = {}
    for name, values in predicted.items():
        expected = run.dev[name].examples.labels
        assert expected is not None  # run.scored names labelled tasks only
        scores[name] = float(run.tasks[name].metric(values, expected))
        if not isfinite(scores[name]):
            metric = run.tasks[name].metric.name
            raise TrainingError(f"the metric {metric!r} of task {name!r} is {scores[name]} after epoch {epoch}")
    if epoch > 0:
        for name in spec["stages"][index]["tasks"]:
            run.model.loss(name).epoch_ended(epoch=epoch, score=scores.get(name, 0.0))
        state.combiner.epoch_ended(epoch=epoch, losses=losses)
    every = {**scores, "overall": overall(scores, run.tasks, spec["overall"])} if scores else {}
    figures = {name: run.model.loss(name).figures() for name in spec["stages"][index]["tasks"]}
    if index == len(spec["stages"]) - 1:
        run.keep_best(epoch, every, predicted)
    run.tell(
        "epoch",
        stage=index,
        epoch=epoch,
        step=state.step,
        losses=losses,
        scores=every,
        metrics={name: values for name, values in figures.items() if values},
        seconds=run.seconds,
    )
