"""Laws of data sets. Their options should name real examples: a folder, or a rule."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np

from taskloom.core.data import DataSet, Examples, Split
from taskloom.core.errors import DataError
from taskloom.core.testing.general import law_of_repeating
from taskloom.core.testing.law import given, law, require
from taskloom.core.testing.specimens import RAISED, Specimen

#: Files are not copied if they have more bytes together.
MOST = 2_000_000
Change = Callable[[list[bytes]], list[bytes]]
#: Changes to the lines of every file. A data set that counts its lines may notice the first.
CHANGES: dict[str, Change] = {
    "without their last line": lambda lines: lines[:-1],
    "with their last two lines swapped": lambda lines: [*lines[:-2], *reversed(lines[-2:])],
}


def _loaded(data: DataSet) -> dict[Split, Examples]:
    """The examples of each split; only the training split is mandatory."""
    splits: dict[Split, Examples] = {}
    for split in get_args(Split):
        with given(f"split {split!r}"):
            try:
                splits[split] = data.load(split)
            except DataError:
                if split == "train":
                    raise
    return splits


Loaded = tuple[DataSet, Split, Examples]


def _splits(specimen: Specimen) -> list[tuple[str, Loaded]]:
    data: DataSet = specimen.make()
    return [(f"split {split!r}", (data, split, examples)) for split, examples in _loaded(data).items()]


@law("data", cases=_splits)
def examples_are_whole(_: Specimen, loaded: Loaded) -> None:
    """As many texts as ids in every column, no text empty, no id twice."""
    data, _split, examples = loaded
    require(len(examples) > 0, "there are no examples")
    texts_per_example = len(examples.columns)
    require(texts_per_example == data.columns, f"columns says {data.columns}; an example has {texts_per_example} texts")
    for k, column in enumerate(examples.columns):
        require(len(column) == len(examples), f"column {k} has {len(column)} texts for {len(examples)} ids")
        strange = next((text for text in column if not isinstance(text, str)), "")
        require(strange == "", f"column {k} holds {strange!r}, which is not a string")
        empty = [examples.ids[row] for row, text in enumerate(column) if not text.strip()]
        require(not empty, f"column {k} has empty texts: ids {empty[:3]}")
    twice = [identifier for identifier, count in Counter(examples.ids).items() if count > 1]
    require(not twice, f"ids appear more than once: {twice[:3]}")


@law("data", cases=_splits)
def labels_are_what_it_says(_: Specimen, loaded: Loaded) -> None:
    data, split, examples = loaded
    values = examples.labels
    if data.labels is None:
        require(values is None, "the data set says it has no labels; the examples have some")
        return
    if values is None:
        require(split == "test", "only a test split may lack labels")
        return
    require(values.shape == (len(examples),), f"labels should be [{len(examples)}]. Found {list(values.shape)}.")
    low, high = data.labels.low, data.labels.high
    for row in np.flatnonzero(~((values >= low) & (values <= high)))[:1]:
        wrong = f"{values[row]:g} for id {examples.ids[row]!r}"
        raise AssertionError(f"labels should be from {low:g} to {high:g}. Found {wrong}.")
    if data.labels.classes:
        require(bool((values == np.round(values)).all()), "class labels should be integers")


def examples_of(data: DataSet) -> list[str]:
    """The fingerprint, and each example of each split."""
    key = data.fingerprint()
    require(bool(key) and isinstance(key, str), f"fingerprint() should be a non-empty string. Found {key!r}.")
    lines = [f"fingerprint() {key!r}"]
    for split, examples in _loaded(data).items():
        lines += [f"{split} example {number}: {row}" for number, row in enumerate(_examples(examples))]
        lines += [f"{split} skips {text}" for text in examples.skipped]
        lines += [f"{split} leaves out {examples.unlabelled} rows without a label"]
    return lines


law_of_repeating("data", examples_of)


@law("data")
def dev_is_not_train_again(specimen: Specimen) -> None:
    """A dev set that is part of the training set measures memory."""
    splits = _loaded(specimen.make())
    if "dev" in splits:
        known = set(zip(*splits["train"].columns, strict=True))
        new = [texts for texts in zip(*splits["dev"].columns, strict=True) if texts not in known]
        require(bool(new), f"each of the {len(splits['dev'])} dev examples is a training example, too")


@law("data")
def a_limit_leaves_out_and_changes_nothing_else(specimen: Specimen) -> None:
    """Options ``limit`` and ``dev_limit``, where it has them, give that many examples of a split in their order.

    A limit as large as the split gives the whole split.
    """
    limits: dict[str, Split] = {"limit": "train", "dev_limit": "dev"}
    for name, split in limits.items():
        if name not in specimen.known or specimen.known[name].default is not None:
            continue
        with given(name):
            whole = _examples(specimen.make(**{name: None}).load(split))
            for most in {1, (len(whole) + 1) // 2, len(whole)}:
                data: DataSet = specimen.make(**{name: most})
                limited = _examples(data.load(split))
                require(len(limited) == most, f"{name}={most} gives {len(limited)} of {len(whole)} examples")
                rest = iter(whole)
                in_order = all(example in rest for example in limited)
                require(in_order, f"{name}={most} should give {split} examples in their order")


def _examples(examples: Examples) -> list[tuple[object, ...]]:
    labels = [None] * len(examples) if examples.labels is None else examples.labels.tolist()
    return list(zip(examples.ids, labels, *examples.columns, strict=True))


@law("data")
def the_fingerprint_follows_the_examples(specimen: Specimen) -> None:
    """Where other options or changed files give other train or dev examples, the fingerprint changes.

    A result's identity depends on it.
    """
    here = _learnt(specimen.make())
    for name, value in specimen.other_values():
        with given(f"{name}={value!r}"):
            _require_follows(here, specimen, {name: value})
    with tempfile.TemporaryDirectory() as folder:
        plain = _copied_files(specimen.options, Path(folder) / "plain", list)
        here = _learnt(specimen.make(**plain)) if plain else here
        for words, change in CHANGES.items() if plain else ():
            with given(f"files {words}"):
                _require_follows(here, specimen, _copied_files(specimen.options, Path(folder) / words, change))


def _learnt(data: DataSet) -> tuple[str, list[str]]:
    """The fingerprint, and the lines of train and dev examples."""
    key, *lines = examples_of(data)
    return key, [line for line in lines if not line.startswith("test")]


def _require_follows(here: tuple[str, list[str]], specimen: Specimen, options: dict[str, Any]) -> None:
    try:
        there = _learnt(specimen.make(**options))
    except RAISED:
        return  # it does not accept them, or verifies its files
    require(here[1] == there[1] or here[0] != there[0], f"the examples are others, but not the {here[0]}")


def _copied_files(options: Mapping[str, Any], to: Path, change: Change) -> dict[str, Any]:
    """The options that name files or folders, now naming changed copies in ``to``; none if they are too large."""
    named = {key: Path(value) for key, value in options.items() if "/" in str(value) and Path(value).exists()}
    if sum(file.stat().st_size for path in named.values() for file in _files(path)) > MOST:
        return {}
    copied: dict[str, Any] = {}
    for key, path in named.items():
        target = to / key / path.name
        target.parent.mkdir(parents=True)
        (shutil.copytree if path.is_dir() else shutil.copy)(path, target)
        for file in _files(target):
            file.write_bytes(b"".join(change(file.read_bytes().splitlines(keepends=True))))
        copied[key] = type(options[key])(target)
    return copied


def _files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
