"""Data sets in files: where the files are, a fingerprint of what they hold, and a choice of their examples."""

import hashlib
import json
import os
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from pydantic import Field

from taskloom.core import DataError, DataSet, Examples, Split, unknown

#: How many names of a folder an error lists.
LISTED = 20


class FolderDataSet(DataSet):
    """A corpus in a folder, its files as they are distributed.

    Options:
        dir: the folder; relative to the current one, ``~`` and environment variables are expanded.
        strict: refuse the first row that cannot be read.
        limit: use at most so many training examples, a shuffled sample that is always the same.
    """

    location_options = frozenset({"dir", "strict"})  # strict refuses rows and changes none

    def __init__(self, *, dir: str, strict: bool = False, limit: Annotated[int, Field(ge=1)] | None = None) -> None:
        self.dir, self.strict, self.limit = dir, strict, limit

    @abstractmethod
    def path(self, split: Split) -> Path:
        """The file of a split."""

    @abstractmethod
    def read(self, split: Split) -> Examples:
        """All examples of a split."""

    def load(self, split: Split) -> Examples:
        examples = self.read(split)
        if self.limit is None or split != "train":
            return examples
        lots = lots_of(examples)  # a larger limit begins with the smaller one's
        return take(examples, sorted(range(len(examples)), key=lambda row: (lots[row], row))[: self.limit])


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


def expand(path: str) -> Path:
    """A path as a user writes it: ``~`` and environment variables are expanded."""
    try:
        return Path(os.path.expandvars(path)).expanduser()
    except RuntimeError:
        raise DataError(f"{path}: there is no such home folder; write the path in full") from None


def read_bytes(path: Path) -> bytes:
    """The bytes of a file, or a ``DataError`` that says what is there instead."""
    with _readable(path):
        return path.read_bytes()


def fingerprint_of(files: Sequence[Path], options: Mapping[str, object]) -> str:
    """A fingerprint of the bytes of files and of the options that say how they are read."""
    digests = []
    for path in files:
        with _readable(path):
            facts = path.stat()
        digests.append(_digest(path.resolve(), facts.st_size, facts.st_mtime_ns))
    return hashlib.sha256(json.dumps([digests, options], sort_keys=True).encode()).hexdigest()


@lru_cache(maxsize=256)
def _digest(path: Path, size: int, changed: int) -> str:
    """Computed once per state of a file: ``size`` and ``changed`` stand for it in the cache."""
    return hashlib.sha256(read_bytes(path)).hexdigest()


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except IsADirectoryError:
        raise DataError(f"{path} is a folder; a file is needed") from None
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a name that no file can have
        raise DataError(_missing(path)) from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


def _missing(path: Path) -> str:
    """What to say of a file that does not exist: the first part of its path that is missing, and what is there."""
    unset = re.search(r"\$\{?(\w+)", str(path))
    if unset:
        return f"{path}: the environment variable {unset.group(1)} is not set"
    path = path.absolute()
    folder = next(parent for parent in path.parents if parent.is_dir())
    name = path.relative_to(folder).parts[0]
    kind = "file" if folder == path.parent else "folder"
    there = (entry.name for entry in folder.iterdir() if entry.is_dir() == (kind == "folder"))
    names = sorted(entry for entry in there if not entry.startswith("."))
    # The nearest name must be among those that are listed, however many there are.
    return unknown(kind, name, {*get_close_matches(name, names, n=1), *names[:LISTED]}, where=f"in {folder}")
