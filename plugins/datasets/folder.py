"""Corpora that are distributed as a folder of files, and a choice of their examples."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from taskloom.core import DataSet, Examples, Split
from taskloom.plugins.datasets.files import expand, fingerprint_of
from taskloom.plugins.datasets.reading import Layout, read_examples


class FolderDataSet(DataSet):
    """A corpus in a folder, its files as they are distributed.

    Options:
        dir: the folder; relative to the current one, ``~`` and environment variables are expanded.
        strict: refuse the first row that cannot be read.
        limit: use at most so many training examples, a shuffled sample that is always the same.
    """

    location_options = frozenset({"dir", "strict"})  # strict refuses rows and changes none
    files: dict[Split, str]  # their names
    layout: Layout
    reading: dict[str, object]  # the options that change what is read

    def __init__(self, *, dir: str, strict: bool = False, limit: Annotated[int, Field(ge=1)] | None = None) -> None:
        self.dir, self.strict, self.limit = dir, strict, limit

    def path(self, split: Split) -> Path:
        """The file of a split."""
        return expand(self.dir) / self.files[split]

    def read(self, split: Split) -> Examples:
        """All examples of a split."""
        return read_examples(self.path(split), self.layout, needs_labels=split != "test")

    def load(self, split: Split) -> Examples:
        examples = self.read(split)
        if self.limit is None or split != "train":
            return examples
        lots = lots_of(examples)  # a larger limit begins with the smaller one's
        return take(examples, sorted(range(len(examples)), key=lambda row: (lots[row], row))[: self.limit])

    def fingerprint(self) -> str:
        """Of the training and dev files only: a test file that comes later changes no finished run."""
        files = dict.fromkeys((self.path("train"), self.path("dev")))
        return fingerprint_of(files, {**self.reading, "limit": self.limit})


def lots_of(examples: Examples) -> list[bytes]:
    """A lot for each example: as good as drawn at random, the same everywhere, and equal for equal texts."""
    return [hashlib.sha256("\x1f".join(texts).encode()).digest() for texts in zip(*examples.columns, strict=True)]


def take(examples: Examples, rows: Sequence[int]) -> Examples:
    """Only these rows, in this order."""
    return Examples(
        tuple(tuple(column[row] for row in rows) for column in examples.columns),
        None if examples.labels is None else examples.labels[list(rows)],
        tuple(examples.ids[row] for row in rows),
        examples.skipped,
    )
