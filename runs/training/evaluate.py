"""Scores a split: predictions, the task's metric and stored scores."""

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
from taskloom.core.errors import NotFiniteError
from taskloom.registry.installed.task import Task
from taskloom.registry.results.artifacts import Artifacts
from taskloom.registry.results.scores import TaskFacts, judge, save_examples, save_scores
from taskloom.runs.training.feed import Feed
from taskloom.runs.training.machine import annotate_oom, release_memory
from taskloom.runs.training.model import Model

#: Tokens in one forward pass: enough to fill the cores, few enough for their caches. A GPU takes several times as many.
TOKENS, GPU_TIMES = 1024, 4


@dataclass(frozen=True, eq=False)
class Predicted:
    """A model's predictions of the rows of a split: the head's ``score``, and the decision in the data's units."""

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
    """Predict every row of a split, or the ``chosen`` ones, which are in ascending order.

    Rows of similar length share a batch, which changes the speed and not the predictions. On a CPU each thread has its
    own batches, which is faster than all threads on one. A batch that does not fit into memory is split in two.
    ``alive`` is called after every batch.
    """
    selected = np.arange(len(feed)) if chosen is None else chosen
    scores, decided = np.empty(0, np.float32), np.empty(len(selected))
    max_tokens = TOKENS if feed.device.type == "cpu" else GPU_TIMES * TOKENS
    sequential = feed.device.type != "cpu" or not model.encoder.parallel
    threads = 1 if sequential else torch.get_num_threads()
    waiting = _batches(feed.lengths[selected], max_tokens, threads)  # the last ones, with the longest rows, run first
    running: deque[tuple[NDArray[np.int64], Callable[[], Predicted]]] = deque()
    model.eval()
    with _side_by_side(threads) as begin:
        while waiting or running:
            while waiting and len(running) < 2 * threads:  # so that no thread has to wait for its next batch
                rows = waiting.pop()
                running.append((rows, begin(_predict, model, task, feed, selected[rows])))
            rows, wait = running.popleft()
            try:
                predicted = wait()
            except OutOfMemory:
                if len(rows) == 1:
                    raise
                release_memory()
                waiting += [rows[len(rows) // 2 :], rows[: len(rows) // 2]]
            else:
                if not len(scores):
                    scores = np.empty((len(selected), *predicted.score.shape[1:]), np.float32)
                scores[rows], decided[rows] = predicted.score, predicted.decided
            alive()
    return Predicted(scores, decided)


@contextmanager
def _side_by_side(threads: int) -> Iterator[Callable[..., Callable[[], Predicted]]]:
    """A function that begins a call and returns a function for its result; in a thread pool if ``threads`` > 1."""
    if threads <= 1:
        yield lambda call, *arguments: partial(call, *arguments)
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield lambda call, *arguments: pool.submit(call, *arguments).result
    finally:
        torch.set_num_threads(before)


@torch.inference_mode()
def _predict(model: Model, task: str, feed: Feed, rows: NDArray[np.int64]) -> Predicted:
    with annotate_oom(task, micro_batch=len(rows), batch=len(rows), where=" while scoring"):
        return _score(model, task, feed, rows)


def _score(model: Model, task: str, feed: Feed, rows: NDArray[np.int64]) -> Predicted:
    score, head = model.forward_pass(task, feed.tokens(rows))(None).score, model.head(task)
    predicted = Predicted(score.float().cpu().numpy(), head.decide(score).cpu().double().numpy())
    if not np.isfinite(predicted.score).all():
        raise NotFiniteError(f"the scores of task {task!r} are not finite (head {head.name!r})")
    return predicted


def _batches(lengths: NDArray[np.int64], max_tokens: int, threads: int) -> list[NDArray[np.int64]]:
    """Rows sorted by length, in batches with about equal numbers of tokens, as many for every thread."""
    order = np.argsort(lengths, kind="stable")
    ends = np.cumsum(lengths[order] + 3)  # special tokens
    total = int(ends[-1]) if len(ends) else 0
    count = threads * max(1, -(-total // (threads * max_tokens)))
    cuts = np.searchsorted(ends, np.arange(1, count) * (total / count), side="right")
    return [rows for rows in np.split(order, cuts) if len(rows)]


def score_of(task: Task, predicted: Predicted, labels: NDArray[np.float64]) -> float:
    """The task's metric on labelled rows; one that is not a finite number is an error."""
    score = task.metric(predicted.decided, labels)
    if isinstance(score, bool) or not isinstance(score, Real) or not isfinite(score):  # numpy's numbers are Real
        name = f"the metric {task.metric.name!r} of task {task.name!r}"
        returned = f"{type(score).__name__} {score!s:.40}"
        raise TrainingError(f"{name} should give a finite number. Found {returned}.")
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
    """Store a model's predictions of a labelled split with the influence of every example on the metric."""
    facts: dict[str, TaskFacts] = {}
    columns: dict[str, dict[str, NDArray[Any]]] = {}
    for name, output in predicted.items():
        task, labels = tasks[name], examples[name].labels
        assert labels is not None
        kept = save_examples(artifacts, examples[name])
        judged, influence = judge(task.metric, output.decided, labels, task.labels.classes)
        facts[name] = TaskFacts(
            examples=kept.key,
            digest=kept.digests[-1],
            classes=task.labels.classes,
            seen=count_seen(examples[name], train[name]),
            names=task.labels.names,
            logit=task.head.is_logit,
            **judged,
        )
        columns[name] = {"score": output.score, "predicted": output.decided, "influence": influence}
    save_scores(artifacts.cell(cell), split, facts, columns)


def count_seen(examples: Examples, train: Examples) -> int:
    """The number of examples whose texts are all those of a training example."""
    known = set(zip(*train.columns, strict=True))
    return sum(texts in known for texts in zip(*examples.columns, strict=True))
