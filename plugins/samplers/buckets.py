"""Length buckets: the same rows in batches of similar length."""

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
from numpy.random import Generator

from taskloom.core import Rows

#: Batches whose rows are sorted together: more would save little padding and mix rows less.
WINDOW = 64


def bucketed(batches: list[Rows], lengths: Rows, ends: Iterable[int], random: Generator) -> list[Rows]:
    """The same rows in batches of similar length: rows only move within a window that no epoch's end cuts.

    ``ends`` are the places in the pass before which an epoch ends. A short last batch stays last.
    """
    edges = sorted({0, len(batches), *ends})
    result: list[Rows] = []
    for first, last in pairwise(edges):
        for start in range(first, last, WINDOW):
            result += _by_length(batches[start : min(start + WINDOW, last)], lengths, random)
    return result


def _by_length(batches: list[Rows], lengths: Rows, random: Generator) -> list[Rows]:
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
