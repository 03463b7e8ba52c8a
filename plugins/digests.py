"""Checksums of files."""

import hashlib
from functools import lru_cache
from pathlib import Path

from taskloom.core.rows import open_file


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's bytes, computed once for each state of the file; raises ``OSError``."""
    facts = path.stat()
    return _sha256_of(path.resolve(), facts.st_size, facts.st_mtime_ns)


@lru_cache(maxsize=256)
def _sha256_of(path: Path, size: int, changed: int) -> str:
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
