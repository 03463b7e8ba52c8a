"""Scoring a split: predictions, the task's metric, and one overall score."""

from collections.abc import Callable, Mapping
from math import isfinite
from numbers import Real
from statistics import fmean

import numpy as np
import torch
from numpy.typing import NDArray

from taskloom.core import OutOfMemory, TrainingError
from taskloom.core.work import is_out_of_memory
from taskloom.registry.installed.task import Task
from taskloom.runs.training.feed import Feed
from taskloom.runs.training.machine import release_memory
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
        found = _fitting(model, task, feed, rows)
        if found is not None:
            predicted[rows] = found
        elif len(rows) > 1:
            release_memory()
            waiting += [rows[len(rows) // 2 :], rows[: len(rows) // 2]]
        else:
            raise OutOfMemory(task, micro_batch=1, batch=1, where=" while scoring")
        alive()
    return predicted


def _fitting(model: Model, task: str, feed: Feed, rows: NDArray[np.int64]) -> NDArray[np.float64] | None:
    """The predictions for some rows, or None if they do not fit into memory."""
    try:
        with torch.inference_mode():
            score = model.forward_pass(task, feed.tokens(rows))(None).score
            if not score.isfinite().all():
                head = model.head(task).name
                raise TrainingError(f"the scores of task {task!r} are not finite (head {head!r})")
            decided: NDArray[np.float64] = model.head(task).decide(score).double().cpu().numpy()
            return decided
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    return None


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
    """The task's metric on a labelled split; one that is not finite is an error."""
    assert feed.examples.labels is not None
    score, name = task.metric(predicted, feed.examples.labels), f"the metric {task.metric.name!r} of task {task.name!r}"
    if isinstance(score, bool) or not isinstance(score, Real):  # numpy's numbers are some
        raise TrainingError(f"{name} should give a number. Found {type(score).__name__} {score!s:.40}.")
    if not isfinite(score):
        raise TrainingError(f"{name} is {score}")
    return float(score)


def overall(scores: Mapping[str, float], tasks: Mapping[str, Task], how: str) -> float:
    """One score for a run: the mean over tasks; ``normalised`` first maps correlations to (r + 1)/2."""
    return fmean(
        (score + 1) / 2 if how == "normalised" and tasks[name].metric.correlation else score
        for name, score in scores.items()
    )
