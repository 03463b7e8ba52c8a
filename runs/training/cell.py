"""One cell in training: the state that its stages share, its reports, and its check whether to stop."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from taskloom.core import DataSet, Emit, Encoder, Event, Examples, Job, Split, TrainingError, derive_generator
from taskloom.registry.installed.catalogue import Catalogue
from taskloom.registry.installed.task import Task
from taskloom.registry.results.artifacts import Artifacts
from taskloom.registry.results.tensors import save_folder
from taskloom.runs.grid.differences import code_versions
from taskloom.runs.grid.hold_out import split_off
from taskloom.runs.training.checkpoint import module_state
from taskloom.runs.training.evaluate import Predicted, store_scores
from taskloom.runs.training.feed import Feed
from taskloom.runs.training.machine import peak_memory, to_device, trained_on
from taskloom.runs.training.model import Model, device_for_this_process, requested_poolings

#: Seconds between two progress events.
PULSE = 0.5


class Stopped(Exception):  # noqa: N818 - a request of the user's, not an error
    """The driver asked the cell to stop."""


class Paused(Exception):  # noqa: N818 - a request of the job's, not an error
    """The cell has trained as many epochs as its job wants for now."""


class Pulse:
    """Reports progress while a cell trains, and checks whether it should stop."""

    def __init__(self, job: Job, emit: Emit, stage: int = 0, epoch: int = 1) -> None:
        self._job, self._emit = job, emit
        self._reported = time.monotonic()
        self.facts: dict[str, Any] = {"stage": stage, "epoch": epoch, "step": 0, "steps": 0, "rate": 0.0, "losses": {}}
        self.facts["micro_batch"] = None
        self._largest = (0, 0)  # stage, and examples of a task at a time

    @property
    def due(self) -> bool:
        """Whether it is time for the next progress event."""
        return time.monotonic() - self._reported > PULSE

    def raise_if_stopped(self) -> None:
        """Raise :class:`Stopped` if the driver asked the cell to stop."""
        if getattr(self._emit, "stop_asked", False):  # a plain function has none
            raise Stopped

    def __call__(self) -> None:
        """Raise if the cell should stop; report its progress if that is due."""
        self.raise_if_stopped()
        if self.due:
            self._report()

    def announce(self, stage: int, micro_batch: int) -> None:
        """Report how many examples of a task a step has in memory at a time, if it is the stage's maximum so far.

        It is reported before the step: a process that the system kills for lack of memory cannot report it.
        """
        if (stage, micro_batch) > self._largest:
            self._largest = stage, micro_batch
            self.facts["micro_batch"] = micro_batch
            self._report()

    def _report(self) -> None:
        self._reported = time.monotonic()
        self._emit(Event("progress", self._job.cell, {**self.facts, "memory": peak_memory()}))


@dataclass
class Best:
    """The epoch that selection prefers so far."""

    epoch: int = -1
    score: float = float("-inf")
    scores: dict[str, float] = field(default_factory=dict)


@dataclass
class Run:
    """The state that the stages of one run share."""

    job: Job
    emit: Emit
    catalogue: Catalogue
    device: torch.device
    tasks: dict[str, Task]
    model: Model
    train: dict[str, Feed]
    dev: dict[str, Feed]
    artifacts: Artifacts
    folder: Path
    pulse: Pulse
    trained_on: dict[str, str]  # as checkpoints remember it
    best: Best = field(default_factory=Best)
    test: dict[str, float] = field(default_factory=dict)  # the best epoch's scores on the test split
    costs: Counter[str] = field(default_factory=Counter)  # examples seen and backward passes
    #: The reported events, oldest first. Checkpoints keep them, since the driver may have missed them.
    history: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    @classmethod
    def build(cls, job: Job, emit: Emit, catalogue: Catalogue, resumed: dict[str, Any] | None = None) -> "Run":
        """Construct the components and read the data; ``resumed`` is the state of a checkpoint to continue from."""
        began = time.monotonic()
        begin = {} if resumed is None else {"stage": resumed["stage"], "epoch": resumed["epoch"] + 1}
        pulse = Pulse(job, emit, **begin)
        _check_code(job, catalogue)
        device, artifacts, spec = device_for_this_process(job.device), Artifacts(Path(job.folder)), job.spec
        tasks = {name: catalogue.make_task(name, task) for name, task in spec["tasks"].items()}
        encoder, precision = catalogue.make(Encoder, spec["encoder"]), spec.get("precision", "float32")
        model = Model(encoder, tasks, seed=spec["seed"], precision=precision)

        def feed(task: Task, examples: Examples) -> Feed:
            pulse()
            return Feed.open(task, examples, encoder, artifacts.cache(), device, pulse)

        splits = {name: _train_and_dev(task.data, spec.get("hold_out")) for name, task in tasks.items()}
        train = {name: feed(task, splits[name][0]) for name, task in tasks.items()}
        dev = {name: feed(task, splits[name][1]) for name, task in tasks.items()}
        _check_content(job, catalogue, tasks)
        for name, task in tasks.items():
            task.loss.prepare(labels=task.labels, rows=len(train[name]))
        to_device(model, device)
        folder = artifacts.cell(job.cell)
        where = trained_on(device, resumed)
        run = cls(job, emit, catalogue, device, tasks, model, train, dev, artifacts, folder, pulse, where, began=began)
        if resumed is not None:
            run.began -= resumed["seconds"]
            run.best = Best(**resumed["best"])
            run.costs = Counter(resumed["costs"])
            run.history = resumed["history"]
        return run

    def report(self, event: str, **facts: Any) -> None:
        """Send an event to the driver, and keep it in checkpoints."""
        self.history.append((event, facts))
        self.emit(Event(event, self.job.cell, facts))

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def trained_by(self, index: int) -> set[str]:
        """The tasks that stage ``index`` or an earlier one trains."""
        return {name for stage in self.job.spec["stages"][: index + 1] for name in stage["tasks"]}

    def scored_by(self, index: int) -> list[str]:
        """The tasks that have a score after stage ``index``: trained by then, and with predictions."""
        trained = self.trained_by(index)
        return [name for name, task in self.tasks.items() if name in trained and task.predicts]

    def out_of_patience(self, index: int) -> bool:
        """Whether the selection score has not improved for as many epochs as stage ``index`` has patience.

        It reads the epochs reported so far, which checkpoints keep.
        """
        patience = self.job.spec["stages"][index].get("patience")
        reported = [facts for event, facts in self.history if event == "epoch" and facts["stage"] == index]
        if patience is None or not reported:
            return False
        scores: list[float] = [facts["scores"][self.job.spec["selection"]] for facts in reported]
        return bool(len(scores) - 1 - scores.index(max(scores)) >= patience)

    def keep_best(self, epoch: int, scores: dict[str, float], predicted: Mapping[str, Predicted]) -> None:
        """Keep weights and scores if this epoch is the best so far; of equals, the first."""
        selection = self.job.spec["selection"]
        score = float(epoch) if selection == "last" or not scores else scores[selection]
        if not score > self.best.score:
            return
        self.best = Best(epoch, score, scores)
        save_folder(self.folder / "best", module_state(self.model, ""), {"epoch": epoch, "scores": scores})
        self.store("dev", predicted, {name: feed.examples for name, feed in self.dev.items()})

    def store(self, split: Split, predicted: Mapping[str, Predicted], examples: Mapping[str, Examples]) -> None:
        """Store the model's predictions of a split."""
        train = {name: feed.examples for name, feed in self.train.items()}
        store_scores(self.artifacts, self.job.cell, split, self.tasks, predicted, examples, train)

    def train_sample(self, task: str) -> NDArray[np.int64]:
        """The rows of the training data that are scored each epoch: the same ones in every cell."""
        rows, sample_size = len(self.train[task]), self.job.spec["score"]["train"]
        drawn = torch.randperm(rows, generator=derive_generator(0, "train sample", task))[:sample_size]
        return drawn.sort().values.numpy()


def _train_and_dev(data: DataSet, hold_out: Mapping[str, Any] | None) -> tuple[Examples, Examples]:
    """What a task is trained on, and what it is scored on: dev, or training rows that are held out."""
    train = data.load("train")
    return (train, data.load("dev")) if hold_out is None else split_off(train, hold_out)


def _check_code(job: Job, catalogue: Catalogue) -> None:
    """Fail if the code of a third party is not what the cell was planned with: its identity would be wrong."""
    now = code_versions(job.spec, catalogue)
    for name, files in job.versions.items():
        if name in now and now[name] != files:
            raise TrainingError(f"the {name} changed after this cell was planned; run the same command again")


def _check_content(job: Job, catalogue: Catalogue, tasks: Mapping[str, Task]) -> None:
    """Fail if data or weights, which have just been read, are not what the cell was planned with."""
    encoder = catalogue.make(Encoder, job.spec["encoder"])
    encoder.requested_poolings = requested_poolings(tasks)
    sources: list[tuple[str, str, Encoder | DataSet]] = [("encoder", "the encoder's weights", encoder)]
    sources += [(f"tasks.{name}.data", f"the data of task {name!r}", task.data) for name, task in tasks.items()]
    for path, words, source in sources:
        planned = job.content.get(path)
        if planned is not None and (now := source.fingerprint()) != planned:
            raise TrainingError(
                f"{words} changed after this cell was planned: their fingerprint was {planned[:12] or 'empty'} and is "
                f"{now[:12] or 'empty'} now; run the same command again"
            )
