"""Batch composition: no text twice in a batch."""

from collections import Counter

import numpy as np
from numpy.random import Generator, Philox

from taskloom.core import Pool, Rows

#: Exchanges tried for a row before it goes to the end of the pass.
TRIES = 16
#: New draws before a pass falls back on the first one.
DRAWS = 3


class NoDuplicates:
    """Every row exactly once in a pass, and in no batch two rows that share a text, in any column.

    The rows are shuffled and cut into batches; a row that repeats a text of its batch is exchanged with a random row
    of another batch if both then fit. The few rows that cannot be exchanged form batches of their own at the end of
    the pass. So where texts seldom repeat, all batches but the last are full; where one text is in many rows, some
    batches are smaller. A row with the same text in both columns is not a duplicate of itself.

    Every pass has as many batches as one drawn with a fixed seed, so that the length of an epoch is known.
    """

    def __init__(self, pool: Pool, batch_size: int) -> None:
        _, numbers, counts = np.unique(pool.texts, return_inverse=True, return_counts=True)
        self.texts = numbers.reshape(pool.texts.shape)  # [rows, columns] from 0 without gaps
        self.batch_size = batch_size
        # Where more rows hold a text than there are batches, no exchange helps.
        self.hopeless = counts[self.texts].max(1) > -(-pool.size // batch_size)  # [rows]
        self.first = self._draw(Generator(Philox(0)))
        self.batches = len(self.first)

    def compose(self, random: Generator) -> list[Rows]:
        for _ in range(DRAWS):
            batches = self._draw(random)
            if len(batches) <= self.batches:
                return _split(batches, self.batches)
        return [self.first[index] for index in random.permutation(self.batches)]

    def _draw(self, random: Generator) -> list[Rows]:
        size = self.batch_size
        order = random.permutation(len(self.texts))
        unplaced = self._swap(order, random)
        kept = np.ones(len(order), bool)
        kept[unplaced] = False
        cuts = range(0, len(order), size)
        batches = [order[cut : cut + size][kept[cut : cut + size]] for cut in cuts]
        return batches + self._pack(order[unplaced].tolist())

    def _swap(self, order: Rows, random: Generator) -> list[int]:
        """Exchange rows of ``order`` to remove repeats; returns the positions of rows that still repeat a text."""
        size, tries = self.batch_size, 64 + len(order) // 2  # a limit on all tries, where texts repeat everywhere
        repeats = _repeats(self.texts[order], size)
        hopeless = self.hopeless[order[repeats]]
        unplaced = dict.fromkeys(repeats[hopeless].tolist())
        text_counts: dict[int, Counter[int]] = {}  # batch → how many of its rows hold a text

        def texts_at(position: int) -> set[int]:
            return set(self.texts[order[position]].tolist())

        def counts_of(batch: int) -> Counter[int]:
            if batch not in text_counts:
                positions = set(range(batch * size, min(batch * size + size, len(order)))) - unplaced.keys()
                text_counts[batch] = Counter(text for position in positions for text in texts_at(position))
            return text_counts[batch]

        def fits(texts: set[int], batch: int, instead_of: set[int]) -> bool:
            return all(counts_of(batch)[text] <= (text in instead_of) for text in texts)

        for position in repeats[~hopeless].tolist():
            texts, batch = texts_at(position), position // size
            if fits(texts, batch, instead_of=texts):
                continue
            for other in random.integers(len(order), size=min(TRIES, tries)).tolist():
                tries -= 1
                other_texts, other_batch = texts_at(other), other // size
                if other_batch == batch or other in unplaced:
                    continue
                if not fits(texts, other_batch, other_texts) or not fits(other_texts, batch, texts):
                    continue
                order[position], order[other] = order[other], order[position]
                for changed, removed, added in ((batch, texts, other_texts), (other_batch, other_texts, texts)):
                    text_counts[changed].subtract(removed)
                    text_counts[changed].update(added)
                break
            else:
                unplaced[position] = None
                text_counts[batch].subtract(texts)
        return list(unplaced)

    def _pack(self, rows: list[int]) -> list[Rows]:
        """Pack rows into new batches, each into the first with room after the last that holds one of its texts."""
        batches: list[list[int]] = []
        next_open: dict[int, int] = {}  # text → index of the batch after the last that holds it
        for row in rows:
            texts = self.texts[row].tolist()
            index = max(next_open.get(text, 0) for text in texts)
            while index < len(batches) and len(batches[index]) == self.batch_size:
                index += 1
            if index == len(batches):
                batches.append([])
            batches[index].append(row)
            next_open.update(dict.fromkeys(texts, index + 1))
        return [np.array(batch, np.int64) for batch in batches]


def _repeats(texts: Rows, size: int) -> Rows:
    """The positions of rows that hold a text of an earlier row of their batch; texts are [rows, columns]."""
    positions = np.repeat(np.arange(len(texts)), texts.shape[1])
    keys = positions // size * (int(texts.max()) + 1) + texts.ravel()
    by_key = np.argsort(keys, kind="stable")
    keys, positions = keys[by_key], positions[by_key]
    return np.unique(positions[1:][(keys[1:] == keys[:-1]) & (positions[1:] != positions[:-1])])


def _split(batches: list[Rows], count: int) -> list[Rows]:
    """The same rows in ``count`` batches, by halving the last batch with more than one row until there are enough."""
    while len(batches) < count:
        index = max(index for index, batch in enumerate(batches) if len(batch) > 1)
        half = len(batches[index]) // 2
        batches[index : index + 1] = [batches[index][:half], batches[index][half:]]
    return batches
