"""Data sets of files: a sample of their examples, and corpora that are distributed as a folder."""

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from taskloom.core import DataSet, Examples, Split
from taskloom.plugins.datasets.files import expand, fingerprint_of
from taskloom.plugins.datasets.reading import FileLayout, read_examples


class FileDataSet(DataSet):
    """Examples from files, all of them or a sample.

    Options:
        strict: refuse the first row that cannot be read.
        limit: most training examples: a random sample, always the same, in the order of the file; a larger sample
            contains a smaller one.
        dev_limit: most dev examples to score, chosen likewise.
    """

    location_options = frozenset({"strict"})  # it refuses rows and changes none

    def __init__(
        self,
        *,
        strict: bool = False,
        limit: Annotated[int, Field(ge=1)] | None = None,
        dev_limit: Annotated[int, Field(ge=1)] | None = None,
    ) -> None:
        self.strict = strict
        self.limits: dict[Split, int | None] = {"train": limit, "dev": dev_limit, "test": None}

    @abstractmethod
    def read(self, split: Split) -> Examples:
        """All examples of a split."""

    def load(self, split: Split) -> Examples:
        examples, limit = self.read(split), self.limits[split]
        if limit is None or limit >= len(examples):
            return examples
        lots = lots_of(examples)
        return take(examples, sorted(sorted(range(len(examples)), key=lots.__getitem__)[:limit]))


class FolderDataSet(FileDataSet):
    """A corpus in a folder, its files as they are distributed.

    Options:
        dir: the folder, or one that has it under the data set's name; relative to the grid's file, ``~`` and
            environment variables are expanded.
    """

    path_options = frozenset({"dir"})
    files: dict[Split, str]  # their names
    layout: FileLayout
    reading: dict[str, object]  # the options that change what is read

    def __init__(self, *, dir: str, **options: Any) -> None:
        super().__init__(**options)
        self.dir = dir

    def path(self, split: Split) -> Path:
        """The file of a split."""
        return expand(self.dir) / self.files[split]

    def read(self, split: Split) -> Examples:
        return read_examples(self.path(split), self.layout, needs_labels=split != "test")

    def fingerprint(self) -> str:
        """A hash of the training and dev files only: a test file that comes later changes no finished run."""
        files = dict.fromkeys((self.path("train"), self.path("dev")))
        return fingerprint_of(files, {**self.reading, "limits": self.limits})


def lots_of(examples: Examples) -> list[bytes]:
    """A lot for each example: pseudo-random, the same on every machine, and equal for equal texts."""
    return [hashlib.sha256("\x1f".join(texts).encode()).digest() for texts in zip(*examples.columns, strict=True)]


def take(examples: Examples, rows: Sequence[int]) -> Examples:
    """Only these rows, in this order."""
    return replace(
        examples,
        columns=tuple(tuple(column[row] for row in rows) for column in examples.columns),
        labels=None if examples.labels is None else examples.labels[list(rows)],
        ids=tuple(examples.ids[row] for row in rows),
    )
