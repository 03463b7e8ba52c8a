"""The model of a finished cell, for new texts. Only reads the registry."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from taskloom.core import Encoder, Examples, Head, Labels, Prediction, SharedModules, TaskloomError, WeightsError
from taskloom.core.errors import RegistryError, count, unknown
from taskloom.core.rows import UnreadableError, utf8
from taskloom.core.tokens import COLUMNS
from taskloom.registry.installed.catalogue import Catalogue
from taskloom.registry.installed.task import Task
from taskloom.registry.results.artifacts import is_name
from taskloom.registry.results.records import CellRecord
from taskloom.registry.results.tensors import load_folder
from taskloom.runs.training import checkpoint as saved
from taskloom.runs.training.evaluate import predictions
from taskloom.runs.training.feed import Feed
from taskloom.runs.training.model import Model, device_for_this_process

#: The parts of a model that predict. A loss may hold tensors too, which only training reads.
PARTS = ("encoder.", "shared.", "heads.")
#: Rows in memory at once: enough for rows of similar length to fill batches.
BATCH = 2048
#: Instead of a task's name: the encoder's vectors themselves. No task can have this name.
VECTORS = ""
#: Advice for messages about missing weights.
ANEW = "a run of its grid in another --registry trains it anew"
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class TaskPredictions:
    """What a task predicts for N rows.

    ``values`` are the outputs of ``Head.decide``: class numbers, or values in the units of the data. ``labels`` are the
    same as the data's labels: the names of classes, or integers if they have none; for values the values.
    ``probabilities`` are those of the classes, if the head gives any.
    """

    values: NDArray[np.float64]  # [N]
    labels: list[str] | list[int] | list[float]
    probabilities: NDArray[np.float32] | None  # [N, classes]


class TrainedModel(Model):
    """A finished cell's encoder and heads with the weights of its best epoch.

    ``tasks`` are those of the run by name, each with the meaning of its labels (``tasks["sst"].labels``); ``notes`` are
    for users of the predictions. There is no dropout and no randomness: the same texts give the same numbers. It is an
    ordinary ``torch.nn.Module``, so ``.to("cuda")`` moves it.

    Example: ``load_trained(cell, load_catalogue(), registry).predict("sst", ["a fine film"]).labels``
    """

    def __init__(
        self, encoder: Encoder, tasks: dict[str, Task], *, seed: int, precision: str, notes: Sequence[str] = ()
    ) -> None:
        super().__init__(encoder, tasks, seed=seed, precision=precision)
        self.tasks = tasks
        self.notes = tuple(notes)
        self._vectors = _Vectors()
        self.eval()

    @property
    def device(self) -> torch.device:
        return next(self.encoder.parameters()).device

    def head(self, task: str) -> Head:
        return self._vectors if task == VECTORS else super().head(task)

    def predict(
        self, task: str, texts: Iterable[str] | Iterable[Sequence[str]], *, batch_size: int = BATCH
    ) -> TaskPredictions:
        """Predict a task for texts, or for pairs of texts if it reads two.

        ``batch_size`` rows are in memory at a time, so ``texts`` may be any iterable; except for rounding it has no
        effect on predictions. Rows of similar length share a forward pass.
        """
        chosen = self.tasks[choose_tasks(self.tasks, [task])[0]]
        score, values = self._run(task, chosen, _rows(chosen, texts), batch_size, (chosen.outputs,))
        score = score[:, 0] if chosen.outputs == 1 else score
        probabilities = chosen.head.probabilities(torch.from_numpy(score))
        return TaskPredictions(
            values, chosen.labels.decode(values), None if probabilities is None else probabilities.numpy()
        )

    def encode(self, texts: Iterable[str], *, task: str | None = None, batch_size: int = BATCH) -> Tensor:
        """Encode texts as sentence vectors, [N, d], on the CPU.

        They are pooled as the head of ``task`` asks for; without a task as all heads of the run do or, if they differ,
        by the encoder's own pooling.
        """
        if task is not None and task not in self.tasks:
            raise TaskloomError(unknown("task", task, self.tasks, where="tasks of the cell"))
        like = next(iter(self.tasks.values()))
        alone = replace(like, head=_Vectors(self.pooling_of(task)))
        vectors, _ = self._run(VECTORS, alone, _rows(alone, texts), batch_size, (self.encoder.width,))
        return torch.from_numpy(vectors)

    def pooling_of(self, task: str | None) -> str | None:
        """Return the pooling that the head of ``task``, or every head, asks for; None is the encoder's own."""
        poolings = {run_task.head.pooling for name, run_task in self.tasks.items() if task in (None, name)}
        return poolings.pop() if len(poolings) == 1 else None

    def _run(
        self, name: str, task: Task, rows: Iterable[tuple[str, ...]], batch_size: int, shape: tuple[int, ...]
    ) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Compute the scores, [N, …], and decisions, [N], of all rows, ``batch_size`` rows at a time."""
        scores, decided = [np.empty((0, *shape), np.float32)], [np.empty(0)]
        for batch in in_batches(rows, batch_size):
            ids = tuple(map(str, range(len(batch))))
            examples = Examples(tuple(zip(*batch, strict=True)), None, ids)
            batch_predictions = predictions(self, name, Feed.open(task, examples, self.encoder, None, self.device))
            scores.append(batch_predictions.score.reshape(-1, *shape))
            decided.append(batch_predictions.decided)
        return np.concatenate(scores), np.concatenate(decided)


class _Vectors(Head):
    """A head whose score is the first sentence's vector, so that vectors are computed like predictions."""

    name = "vectors"
    gives = "vectors"

    def __init__(self, pooling: str | None = None) -> None:
        super().__init__()
        self.pooling = pooling

    def build(
        self, *, width: int, outputs: int, labels: Labels, generator: torch.Generator, shared: SharedModules
    ) -> None:
        """It has no parameters."""

    def forward(self, vectors: Tensor) -> Prediction:
        return Prediction(vectors[0], vectors)

    def decide(self, score: Tensor) -> Tensor:
        return score.new_zeros(len(score))


def load_trained(cell: CellRecord, catalogue: Catalogue, folder: Path) -> TrainedModel:
    """Load the model of a finished cell in the registry ``folder`` onto the device of this process.

    ``TaskloomError`` if the cell is not finished or came from an archive, if its weights are gone, damaged or of
    another shape, or if a plugin is not installed.
    """
    check_cell(cell, folder)
    tasks = {name: catalogue.make_task(name, task) for name, task in cell.spec["tasks"].items()}
    encoder = catalogue.make(Encoder, cell.spec["encoder"])
    best = folder / "cells" / cell.id / "best"
    if not best.is_dir():
        raise WeightsError(
            f"cell {cell.id}: its weights are gone: they were not kept (--keep none), or removed; {ANEW}"
        )
    try:
        tensors, state = load_folder(best)
        if state.get("scores", cell.scores) != cell.scores:
            raise ValueError(f"{best.name} belongs to another cell: its scores are not those that the ledger has")
    except ValueError as error:
        raise WeightsError(
            f"the weights of cell {cell.id} cannot be used: {error}. Put back a copy of {best}, or run the grid "
            "again in another --registry."
        ) from None
    precision = cell.spec.get("precision", "float32")
    model = TrainedModel(
        encoder, tasks, seed=cell.spec["seed"], precision=precision, notes=_changed_versions(cell, catalogue)
    )
    kept = {name: tensor for name, tensor in tensors.items() if name.startswith(PARTS)}
    needed = {name: tensor for name, tensor in saved.module_state(model, "").items() if name.startswith(PARTS)}
    if not any(name.startswith("encoder.") for name in kept):
        if encoder.trainable and not all(stage["frozen"] for stage in cell.spec["stages"]):
            raise WeightsError(
                f"cell {cell.id}: only its heads were kept, and its encoder was trained (--keep heads); {ANEW}"
            )
        kept |= {name: tensor for name, tensor in needed.items() if name.startswith("encoder.")}
    kept_shapes, needed_shapes = ({(name, *tensor.shape) for name, tensor in state.items()} for state in (kept, needed))
    if kept_shapes != needed_shapes:
        differing = ", ".join(sorted({name for name, *_ in kept_shapes ^ needed_shapes})[:3])
        versions = ", ".join(f"{name} {version}" for name, version in sorted(cell.versions.items()))
        raise WeightsError(
            f"the weights of cell {cell.id} do not fit the model that its specification gives now: {differing} differ "
            f"in shape or are in only one of the two. It was trained with {versions}."
        )
    saved.load_module_state(model, kept, "")
    return model.to(device_for_this_process())


def check_cell(cell: CellRecord, folder: Path) -> None:
    """Check, before any work, that a cell has weights, and safe names for paths: a registry may be a stranger's."""
    if cell.status != "finished":
        state = f"{cell.status}: {cell.reason}" if cell.reason else cell.status
        raise RegistryError(f"only a finished cell has a model. Cell {cell.id}: {state}")
    if cell.imported:
        raise RegistryError(
            f"cell {cell.id} was imported from {cell.imported}, and weights do not travel in archives; {ANEW}"
        )
    for name in (cell.id, *cell.spec["tasks"]):
        if not is_name(name):
            raise RegistryError(f"cell {cell.id!r}: {name!r} cannot name a file; taskloom did not write that")
    best = folder / "cells" / cell.id / "best"
    if not best.resolve().is_relative_to(folder.resolve()):
        raise RegistryError(f"{best} is a link that leads out of the registry, to {best.resolve()}; it is not read")


def choose_tasks(tasks: Mapping[str, Task], only: Sequence[str]) -> list[str]:
    """Return the tasks to predict, in the order of the run: those in ``only``, or all that predict."""
    able = [name for name, task in tasks.items() if task.predicts]
    for name in only:
        if name not in tasks:
            raise TaskloomError(unknown("task", name, tasks, where="tasks of the cell"))
        if name not in able:
            why = "its head gives only vectors" if tasks[name].head.gives == "vectors" else "its data have no labels"
            raise TaskloomError(f"task {name!r} predicts nothing: {why} (tasks that do: {', '.join(able) or 'none'})")
    if not able:
        raise TaskloomError("no task of the cell predicts anything: they have no labels, or heads that give vectors")
    return [name for name in able if not only or name in only]


def in_batches(rows: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the rows in lists of ``size``.

    >>> list(in_batches("abc", 2))
    [['a', 'b'], ['c']]
    """
    if not isinstance(size, int | np.integer) or size < 1:
        raise TaskloomError(f"batch_size should be at least 1, and an integer. Found {size!r}.")
    left = iter(rows)
    while batch := list(islice(left, size)):
        yield batch


def _rows(task: Task, texts: Iterable[str] | Iterable[Sequence[str]]) -> Iterator[tuple[str, ...]]:
    """Yield every row as a tuple of as many texts as the task's head reads."""
    needed = COLUMNS[task.head.reads]
    wanted = "strings" if needed == 1 else f"tuples of {count(needed, 'string')}, as head {task.head.name!r} reads"
    if isinstance(texts, str):
        raise TaskloomError(f"texts should be several {wanted}. Found one string; put it into a list.")
    if not isinstance(texts, Iterable):
        raise TaskloomError(f"texts should be several {wanted}. Found {texts!r:.60}.")
    for row in texts:
        parts = tuple(row) if isinstance(row, tuple | list) else (row,)
        if len(parts) != needed or not all(isinstance(part, str) for part in parts):
            raise TaskloomError(f"texts of task {task.name!r} should be {wanted}. Found {str(row)[:60]!r}.")
        try:
            yield tuple(utf8(part, "a text") for part in parts)
        except UnreadableError:
            raise TaskloomError(f"texts should be UTF-8. Found {str(row)[:60]!r}.") from None


def _changed_versions(cell: CellRecord, catalogue: Catalogue) -> list[str]:
    """List packages of the encoder and tasks whose version has changed: other code may predict differently."""
    used = catalogue.versions({"encoder": cell.spec["encoder"], "tasks": cell.spec["tasks"]})
    return [
        f"cell {cell.id[:12]} was trained with {name} {cell.versions[name]}; {version} is installed"
        for name, version in used.items()
        if cell.versions.get(name, version) != version
    ]
