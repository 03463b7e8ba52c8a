"""Laws of data sets. Give options that name real examples: a folder, or a rule."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import get_args

import numpy as np

from taskloom.core.data import DataSet, Examples, Split
from taskloom.core.errors import DataError
from taskloom.core.testing.law import Subject, given, require, untouched_randomness


@contextmanager
def _given_split(data: DataSet, split: Split) -> Iterator[Examples | None]:
    """The examples of a split; None where there is none, which only the training split may not say."""
    with given(f"split {split!r}"):
        try:
            examples = data.load(split)
        except DataError:
            if split == "train":
                raise
            examples = None
        yield examples


def examples_are_whole(subject: Subject) -> None:
    """As many texts as ids in every column, no text empty, no id twice."""
    data: DataSet = subject.make()
    for split in get_args(Split):
        with _given_split(data, split) as examples:
            if examples is None:
                continue
            require(len(examples) > 0, "there are no examples")
            found = len(examples.columns)
            require(found == data.columns, f"columns says {data.columns}; an example has {found} texts")
            for place, column in enumerate(examples.columns):
                require(len(column) == len(examples), f"column {place} has {len(column)} texts for {len(examples)} ids")
                empty = [examples.ids[row] for row, text in enumerate(column) if not text.strip()]
                require(not empty, f"column {place} has empty texts: ids {empty[:3]}")
            seen: set[str] = set()
            twice = [i for i in examples.ids if i in seen or seen.add(i)]  # type: ignore[func-returns-value]
            require(not twice, f"ids occur more than once: {twice[:3]}")


def labels_are_what_it_says(subject: Subject) -> None:
    data: DataSet = subject.make()
    for split in get_args(Split):
        with _given_split(data, split) as examples:
            if examples is None:
                continue
            values = examples.labels
            if data.labels is None:
                require(values is None, "the data set says it has no labels; the examples have some")
                continue
            if values is None:
                require(split == "test", "only a test split may lack labels")
                continue
            require(
                values.shape == (len(examples),), f"labels should be [{len(examples)}]. Found {list(values.shape)}."
            )
            low, high = data.labels.low, data.labels.high
            inside = bool(((values >= low) & (values <= high)).all())
            require(inside, f"labels should be from {low:g} to {high:g}. Found {values.min():g} to {values.max():g}.")
            if data.labels.classes:
                require(bool((values == np.round(values)).all()), "class labels should be whole numbers")


def loading_is_repeatable(subject: Subject) -> None:
    """Two of one set of options give the same examples in the same order, and the same fingerprint."""
    first, second = subject.make(), subject.make()
    with untouched_randomness():
        keys = [data.content() for data in (first, second, first)]
        require(bool(keys[0]) and isinstance(keys[0], str), f"content() should be a filled string. Found {keys[0]!r}.")
        require(len(set(keys)) == 1, "content() changes from one call to the next")
        for split in get_args(Split):
            with (
                _given_split(first, split) as one,
                _given_split(second, split) as other,
                _given_split(first, split) as again,
            ):
                for found in (other, again):
                    require(_same(one, found), "loading again gives other examples")


def _same(one: Examples | None, other: Examples | None) -> bool:
    if one is None or other is None:
        return one is other
    labels = one.labels is other.labels or (
        one.labels is not None and other.labels is not None and np.array_equal(one.labels, other.labels)
    )
    return labels and (one.columns, one.ids, one.skipped) == (other.columns, other.ids, other.skipped)


LAWS = (examples_are_whole, labels_are_what_it_says, loading_is_repeatable)
