"""Laws of data sets. Give options that name real examples: a folder, or a rule."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

import numpy as np

from taskloom.core.data import DataSet, Examples, Split
from taskloom.core.errors import DataError
from taskloom.core.testing.elsewhere import require_same_elsewhere
from taskloom.core.testing.files import CHANGES, copied_options, other_options
from taskloom.core.testing.law import REFUSALS, Subject, given, require, untouched_randomness


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
                strange = next((text for text in column if not isinstance(text, str)), "")
                require(strange == "", f"column {place} holds {strange!r}, which is no text")
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
            words = f"labels should be [{len(examples)}]. Found {list(values.shape)}."
            require(values.shape == (len(examples),), words)
            low, high = data.labels.low, data.labels.high
            outside = np.flatnonzero(~((values >= low) & (values <= high)))
            if outside.size:
                first = outside[0]
                found = f"{values[first]:g} for id {examples.ids[first]!r}"
                raise AssertionError(f"labels should be from {low:g} to {high:g}. Found {found}.")
            if data.labels.classes:
                require(bool((values == np.round(values)).all()), "class labels should be whole numbers")


def loading_is_repeatable(subject: Subject) -> None:
    """Two of one set of options give the same examples in the same order, and the same fingerprint."""
    first, second = subject.make(), subject.make()
    keys = [data.fingerprint() for data in (first, second, first)]
    require(bool(keys[0]) and isinstance(keys[0], str), f"fingerprint() should be a filled string. Found {keys[0]!r}.")
    require(
        len(set(keys)) == 1, f"fingerprint() changes from one call to the next: {keys[0]!r}, {keys[1]!r}, {keys[2]!r}"
    )
    for split in get_args(Split):
        with (
            _given_split(first, split) as one,
            _given_split(second, split) as other,
            _given_split(first, split) as again,
        ):
            for found in (other, again):
                require(_same(one, found), f"loading again gives other examples: {_difference(one, found)}")


def a_new_process_loads_the_same(subject: Subject) -> None:
    require_same_elsewhere(examples_of, subject)


def examples_of(subject: Subject) -> list[str]:
    """Each example of each split, and the fingerprint."""
    data: DataSet = subject.make()
    told = [f"fingerprint() {data.fingerprint()!r}"]
    for split in get_args(Split):
        with _given_split(data, split) as examples:
            if examples is not None:
                labels = [None] * len(examples) if examples.labels is None else examples.labels.tolist()
                rows = zip(examples.ids, labels, *examples.columns, strict=True)
                told += [f"{split} example {place}: {row}" for place, row in enumerate(rows)]
    return told


def it_touches_no_global_random_state(subject: Subject) -> None:
    with untouched_randomness():
        data: DataSet = subject.make()
        data.fingerprint()
        for split in get_args(Split):
            with _given_split(data, split):
                pass


def dev_is_not_train_again(subject: Subject) -> None:
    """A dev set whose every example is in the training set measures memory."""
    data: DataSet = subject.make()
    with _given_split(data, "train") as train, _given_split(data, "dev") as dev:
        if train is None or dev is None:
            return
        known = set(zip(*train.columns, strict=True))
        new = sum(texts not in known for texts in zip(*dev.columns, strict=True))
        require(new > 0, f"each of its {len(dev)} examples is a training example too, as {dev.columns[0][0][:60]!r}")


def content_follows_the_examples(subject: Subject) -> None:
    """Where other options, or files that changed, give other train or dev examples, the fingerprint is another one.

    A result's identity hangs on it.
    """
    base: DataSet = subject.make()
    here, key = _learnt(base), base.fingerprint()
    for name, value in other_options(subject):
        with given(f"{name}={value!r}"):
            try:
                other: DataSet = subject.make(**{name: value})
                there = _learnt(other)
            except REFUSALS:
                continue
            if not all(_same(one, two) for one, two in zip(here, there, strict=True)):
                require(other.fingerprint() != key, f"the examples are others, and fingerprint() is still {key!r}")
    _follows_the_files(subject)


def _follows_the_files(subject: Subject) -> None:
    """Where a file that an option names has changed, and with it train or dev, the fingerprint is another one."""
    with tempfile.TemporaryDirectory() as folder:
        plain = copied_options(subject.options, Path(folder) / "plain")
        if plain is None:
            return
        base: DataSet = subject.make(**plain)
        here, key = _learnt(base), base.fingerprint()
        for words, change in CHANGES.items():
            changed = copied_options(subject.options, Path(folder) / words, change)
            with given(f"files {words}"):
                try:
                    other: DataSet = subject.make(**(changed or {}))
                    there = _learnt(other)
                except REFUSALS:
                    continue  # it keeps watch over its files
                if not all(_same(one, two) for one, two in zip(here, there, strict=True)):
                    require(other.fingerprint() != key, f"the examples are others, and fingerprint() is still {key!r}")


def _learnt(data: DataSet) -> list[Examples | None]:
    found: list[Examples | None] = [data.load("train")]
    try:
        found.append(data.load("dev"))
    except DataError:
        found.append(None)
    return found


def _same(one: Examples | None, other: Examples | None) -> bool:
    if one is None or other is None:
        return one is other
    labels = one.labels is other.labels or (
        one.labels is not None and other.labels is not None and np.array_equal(one.labels, other.labels)
    )
    return labels and (one.columns, one.ids, one.skipped) == (other.columns, other.ids, other.skipped)


def _difference(one: Examples | None, other: Examples | None) -> str:
    """The first id at which two loads differ."""
    if one is None or other is None:
        return "one of them none"
    pairs = zip(one.ids, zip(*one.columns, strict=True), other.ids, zip(*other.columns, strict=True), strict=False)
    for place, (a, texts, b, others) in enumerate(pairs):
        if (a, texts) != (b, others):
            return f"example {place} is {a!r} ({texts[0][:30]!r}), then {b!r} ({others[0][:30]!r})"
    return f"{len(one)} examples, then {len(other)}, or other labels"


LAWS = (
    examples_are_whole,
    labels_are_what_it_says,
    loading_is_repeatable,
    a_new_process_loads_the_same,
    it_touches_no_global_random_state,
    dev_is_not_train_again,
    content_follows_the_examples,
)
