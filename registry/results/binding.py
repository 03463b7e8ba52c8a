"""Binds a cell's score files to the scores that the ledger records, so that an edit of either is noticed. No numpy."""

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from taskloom.core.errors import RegistryError
from taskloom.registry.results.records import CellRecord


def score_file(folder: Path, split: str) -> Path:
    """The score file of a split in a cell's folder."""
    return folder / f"scores-{split}.safetensors"


def bind(folder: Path, split: str, scores: Mapping[str, float]) -> dict[str, str]:
    """``{split: digest}`` of a split's score file in a cell's folder and of the scores that the ledger records for it.

    Empty if there is no such file.
    """
    path = score_file(folder, split)
    if not path.is_file():
        return {}
    now = path.stat()
    content = _content(path, now.st_mtime_ns, now.st_size).copy()
    content.update(json.dumps({task: float(score) for task, score in scores.items()}, sort_keys=True).encode())
    return {split: content.hexdigest()}


@lru_cache(maxsize=2**16)
def _content(path: Path, modified: int, size: int) -> "hashlib._Hash":
    """The hash of a file, read anew when it has changed: ``cells --watch`` asks every second."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256")


def bound_file(registry: Path, cell: CellRecord, split: str) -> Path | None:
    """The score file of a cell, None if it has none; ``RegistryError`` if the file or the scores were changed."""
    path = score_file(registry / "cells" / cell.id, split)
    try:
        digest = bind(path.parent, split, cell.scores if split == "dev" else cell.test).get(split)
    except OSError as error:
        raise RegistryError(f"{path} cannot be read: {error.strerror}. Put back a copy.") from error
    if digest != cell.digests.get(split):
        problem = (
            "is missing" if digest is None else "does not belong to it: the file, or the recorded scores, were changed"
        )
        raise RegistryError(
            f"score file of cell {cell.id[:12]} ({split}) {problem}. Put back a copy of {path}, or run its grid in "
            "another --registry."
        )
    return None if digest is None else path
