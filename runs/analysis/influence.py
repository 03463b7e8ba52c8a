"""The influence of examples on scores, and the resulting covariances, also between examples that share a text."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from taskloom.runs.analysis.contrasts import Scores, Values


@dataclass(frozen=True, eq=False)
class ExampleInfluence:
    """The influence of each example on a score, [N]; ``key`` identifies the examples and is empty if they are unknown.

    ``texts`` [N, k] are the numbers of the examples' texts.
    """

    key: tuple[tuple[str, str], ...]
    values: NDArray[np.float64]
    texts: NDArray[np.int64]


NO_INFLUENCE = ExampleInfluence((), np.zeros(0), np.zeros((0, 1), np.int64))


def joined_texts(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Concatenate the text numbers of several tasks' examples, [N, k]; tasks share no text.

    An example with fewer texts than others repeats its last one, which changes nothing.
    """
    columns, first, shifted = max(part.shape[1] for part in parts), 0, []
    for part in parts:
        shifted.append(first + np.pad(part, ((0, 0), (0, columns - part.shape[1])), mode="edge"))
        first += int(part.max(initial=-1)) + 1
    return np.concatenate(shifted)


def gathered(values: Values, influences: dict[tuple[int, int], ExampleInfluence]) -> Scores:
    """Scores [R, S] with the covariances that follow from the influence of examples on each, by row and seed."""
    rows, seeds = values.shape
    texts = {influence.key: influence.texts for influence in influences.values() if influence.key}
    keys = list(texts)
    of_row: list[set[int]] = [set() for _ in range(rows)]
    for (row, _), influence in influences.items():
        of_row[row].add(keys.index(influence.key) if influence.key else -1)
    sets = np.array([numbers.pop() if len(numbers) == 1 else -1 for numbers in of_row], np.int64)
    independent = np.zeros((rows * seeds, rows * seeds))
    shared: Values | None = None
    for number, key in enumerate(keys):
        members = [index for index in influences if sets[index[0]] == number]
        if not members:
            continue
        block = np.ix_(*[[row * seeds + seed for row, seed in members]] * 2)
        matrix = np.stack([influences[index].values for index in members])
        independent[block] = matrix @ matrix.T
        if (pairs := shared_covariance(matrix, texts[key])) is not None:
            shared = np.zeros_like(independent) if shared is None else shared
            shared[block] = pairs
    shape = rows, seeds, rows, seeds
    dyadic = None if shared is None else (independent + shared).reshape(shape)
    sizes = tuple(len(texts[key]) for key in keys)
    return Scores(values, independent.reshape(shape), sets, sizes, dyadic)


def shared_covariance(influence: Values, texts: NDArray[np.int64]) -> Values | None:
    """Σ φ(i) φ′(j) over the ordered pairs of different examples that share a text, [M, M]; None if no two do.

    ``influence`` [M, n] has the influence values φ of M scores, ``texts`` [n, k] the numbers of each example's texts.
    A pair counts once, however many texts it shares, and pairs are not merged into clusters: a text that every example
    has would make one cluster of them all, whose influence values sum to 0.

    The pairs are never enumerated, since all n examples may share a text. A pair that shares m texts is in m groups of
    examples with a text in common, in m over 2 groups with two, and so on; m − (m over 2) + (m over 3) = 1.
    """
    total: Values = np.zeros((len(influence), len(influence)))
    alone = np.zeros(influence.shape[1])  # how often each example is paired with itself in the groups
    for size in range(1, texts.shape[1] + 1):
        sign = 1.0 if size % 2 else -1.0
        members = _groups(texts, size)
        sums = np.asarray((members @ influence.T).T)  # [M, groups]
        total += sign * (sums @ sums.T)
        alone += sign * np.asarray(members.sum(0))
    return total - (influence * alone) @ influence.T if alone.any() else None


def largest_group(texts: NDArray[np.int64]) -> tuple[int, int]:
    """How many examples share a text with another, and the size of the largest group with a common text."""
    members = _groups(texts, 1)
    sharing = int((np.asarray(members.sum(0)) > 0).sum())
    return sharing, int(np.asarray(members.sum(1)).max(initial=0))


def _groups(texts: NDArray[np.int64], size: int) -> csr_array:
    """Membership [groups, n]: a group per set of ``size`` texts that several examples have in common."""
    ordered = np.sort(texts, 1)
    entries = []
    for columns in itertools.combinations(range(texts.shape[1]), size):
        chosen = ordered[:, columns]
        distinct = (np.diff(chosen, axis=1) > 0).all(1)  # a text that an example has twice counts once
        entries.append(np.column_stack([chosen[distinct], np.flatnonzero(distinct)]))
    keys = np.unique(np.concatenate(entries), axis=0)  # [entries, size + 1]: the texts, then the example
    _, group, sizes = np.unique(keys[:, :-1], axis=0, return_inverse=True, return_counts=True)
    several = sizes[group.ravel()] > 1
    _, group = np.unique(group.ravel()[several], return_inverse=True)
    memberships = np.ones(int(several.sum()))
    return csr_array((memberships, (group, keys[several, -1])), shape=(int(group.max(initial=-1)) + 1, len(texts)))
