"""How examples move scores, and the covariances that follow: of common examples, and of those that share a text."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from taskloom.runs.analysis.contrasts import Scores, Values


@dataclass(frozen=True, eq=False)
class Moves:
    """How far each example moves a score, [N]; ``key`` says which examples, empty if nobody knows.

    ``texts`` [N, k] are the numbers of the examples' texts.
    """

    key: tuple[tuple[str, str], ...]
    values: NDArray[np.float64]
    texts: NDArray[np.int64]


NO_MOVES = Moves((), np.zeros(0), np.zeros((0, 1), np.int64))


def joined_texts(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """The numbers of the texts of several tasks' examples, one after another, [N, k]; tasks share no text.

    An example that has fewer texts than others has one of them twice, which means the same.
    """
    columns, first, moved = max(part.shape[1] for part in parts), 0, []
    for part in parts:
        moved.append(first + np.pad(part, ((0, 0), (0, columns - part.shape[1])), mode="edge"))
        first += int(part.max(initial=-1)) + 1
    return np.concatenate(moved)


def gathered(values: Values, moves: dict[tuple[int, int], Moves]) -> Scores:
    """Scores [R, S] with the covariances that follow from what moves each of them."""
    rows, seeds = values.shape
    texts = {each.key: each.texts for each in moves.values() if each.key}
    keys = list(texts)
    of_row: list[set[int]] = [set() for _ in range(rows)]
    for (row, _), each in moves.items():
        of_row[row].add(keys.index(each.key) if each.key else -1)
    sets = np.array([numbers.pop() if len(numbers) == 1 else -1 for numbers in of_row], np.int64)
    independent = np.zeros((rows * seeds, rows * seeds))
    shared: Values | None = None
    for number, key in enumerate(keys):
        members = [index for index in moves if sets[index[0]] == number]
        if not members:
            continue
        block = np.ix_(*[[row * seeds + seed for row, seed in members]] * 2)
        matrix = np.stack([moves[index].values for index in members])
        independent[block] = matrix @ matrix.T
        if (pairs := shared_covariance(matrix, texts[key])) is not None:
            shared = np.zeros_like(independent) if shared is None else shared
            shared[block] = pairs
    shape = rows, seeds, rows, seeds
    dyadic = None if shared is None else (independent + shared).reshape(shape)
    sizes = tuple(len(texts[key]) for key in keys)
    return Scores(values, independent.reshape(shape), sets, sizes, dyadic)


def shared_covariance(moves: Values, texts: NDArray[np.int64]) -> Values | None:
    """Σ φ(i) φ′(j) over the ordered pairs of different examples that share a text, [M, M]; None if no two do.

    ``moves`` [M, n] are the influence values φ of M scores and ``texts`` [n, k] the numbers of each example's texts.
    A pair counts once, however many texts it shares, and pairs are not joined to chains: a text that every example has
    would otherwise make one cluster of them all, whose influence values sum to 0.

    The pairs are never listed, since one text may be in all n examples. A pair that shares m texts is in m groups of
    examples with a text in common, in m over 2 groups with two, and so on; m − (m over 2) + (m over 3) = 1.
    """
    total: Values = np.zeros((len(moves), len(moves)))
    alone = np.zeros(moves.shape[1])  # how often each example is paired with itself in the groups
    for size in range(1, texts.shape[1] + 1):
        sign = 1.0 if size % 2 else -1.0
        members = _groups(texts, size)
        sums = np.asarray((members @ moves.T).T)  # [M, groups]
        total += sign * (sums @ sums.T)
        alone += sign * np.asarray(members.sum(0))
    return total - (moves * alone) @ moves.T if alone.any() else None


def largest_group(texts: NDArray[np.int64]) -> tuple[int, int]:
    """How many examples share a text with another, and the largest number that share one."""
    members = _groups(texts, 1)
    sharing = int((np.asarray(members.sum(0)) > 0).sum())
    return sharing, int(np.asarray(members.sum(1)).max(initial=0))


def _groups(texts: NDArray[np.int64], size: int) -> csr_array:
    """Which examples [groups, n] have the same ``size`` texts, for all such sets of texts that several have."""
    ordered = np.sort(texts, 1)
    entries = []
    for columns in itertools.combinations(range(texts.shape[1]), size):
        chosen = ordered[:, columns]
        distinct = (np.diff(chosen, axis=1) > 0).all(1)  # a text that an example has twice counts once
        entries.append(np.column_stack([chosen[distinct], np.flatnonzero(distinct)]))
    keys = np.unique(np.concatenate(entries), axis=0)  # [entries, size + 1]: the texts, and who has them
    _, group, sizes = np.unique(keys[:, :-1], axis=0, return_inverse=True, return_counts=True)
    several = sizes[group.ravel()] > 1
    _, group = np.unique(group.ravel()[several], return_inverse=True)
    ones = np.ones(int(several.sum()))
    return csr_array((ones, (group, keys[several, -1])), shape=(int(group.max(initial=-1)) + 1, len(texts)))
