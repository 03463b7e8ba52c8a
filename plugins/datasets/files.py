"""Files of data sets: their paths, bytes and fingerprints."""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

from taskloom.core import DataError, unknown
from taskloom.core.rows import open_file
from taskloom.plugins.digests import sha256_of

#: The most names of a folder that an error lists.
LISTED = 20


def expand(path: str) -> Path:
    """A path as a user writes it: ``~`` and environment variables are expanded."""
    return Path(os.path.expanduser(os.path.expandvars(path)))  # noqa: PTH111 (pathlib raises for unknown users)


def read_bytes(path: Path) -> bytes:
    """The bytes of a file, or a ``DataError`` that says what is there instead."""
    with _readable(path), open_file(path) as file:
        return file.read()


def fingerprint_of(files: Iterable[Path], options: Mapping[str, object]) -> str:
    """A fingerprint of the bytes of files and of the options that say how they are read."""
    digests = []
    for path in files:
        with _readable(path):
            digests.append(sha256_of(path))
    return hashlib.sha256(json.dumps([digests, options], sort_keys=True).encode()).hexdigest()


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
    """The message for a file that does not exist: the first part of its path that is missing, and what is there."""
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
