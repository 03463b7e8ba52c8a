"""Batch composition: no text twice in a batch."""

from collections import Counter

import numpy as np
from numpy.random import Generator, Philox

from taskloom.core import Pool, Rows

#: Places that a row is tried in before it goes to the end of the pass.
TRIES = 16
#: New draws before a pass falls back on the first one.
DRAWS = 3


class NoDuplicates:
    """Every row exactly once in a pass, and in no batch two rows that share a text, whatever the column.

    The rows are shuffled and cut into batches; a row that meets one of its texts there changes places with a random
    row elsewhere where both fit. The few rows for which no place is found make batches of their own at the end of the
    pass. So where texts seldom repeat all batches but the last are full, and where one text is in many rows some
    batches are smaller. A row with the same text in both columns is not a duplicate of itself.

    Every pass has as many batches as one drawn with a fixed seed, so that the length of an epoch is known.
    """

    def __init__(self, pool: Pool, batch_size: int) -> None:
        _, numbers, counts = np.unique(pool.texts, return_inverse=True, return_counts=True)
        self.texts = numbers.reshape(pool.texts.shape)  # [rows, columns] from 0 without gaps
        self.batch_size = batch_size
        # With more rows of a text than batches no exchange helps.
        self.hopeless = counts[self.texts].max(1) > -(-pool.size // batch_size)  # [rows]
        self.first = self._draw(Generator(Philox(0)))
        self.batches = len(self.first)

    def compose(self, random: Generator) -> list[Rows]:
        for _ in range(DRAWS):
            batches = self._draw(random)
            if len(batches) <= self.batches:
                return _split(batches, self.batches)
        return [self.first[place] for place in random.permutation(self.batches)]

    def _draw(self, random: Generator) -> list[Rows]:
        size = self.batch_size
        order = random.permutation(len(self.texts))
        left = self._swap(order, random)
        kept = np.ones(len(order), bool)
        kept[left] = False
        cuts = range(0, len(order), size)
        batches = [order[cut : cut + size][kept[cut : cut + size]] for cut in cuts]
        return batches + self._pack(order[left].tolist())

    def _swap(self, order: Rows, random: Generator) -> list[int]:
        """Resolve what can be by exchanging rows in ``order``; returns the places of rows that are still too many."""
        size, tries = self.batch_size, 64 + len(order) // 2  # tries in all, where texts repeat everywhere
        repeats = _repeats(self.texts[order], size)
        hopeless = self.hopeless[order[repeats]]
        left = dict.fromkeys(repeats[hopeless].tolist())
        held: dict[int, Counter[int]] = {}  # batch → how many of its rows hold a text

        def texts_at(place: int) -> set[int]:
            return set(self.texts[order[place]].tolist())

        def count(batch: int) -> Counter[int]:
            if batch not in held:
                places = range(batch * size, min(batch * size + size, len(order)))
                held[batch] = Counter(text for place in places if place not in left for text in texts_at(place))
            return held[batch]

        def fits(texts: set[int], batch: int, instead_of: set[int]) -> bool:
            return all(count(batch)[text] <= (text in instead_of) for text in texts)

        for place in repeats[~hopeless].tolist():
            mine, home = texts_at(place), place // size
            if fits(mine, home, instead_of=mine):
                continue
            for other in random.integers(len(order), size=min(TRIES, tries)).tolist():
                tries -= 1
                theirs, there = texts_at(other), other // size
                if there == home or other in left or not fits(mine, there, theirs) or not fits(theirs, home, mine):
                    continue
                order[place], order[other] = order[other], order[place]
                for batch, gone, come in ((home, mine, theirs), (there, theirs, mine)):
                    held[batch].subtract(gone)
                    held[batch].update(come)
                break
            else:
                left[place] = None
                held[home].subtract(mine)
        return list(left)

    def _pack(self, rows: list[int]) -> list[Rows]:
        """Rows into new batches, each into the first that is open to it: after the last that has one of its texts."""
        batches: list[list[int]] = []
        after: dict[int, int] = {}  # text → the batch after the last that holds it
        for row in rows:
            texts = self.texts[row].tolist()
            place = max(after.get(text, 0) for text in texts)
            while place < len(batches) and len(batches[place]) == self.batch_size:
                place += 1
            if place == len(batches):
                batches.append([])
            batches[place].append(row)
            after.update(dict.fromkeys(texts, place + 1))
        return [np.array(batch, np.int64) for batch in batches]


def _repeats(texts: Rows, size: int) -> Rows:
    """The places of rows that hold a text which an earlier row of their batch holds; texts are [rows, columns]."""
    places = np.repeat(np.arange(len(texts)), texts.shape[1])
    keys = places // size * (int(texts.max()) + 1) + texts.ravel()
    by_key = np.argsort(keys, kind="stable")
    keys, places = keys[by_key], places[by_key]
    return np.unique(places[1:][(keys[1:] == keys[:-1]) & (places[1:] != places[:-1])])


def _split(batches: list[Rows], count: int) -> list[Rows]:
    """The same rows in ``count`` batches: the last one that can be is halved until there are enough."""
    while len(batches) < count:
        place = max(place for place, batch in enumerate(batches) if len(batch) > 1)
        half = len(batches[place]) // 2
        batches[place : place + 1] = [batches[place][:half], batches[place][half:]]
    return batches
