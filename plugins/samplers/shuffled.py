"""Batch composition: rows in random order."""

from numpy.random import Generator

from taskloom.core import Pool, Rows


class Shuffled:
    """Every row exactly once in a pass, in random order; the last batch is short where rows do not divide evenly."""

    def __init__(self, pool: Pool, batch_size: int) -> None:
        self.size, self.batch_size = pool.size, batch_size
        self.batches = -(-pool.size // batch_size)

    def compose(self, random: Generator) -> list[Rows]:
        order = random.permutation(self.size)
        return [order[start : start + self.batch_size] for start in range(0, self.size, self.batch_size)]
