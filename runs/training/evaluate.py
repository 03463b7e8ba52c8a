"""Scoring a split: predictions, the task's metric, and one overall score."""

from collections.abc import Callable, Mapping
from math import isfinite
from numbers import Real
from statistics import fmean

import numpy as np
import torch
from numpy.typing import NDArray

from taskloom.core import OutOfMemory, TrainingError
from taskloom.registry.installed.task import Task
from taskloom.runs.training.feed import Feed
from taskloom.runs.training.machine import annotate_oom, release_memory
from taskloom.runs.training.model import Model

#: Tokens in one forward pass: enough to fill the cores, few enough for a small GPU.
TOKENS = 4096


def predictions(model: Model, task: str, feed: Feed, alive: Callable[[], None] = lambda: None) -> NDArray[np.float64]:
    """What the model predicts for every row of a split, in the data's own units, [n].

    Rows of like length share a batch: it changes the speed, not the result. A batch that does not fit into memory is
    cut in two. ``alive`` is called after every batch.
    """
    predicted = np.empty(len(feed))
    waiting = _batches(feed.lengths)[::-1]
    model.eval()
    while waiting:
        rows = waiting.pop()
        try:
            with annotate_oom(task, micro_batch=len(rows), batch=len(rows), where=" while scoring"):
                predicted[rows] = _predict(model, task, feed, rows)
        except OutOfMemory:
            if len(rows) == 1:
                raise
            release_memory()
            waiting += [rows[len(rows) // 2 :], rows[: len(rows) // 2]]
        alive()
    return predicted


@torch.inference_mode()
def _predict(model: Model, task: str, feed: Feed, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    score, head = model.forward_pass(task, feed.tokens(rows))(None).score, model.head(task)
    if not score.isfinite().all():
        raise TrainingError(f"the scores of task {task!r} are not finite (head {head.name!r})")
    decided: NDArray[np.float64] = head.decide(score).double().cpu().numpy()
    return decided


def _batches(lengths: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    order = np.argsort(lengths, kind="stable")
    batches, start, tokens = [], 0, 0
    for place, row in enumerate(order):
        tokens += int(lengths[row]) + 3  # special tokens
        if tokens > TOKENS and place > start:
            batches.append(order[start:place])
            start, tokens = place, int(lengths[row]) + 3
    return [*batches, order[start:]] if len(order) else batches


def score_of(task: Task, feed: Feed, predicted: NDArray[np.float64]) -> float:
    """The task's metric on a labelled split; one that is not a finite number is an error."""
    assert feed.examples.labels is not None
    score = task.metric(predicted, feed.examples.labels)
    if isinstance(score, bool) or not isinstance(score, Real) or not isfinite(score):  # numpy's numbers are Real
        name, found = f"the metric {task.metric.name!r} of task {task.name!r}", f"{type(score).__name__} {score!s:.40}"
        raise TrainingError(f"{name} should give a finite number. Found {found}.")
    return float(score)


def overall(scores: Mapping[str, float], tasks: Mapping[str, Task], how: str) -> float:
    """One score for a run: the mean over tasks; ``normalised`` first maps correlations to (r + 1)/2."""
    return fmean(
        (score + 1) / 2 if how == "normalised" and tasks[name].metric.correlation else score
        for name, score in scores.items()
    )
