"""Hold out rows of the training data: any data set's, the same rows for the same texts, share and seed."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskloom.core.data import Examples
from taskloom.core.errors import DataError


def split_off(train: Examples, hold_out: Mapping[str, Any]) -> tuple[Examples, Examples]:
    """The rows to train on and those held out, for ``{"share": 0.1, "seed": 0}``.

    A hash of its texts decides for a row, so that rows with equal texts, in either order, stay together, and a text is
    on the same side in all tasks that have it. At least one text is held out, and one is trained on.

    >>> examples = Examples((("a", "b", "a", "c"),), None, ("0", "1", "2", "3"))
    >>> [part.columns[0] for part in split_off(examples, {"share": 0.5, "seed": 1})]
    [('a', 'a', 'c'), ('b',)]
    """
    draws = np.array([_draw(sorted(texts), hold_out["seed"]) for texts in zip(*train.columns, strict=True)])
    if len(np.unique(draws)) < 2:
        raise DataError("hold_out needs training rows of two different texts at least")
    held = (draws < hold_out["share"]) | (draws == draws.min())
    held &= draws < draws.max()
    return _rows(train, ~held), _rows(train, held)


def _draw(texts: list[str], seed: int) -> float:
    """A number in [0, 1) that depends on the texts and the seed alone."""
    key = hashlib.blake2b(digest_size=8, key=seed.to_bytes(4, "big"))
    for text in texts:
        raw = text.encode("utf-8", "surrogatepass")
        key.update(len(raw).to_bytes(8, "big") + raw)
    return int.from_bytes(key.digest(), "big") / 2**64


def _rows(examples: Examples, kept: NDArray[np.bool_]) -> Examples:
    indices = np.flatnonzero(kept)
    columns = tuple(tuple(column[index] for index in indices) for column in examples.columns)
    labels = None if examples.labels is None else examples.labels[indices]
    return Examples(columns, labels, tuple(examples.ids[index] for index in indices))
