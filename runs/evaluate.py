"""Scoring a split: predictions, the task's metric, and one overall score."""

from collections.abc import Mapping
from statistics import fmean

import numpy as np
import torch
from numpy.typing import NDArray

from taskloom.core import Task, predict
from taskloom.runs.feed import Feed
from taskloom.runs.model import Model

#: Tokens in one forward pass: enough to fill the cores, few enough for a small GPU.
TOKENS = 4096


def predictions(model: Model, task: str, feed: Feed) -> NDArray[np.float64]:
    """What the model predicts for every row of a split, in the data's own units, [n].

    Rows of like length share a batch: it changes the speed, not the result.
    """
    head = model.head(task)
    predicted = np.empty(len(feed))
    model.eval()
    with torch.inference_mode():
        for rows in _batches(feed.lengths):
            score = predict(model.encoder, head, feed.tokens(rows)).score
            predicted[rows] = head.decide(score).double().cpu().numpy()
    return predicted


def _batches(lengths: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    order = np.argsort(lengths, kind="stable")
    batches, start, tokens = [], 0, 0
    for place, row in enumerate(order):
        tokens += int(lengths[row]) + 3  # special tokens
        if tokens > TOKENS and place > start:
            batches.append(order[start:place])
            start, tokens = place, int(lengths[row]) + 3
    return [*batches, order[start:]] if len(order) else batches


def overall(scores: Mapping[str, float], tasks: Mapping[str, Task], how: str) -> float:
    """One score for a run: the mean over tasks; ``normalised`` first maps correlations to (r + 1)/2."""
    return fmean(
        (score + 1) / 2 if how == "normalised" and tasks[name].metric.correlation else score
        for name, score in scores.items()
    )
