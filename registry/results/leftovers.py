"""What killed writers leave in a registry: files and folders that never got their names."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from taskloom.registry.results.presence import Machine

ROOMS = ("cells", "stages", "cache")
_DEPTH = 3  # folders below a room in which somebody writes
# A folder ".partial-MARK-chance" or a file ".name.MARK-chance.part"; the mark says whose it is, see `Machine.mark`.
_LEFT = re.compile(r"\.partial-(?P<folder>.*)|\..*\.(?P<file>[^.]*)\.part")


def sweep(registry: Path, *, alone: bool = False, machine: Machine | None = None) -> int:
    """Remove what killed writers left in cells, stages and cache; gives the number of things removed.

    What a process of this machine was writing goes if that process has ended. What cannot be told – it was written on
    another machine, or before a restart – goes only if the caller is ``alone``: no other driver lives in the registry.

    Example: ``sweep(ledger.folder, alone=leases.alone())``
    """
    machine = machine or Machine()
    removed = 0
    for path, mark in [found for room in ROOMS for found in _leftovers(registry / room, _DEPTH)]:
        dead = machine.left_by_dead(mark)
        if dead or (dead is None and alone):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
            removed += not os.path.lexists(path)
    return removed


def _leftovers(folder: Path, depth: int) -> Iterator[tuple[Path, str]]:
    if folder.is_symlink():  # what it leads to may be anybody's
        return
    try:
        paths = list(folder.iterdir())
    except OSError:  # none, or somebody removes it right now
        return
    for path in paths:
        if match := _LEFT.fullmatch(path.name):
            yield path, match["folder"] or match["file"] or ""
        elif depth and path.is_dir():
            yield from _leftovers(path, depth - 1)
