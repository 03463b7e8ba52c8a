"""How a task's rows become batches, pass after pass."""

from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.random import Generator, Philox

from taskloom.core import DataError, Pool, Rows, TaskBatch, derive_seed
from taskloom.plugins.samplers.no_duplicates import NoDuplicates

Composition = Literal["shuffled", "one_positive", "no_duplicates"]
RunOut = Literal["stop", "repeat", "as_shuffled"]


class Shuffled:
    """Every row exactly once in a pass, in random order; the last batch is short where rows do not divide evenly."""

    def __init__(self, pool: Pool, batch_size: int) -> None:
        self.size, self.batch_size = pool.size, batch_size
        self.batches = -(-pool.size // batch_size)

    def compose(self, random: Generator) -> list[Rows]:
        order = random.permutation(self.size)
        return [order[start : start + self.batch_size] for start in range(0, self.size, self.batch_size)]


class OnePositive:
    """Every batch is one positive row, which comes first, and k = batch size − 1 negative ones.

    With P positive and N negative rows a pass has min(P, ⌊N/k⌋) batches under ``stop``: it ends where one side runs
    out, no row occurs twice, and the next pass draws from all rows again. Under ``repeat`` it has max(P, ⌈N/k⌉): every
    row occurs at least once, the side that runs out is shuffled again, and still no row is twice in one batch. Under
    ``as_shuffled`` it has as many as ``Shuffled``, ⌈(P + N)/(k + 1)⌉, even if some rows have not occurred by then.
    """

    def __init__(self, task: str, pool: Pool, batch_size: int, *, positive_from: float, run_out: RunOut) -> None:
        if pool.labels is None:
            raise DataError(f"'one_positive' batches need the labels of task {task!r}, which has none")
        positive = pool.labels >= positive_from
        self.positives, self.negatives = np.flatnonzero(positive), np.flatnonzero(~positive)
        self.others = batch_size - 1
        positives, negatives = len(self.positives), len(self.negatives)
        if self.others < 1 or positives < 1 or negatives < self.others:
            raise DataError(
                f"'one_positive' batches of {batch_size} need 1 positive and at least {max(self.others, 1)} negative "
                f"rows of task {task!r}. Found {positives} with a label of at least {positive_from:g} and {negatives} "
                "below; change batch_size or positive_from."
            )
        if run_out == "stop":
            self.batches = min(positives, negatives // self.others)
        elif run_out == "repeat":
            self.batches = max(positives, -(-negatives // self.others))
        else:
            self.batches = -(-pool.size // batch_size)

    def compose(self, random: Generator) -> list[Rows]:
        firsts = _drawn(self.positives, self.batches, 1, random)  # [batches, 1]
        rest = _drawn(self.negatives, self.batches, self.others, random)  # [batches, k]
        return list(np.concatenate([firsts, rest], 1))


def _drawn(rows: Rows, groups: int, size: int, random: Generator) -> Rows:
    """Groups of shuffled rows, shuffled again whenever they run out, no row twice in a group: [groups, size]."""
    turns = -(-groups * size // len(rows))
    drawn = random.permuted(np.tile(rows, (turns, 1)), axis=1)  # [turns, rows]
    for turn in range(1, turns):
        begun = turn * len(rows) % size
        if begun:  # a group continues from the last turn: the rows it already has move to the end of this one
            repeated = np.isin(drawn[turn], drawn[turn - 1, -begun:])
            drawn[turn] = np.concatenate([drawn[turn][~repeated], drawn[turn][repeated]])
    return drawn.reshape(-1)[: groups * size].reshape(groups, size)


#: Composes the batches of a pass; every pass has the same number of them.
Composer = Shuffled | OnePositive | NoDuplicates
#: Number of batches whose rows are sorted by length together: more would save little padding and mix rows less.
WINDOW = 64


class Stream:
    """One task's batches; with ``lengths`` (tokens of each row), rows of similar length share a batch.

    The seed of pass k is derived from the sampler's seed, the task and k alone, so the stream's state is two numbers.
    """

    def __init__(self, task: str, composer: Composer, lengths: Rows | None, seed: int) -> None:
        self.task, self.composer, self.lengths, self.seed = task, composer, lengths, seed
        self.batches = composer.batches
        self.passes, self.batch_index = 0, 0  # finished passes, and the next batch of this one
        self.mark_epochs(1)
        self._order: list[Rows] | None = None

    @property
    def drawn(self) -> int:
        """Batches drawn so far."""
        return self.passes * self.batches + self.batch_index

    def mark_epochs(self, every: int, first: int = 0) -> None:
        """Let epochs end before batches first, first + every, …: no row is moved across such an end."""
        self.every, self.first = max(every, 1), first

    def next(self) -> TaskBatch:
        """The next batch; a new pass begins after the last one of a pass."""
        if self._order is None:
            self._order = self._compose()
        batch = TaskBatch(self.task, self._order[self.batch_index])
        self.batch_index += 1
        if self.batch_index == self.batches:
            self.go_to(self.passes + 1, 0)
        return batch

    def go_to(self, passes: int, batch_index: int) -> None:
        self.passes, self.batch_index, self._order = passes, batch_index, None

    def _compose(self) -> list[Rows]:
        random = Generator(Philox(derive_seed(self.seed, "rows", self.task, self.passes)))
        batches = self.composer.compose(random)
        if self.lengths is None:
            return batches
        first = (self.first - self.passes * self.batches) % self.every
        edges = sorted({0, len(batches), *range(first, self.batches, self.every)})
        bucketed: list[Rows] = []
        for start, end in pairwise(edges):
            for cut in range(start, end, WINDOW):
                bucketed += _by_length(batches[cut : min(cut + WINDOW, end)], self.lengths, random)
        return bucketed


def _by_length(batches: list[Rows], lengths: Rows, random: Generator) -> list[Rows]:
    """The same rows in as many batches of similar lengths, in random order; a short last batch stays last."""
    size, short = len(batches[0]), len(batches[-1])
    rows = np.concatenate(batches)
    rows = rows[np.argsort(lengths[rows], kind="stable")]
    if short == size:
        tail: list[Rows] = []
    else:
        # The short batch is drawn from anywhere in the sorted rows: always the longest texts would be a bias.
        cut = int(random.integers(len(rows) - short + 1))
        tail, rows = [rows[cut : cut + short]], np.delete(rows, np.s_[cut : cut + short])
    full = [rows[start : start + size] for start in range(0, len(rows), size)]
    return [full[index] for index in random.permutation(len(full))] + tail
