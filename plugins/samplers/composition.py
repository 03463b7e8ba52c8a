"""How the rows of one pass over a task's data are put into batches."""

from typing import Literal

import numpy as np
from numpy.random import Generator

from taskloom.core import DataError, Pool, Rows

Composition = Literal["shuffled", "one_positive", "no_duplicates"]
RunOut = Literal["stop", "repeat"]


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
    out, no row comes twice, and what is left over has its chance in the next pass, which is drawn anew. Under
    ``repeat`` it has max(P, ⌈N/k⌉): every row comes at least once, the side that runs out is shuffled again, and
    still no row is twice in one batch.
    """

    def __init__(self, task: str, pool: Pool, batch_size: int, *, positive_from: float, run_out: RunOut) -> None:
        if pool.labels is None:
            raise DataError(f"'one_positive' batches need the labels of task {task!r}, which has none")
        positive = pool.labels >= positive_from
        self.positives, self.negatives = np.flatnonzero(positive), np.flatnonzero(~positive)
        self.others = batch_size - 1
        found = len(self.positives), len(self.negatives)
        if self.others < 1 or found[0] < 1 or found[1] < self.others:
            raise DataError(
                f"'one_positive' batches of {batch_size} need 1 positive and at least {max(self.others, 1)} negative "
                f"rows of task {task!r}. Found {found[0]} with a label of at least {positive_from:g} and {found[1]} "
                "below; change batch_size or positive_from."
            )
        if run_out == "stop":
            self.batches = min(found[0], found[1] // self.others)
        else:
            self.batches = max(found[0], -(-found[1] // self.others))

    def compose(self, random: Generator) -> list[Rows]:
        firsts = _drawn(self.positives, self.batches, 1, random)  # [batches, 1]
        rest = _drawn(self.negatives, self.batches, self.others, random)  # [batches, k]
        return list(np.concatenate([firsts, rest], 1))


def _drawn(rows: Rows, groups: int, size: int, random: Generator) -> Rows:
    """Shuffled rows in groups, shuffled again whenever they run out, no row twice in a group: [groups, size]."""
    turns = -(-groups * size // len(rows))
    drawn = random.permuted(np.tile(rows, (turns, 1)), axis=1)  # [turns, rows]
    for turn in range(1, turns):
        begun = turn * len(rows) % size
        if begun:  # a group goes on from the last turn: what it has already waits until the end of this one
            again = np.isin(drawn[turn], drawn[turn - 1, -begun:])
            drawn[turn] = np.concatenate([drawn[turn][~again], drawn[turn][again]])
    return drawn.reshape(-1)[: groups * size].reshape(groups, size)
