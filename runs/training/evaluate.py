"""Scoring a split: predictions, the task's metric, and one overall score."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import isfinite
from numbers import Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from taskloom.core import Examples, OutOfMemory, Split, TrainingError
from taskloom.registry.installed.task import Task
from taskloom.registry.results.artifacts import Artifacts
from taskloom.registry.results.scores import TaskFacts, save_examples, save_scores
from taskloom.runs.training.feed import Feed
from taskloom.runs.training.machine import annotate_oom, release_memory
from taskloom.runs.training.model import Model

#: Tokens in one forward pass: enough to fill the cores, few enough for their caches. A GPU takes several times as many.
TOKENS, GPU_TIMES = 1024, 4


@dataclass(frozen=True, eq=False)
class Predicted:
    """What a model gave for every row of a split: the head's ``score``, and what it ``decided`` in the data's units."""

    score: NDArray[np.float32]  # [n] or [n, classes]
    decided: NDArray[np.float64]  # [n]


def predictions(
    model: Model,
    task: str,
    feed: Feed,
    alive: Callable[[], None] = lambda: None,
    *,
    chosen: NDArray[np.int64] | None = None,
) -> Predicted:
    """What the model gives for every row of a split, or for the ``chosen`` ones, which are in ascending order.

    Rows of like length share a batch: it changes the speed, not the result. On a CPU each thread has its own batches,
    which keeps them busier than if all worked on one. A batch that does not fit into memory is cut in two. ``alive`` is
    called after every batch.
    """
    every = np.arange(len(feed)) if chosen is None else chosen
    scores, decided = np.empty(0, np.float32), np.empty(len(every))
    most = TOKENS if feed.device.type == "cpu" else GPU_TIMES * TOKENS
    alone = feed.device.type != "cpu" or not model.encoder.parallel
    threads = 1 if alone else torch.get_num_threads()
    waiting = _batches(feed.lengths[every], most, threads)  # the last ones, of the longest rows, are taken first
    running: deque[tuple[NDArray[np.int64], Callable[[], Predicted]]] = deque()
    model.eval()
    with _side_by_side(threads) as begin:
        while waiting or running:
            while waiting and len(running) < 2 * threads:  # a thread that is done finds the next one ready
                rows = waiting.pop()
                running.append((rows, begin(_predict, model, task, feed, every[rows])))
            rows, result = running.popleft()
            try:
                found = result()
            except OutOfMemory:
                if len(rows) == 1:
                    raise
                release_memory()
                waiting += [rows[len(rows) // 2 :], rows[: len(rows) // 2]]
            else:
                if not len(scores):
                    scores = np.empty((len(every), *found.score.shape[1:]), np.float32)
                scores[rows], decided[rows] = found.score, found.decided
            alive()
    return Predicted(scores, decided)


@contextmanager
def _side_by_side(threads: int) -> Iterator[Callable[..., Callable[[], Predicted]]]:
    """How to begin a call whose result is asked for later: each in a thread of its own, or in this one."""
    if threads <= 1:
        yield lambda call, *given: partial(call, *given)
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield lambda call, *given: pool.submit(call, *given).result
    finally:
        torch.set_num_threads(before)


@torch.inference_mode()
def _predict(model: Model, task: str, feed: Feed, rows: NDArray[np.int64]) -> Predicted:
    with annotate_oom(task, micro_batch=len(rows), batch=len(rows), where=" while scoring"):
        return _score(model, task, feed, rows)


def _score(model: Model, task: str, feed: Feed, rows: NDArray[np.int64]) -> Predicted:
    score, head = model.forward_pass(task, feed.tokens(rows))(None).score, model.head(task)
    found = Predicted(score.float().cpu().numpy(), head.decide(score).double().cpu().numpy())
    if not np.isfinite(found.score).all():
        raise TrainingError(f"the scores of task {task!r} are not finite (head {head.name!r})")
    return found


def _batches(lengths: NDArray[np.int64], most: int, threads: int) -> list[NDArray[np.int64]]:
    """Rows in order of length, in batches of about as many tokens each and as many for every thread."""
    order = np.argsort(lengths, kind="stable")
    ends = np.cumsum(lengths[order] + 3)  # special tokens
    total = int(ends[-1]) if len(ends) else 0
    count = threads * max(1, -(-total // (threads * most)))
    cuts = np.searchsorted(ends, np.arange(1, count) * (total / count), side="right")
    return [rows for rows in np.split(order, cuts) if len(rows)]


def score_of(task: Task, predicted: Predicted, labels: NDArray[np.float64]) -> float:
    """The task's metric on labelled rows; one that is not a finite number is an error."""
    score = task.metric(predicted.decided, labels)
    if isinstance(score, bool) or not isinstance(score, Real) or not isfinite(score):  # numpy's numbers are Real
        name, found = f"the metric {task.metric.name!r} of task {task.name!r}", f"{type(score).__name__} {score!s:.40}"
        raise TrainingError(f"{name} should give a finite number. Found {found}.")
    return float(score)


def store_scores(
    artifacts: Artifacts,
    cell: str,
    split: Split,
    tasks: Mapping[str, Task],
    predicted: Mapping[str, Predicted],
    examples: Mapping[str, Examples],
    train: Mapping[str, Examples],
) -> None:
    """Keep what a model gave for a labelled split, with what every example does to the metric."""
    facts: dict[str, TaskFacts] = {}
    columns: dict[str, dict[str, NDArray[Any]]] = {}
    for name, each in predicted.items():
        task, labels = tasks[name], examples[name].labels
        assert labels is not None
        (low, high), (constant, floor) = task.metric.range, _best_constant(task, labels)
        facts[name] = TaskFacts(
            save_examples(artifacts, examples[name]),
            task.metric.name,
            task.metric.correlation,
            task.labels.classes,
            count_seen(examples[name], train[name]),
            task.labels.names,
            low=low if isfinite(low) else None,
            high=high if isfinite(high) else None,
            constant=constant,
            floor=floor,
            logit=task.head.is_logit,
        )
        influence = np.asarray(task.metric.influence(each.decided, labels), np.float64)
        if influence.shape != labels.shape or not np.isfinite(influence).all():
            found = f"influence() of the metric {task.metric.name!r}"
            raise TrainingError(f"{found} should give {len(labels)} finite numbers, one per example")
        columns[name] = {"score": each.score, "predicted": each.decided, "influence": influence}
    save_scores(artifacts.cell(cell), split, facts, columns)


def _best_constant(task: Task, labels: NDArray[np.float64]) -> tuple[float, float] | tuple[None, None]:
    """The best constant prediction and its score; a metric need not be able to judge one."""
    with np.errstate(all="ignore"):
        try:
            constant, score = task.metric.best_constant(labels, task.labels.classes)
        except Exception:
            return None, None
    return (constant, score) if isfinite(constant) and isfinite(score) else (None, None)


def count_seen(examples: Examples, train: Examples) -> int:
    """How many examples have all their texts in common with one of the training data."""
    known = set(zip(*train.columns, strict=True))
    return sum(texts in known for texts in zip(*examples.columns, strict=True))
