"""Finding data files, and telling their content apart."""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path

from taskloom.core import DataError, unknown

#: How many names of a folder an error lists.
LISTED = 20
#: How much of a path it shows.
LONGEST = 200


def place(path: str) -> Path:
    """A path as a user writes it: ``~`` and environment variables are expanded."""
    expanded = Path(os.path.expandvars(path))
    try:
        return expanded.expanduser()
    except RuntimeError:
        raise DataError(f"{path}: {expanded.parts[0]!r} is nobody's home; write the folder in full") from None


def read_bytes(path: Path) -> bytes:
    """The bytes of a file, or a ``DataError`` that says what is there instead."""
    with _readable(path):
        _check(path)
        return path.read_bytes()


def content_of(files: Sequence[Path], options: Mapping[str, object]) -> str:
    """A fingerprint of the bytes of files and of the options that say how they are read."""
    parts = [_digest_of(path) for path in files]
    return hashlib.sha256(json.dumps([parts, options], sort_keys=True).encode()).hexdigest()


def _digest_of(path: Path) -> str:
    with _readable(path):
        _check(path)
        facts = path.stat()
    return _digest(path.resolve(), facts.st_size, facts.st_mtime_ns)


@lru_cache(maxsize=256)
def _digest(path: Path, size: int, changed: int) -> str:
    """Computed once per state of a file: ``size`` and ``changed`` stand for it in the cache."""
    return hashlib.sha256(read_bytes(path)).hexdigest()


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        shown = str(path) if len(str(path)) <= LONGEST else f"{str(path)[:LONGEST]}…"
        raise DataError(f"{shown} cannot be read: {error.strerror}") from None


def _check(path: Path) -> None:
    if path.is_file():
        return
    if path.is_dir():
        raise DataError(f"{path} is a folder; a file is needed")
    if path.parent.is_dir():
        raise DataError(_missing(path.name, path.parent))
    unset = re.search(r"\$\{?(\w+)", str(path))
    if unset:
        raise DataError(f"{path}: the environment variable {unset.group(1)} is not set")
    nearest = next(parent for parent in path.absolute().parents if parent.is_dir())
    lacking = path.absolute().relative_to(nearest).parts[0]
    raise DataError(f"{path.parent} is not a folder: {_missing(lacking, nearest, kind='folder')}")


def _missing(name: str, folder: Path, kind: str = "file") -> str:
    names = sorted(
        entry.name
        for entry in folder.iterdir()
        if entry.is_dir() == (kind == "folder") and not entry.name.startswith(".")
    )
    # The nearest name must be among those that are listed, however many there are.
    shown = {*get_close_matches(name, names, n=1), *names}
    if len(names) > LISTED:
        shown = {*get_close_matches(name, names, n=1), *names[:LISTED]}
    return unknown(kind, name, shown, where=f"in {folder}")
