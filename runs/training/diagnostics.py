"""Gradient diagnostics of an epoch: conflicts between tasks, what the combiner removed, norms."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

#: Steps of an epoch that are recorded one by one; means are over all steps.
POINTS = 50


@dataclass
class Diagnostics:
    """Sums over the steps of an epoch, as plain values: they are part of a checkpoint.

    For each pair of tasks the cosine of their gradients, and whether they conflict (it is negative). ``removed`` is the
    sine of the angle between the update and the plain sum of the gradients: 0 if the combiner only scales, 1 if nothing
    of the sum is left. ``ratio`` is that of the largest norm of a task's gradient to the smallest.
    """

    cosines: dict[str, float] = field(default_factory=dict)
    conflicts: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    removed: float = 0.0
    ratio: float = 0.0
    observed: int = 0
    norm: float = 0.0
    norms: int = 0
    points: list[list[Any]] = field(default_factory=list)  # step, then the cosine of each pair
    step: int = 0
    rate: float = 0.0  # the learning rate of that step
    due: bool = False  # whether this step is recorded by itself

    def begin_step(self, step: int, steps: int, rate: float) -> None:
        """Set the next step, counted from 0, the number of steps and the learning rate."""
        self.rate, self.step, self.due = rate, step, step % max(1, math.ceil(steps / POINTS)) == 0

    def add_gramian(self, tasks: Sequence[str], gramian: Tensor, weights: Tensor) -> None:
        """Add a step's Gramian [T, T] and the weights [T] of its update."""
        rows, w = gramian.tolist(), weights.tolist()
        norms = [math.sqrt(max(rows[i][i], 0.0)) for i in range(len(rows))]
        if len(rows) < 2 or min(norms) == 0:
            return
        shown: dict[str, float] = {}
        for i in range(len(rows)):
            for j in range(i):
                pair = "+".join(sorted((tasks[i], tasks[j])))
                shown[pair] = cosine = rows[i][j] / (norms[i] * norms[j])
                self.cosines[pair] = self.cosines.get(pair, 0.0) + cosine
                self.conflicts[pair] = self.conflicts.get(pair, 0) + (cosine < 0)
                self.counts[pair] = self.counts.get(pair, 0) + 1
        total = [sum(row) for row in rows]  # the inner product of each gradient with the sum of all
        inner = sum(a * b for a, b in zip(w, total, strict=True))
        update = sum(a * b * x for a, row in zip(w, rows, strict=True) for b, x in zip(w, row, strict=True))
        product = update * sum(total)
        agreement = min(1.0, abs(inner) / math.sqrt(product)) if product > 0 else 1.0
        # Of rounding errors a cosine of almost 1 has a sine of 1e-8, which is nothing.
        self.removed += math.sqrt(1 - agreement**2) if 1 - agreement > 1e-12 else 0.0
        self.ratio += max(norms) / min(norms)
        self.observed += 1
        if self.due:
            self.points.append([self.step, shown])

    def add_norm(self, norm: float) -> None:
        """Add the norm of a step's update before it is clipped."""
        self.norm, self.norms = self.norm + norm, self.norms + 1

    def report(self) -> dict[str, Any]:
        """The figures of the epoch; without pairs of tasks if the combiner has no per-task gradients."""
        figures: dict[str, Any] = {"learning_rate": self.rate}
        if self.norms:
            figures["gradient_norm"] = self.norm / self.norms
        if self.observed:
            figures["pairs"] = {
                pair: {"cosine": self.cosines[pair] / count, "conflicts": self.conflicts[pair] / count}
                for pair, count in self.counts.items()
            }
            figures["norm_ratio"] = self.ratio / self.observed
            figures["removed"] = self.removed / self.observed
            figures["points"] = self.points
        return figures
