"""One task's batches, pass after pass without end."""

from itertools import pairwise

import numpy as np
from numpy.random import Generator, Philox

from taskloom.core import Rows, TaskBatch, derive_seed
from taskloom.plugins.samplers.composition import OnePositive, Shuffled
from taskloom.plugins.samplers.no_duplicates import NoDuplicates

#: Makes the batches of one pass after another; every pass has the same number of them.
Composer = Shuffled | OnePositive | NoDuplicates
#: Batches whose rows are sorted by length together: more would save little padding and mix rows less.
WINDOW = 64


class Stream:
    """One task's batches; with ``lengths`` (tokens of each row), rows of similar length share a batch.

    The order of pass k is drawn from a seed made of the sampler's seed, the task and k alone, so the stream's state
    is two numbers.
    """

    def __init__(self, task: str, composer: Composer, lengths: Rows | None, seed: int) -> None:
        self.task, self.composer, self.lengths, self.seed = task, composer, lengths, seed
        self.batches = composer.batches
        self.passed, self.place = 0, 0  # passes finished, batches of this pass given
        self.mark_epochs(1)
        self._order: list[Rows] | None = None

    @property
    def given(self) -> int:
        """Batches given so far."""
        return self.passed * self.batches + self.place

    def mark_epochs(self, every: int, first: int = 0) -> None:
        """Epochs end before batches first, first + every, …: no row is moved across such an end."""
        self.every, self.first = max(every, 1), first

    def next(self) -> TaskBatch:
        """The next batch; after a pass's last one a new pass begins."""
        if self._order is None:
            self._order = self._compose()
        batch = TaskBatch(self.task, self._order[self.place])
        self.place += 1
        if self.place == self.batches:
            self.go_to(self.passed + 1, 0)
        return batch

    def go_to(self, passed: int, place: int) -> None:
        self.passed, self.place, self._order = passed, place, None

    def _compose(self) -> list[Rows]:
        random = Generator(Philox(derive_seed(self.seed, "rows", self.task, self.passed)))
        batches = self.composer.compose(random)
        if self.lengths is None:
            return batches
        first = (self.first - self.passed * self.batches) % self.every
        edges = sorted({0, len(batches), *range(first, self.batches, self.every)})
        result: list[Rows] = []
        for start, end in pairwise(edges):
            for cut in range(start, end, WINDOW):
                result += _by_length(batches[cut : min(cut + WINDOW, end)], self.lengths, random)
        return result


def _by_length(batches: list[Rows], lengths: Rows, random: Generator) -> list[Rows]:
    """The same rows in as many batches of similar length, in random order; a short last batch stays last."""
    size, short = len(batches[0]), len(batches[-1])
    rows = np.concatenate(batches)
    rows = rows[np.argsort(lengths[rows], kind="stable")]
    if short == size:
        tail: list[Rows] = []
    else:
        # Any run of the sorted rows may be the short one: always the longest texts would be a bias.
        cut = int(random.integers(len(rows) - short + 1))
        tail, rows = [rows[cut : cut + short]], np.delete(rows, np.s_[cut : cut + short])
    full = [rows[start : start + size] for start in range(0, len(rows), size)]
    return [full[place] for place in random.permutation(len(full))] + tail
