"""Disk usage of a registry, and which of its files may be removed. Light to import."""

import json
import os
import shutil
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from taskloom.core.errors import RegistryError
from taskloom.registry.results.artifacts import ROOMS
from taskloom.registry.results.locks import Claims

if TYPE_CHECKING:
    from taskloom.registry.results.ledger import Ledger
    from taskloom.registry.results.tensors import Keep

WEIGHTS, RESULTS = "weights of the best epochs", "scores, predictions and logs"
WITHOUT_ROW = "weights and checkpoints of cells without a row"


@dataclass(frozen=True)
class DiskUse:
    """One file or folder of a registry: its category, its size, and how many of its bytes may be removed."""

    what: str
    path: Path
    bytes: int
    may_go: int = 0


def disk_uses(ledger: "Ledger", keep: "Keep" = "best", named: Collection[str] = ()) -> list[DiskUse]:
    """Everything in a registry's folder.

    These may be removed: tokenized texts, which are made again when needed; results of shared stages, unless a cell of
    a grid is unfinished; leftovers of killed processes; those weights of finished cells that ``keep`` does not ask for;
    and weights and checkpoints of those cells without a row that are ``named``.
    """
    status = {row.cell.id: row.cell.status for grid in ledger.grids() for row in grid.cells}
    all_done = all(state == "finished" for state in status.values())
    rooms = (("cache", "tokenized texts", True), ("stages", "shared stages", all_done), ("examples", RESULTS, False))
    usage = [
        _use(category, path, may_go) for room, category, may_go in rooms for path in _children(ledger.folder / room)
    ]
    usage += [_use("ledger", path) for path in _children(ledger.folder) if path.name not in ROOMS]
    for cell in _children(ledger.folder / "cells"):
        state = status.get(cell.name)
        for path in _children(cell):
            if path.name.startswith(".partial-"):
                usage.append(_use("left by killed processes", path, True))
            elif state is None and (path.name == "best" or path.name.startswith("checkpoint-")):
                usage.append(_use(WITHOUT_ROW, path, cell.name in named))
            elif path.name.startswith("checkpoint-"):
                usage.append(_use("checkpoints", path, state == "finished"))
            elif path.name == "best":
                usage.append(DiskUse(WEIGHTS, path, _size(path), _beyond(path, keep) if state == "finished" else 0))
            else:
                usage.append(_use(RESULTS, path))
    return usage


def without_row(ledger: "Ledger", prefixes: Iterable[str]) -> list[str]:
    """Cells that no grid has a row for, by their identities or prefixes; ``RegistryError`` if one has a row."""
    cells = [ledger.cell(prefix).id for prefix in prefixes]
    rows = {row.cell.id: f"row {row.label!r} of {grid.name}" for grid in ledger.grids() for row in grid.cells}
    if used := [cell for cell in cells if cell in rows]:
        raise RegistryError(f"cell {used[0]} is {rows[used[0]]}; --keep says what stays of the weights of such cells")
    return cells


def collect(ledger: "Ledger", keep: "Keep" = "best", named: Collection[str] = ()) -> int:
    """Remove what may be removed; returns the number of bytes. Refused while a run uses the registry."""
    from taskloom.registry.results.tensors import keep_weights  # and with it torch

    with Claims(ledger.folder) as claims:
        if not claims.alone:
            raise RegistryError(f"a run is using {ledger.folder}; try again when it has ended")
        before = _size(ledger.folder)
        for use in disk_uses(ledger, keep, named):
            if not use.may_go:
                continue
            if use.what == WEIGHTS:
                keep_weights(use.path.parent, keep)
            elif use.path.is_dir():
                shutil.rmtree(use.path, ignore_errors=True)
            else:
                use.path.unlink(missing_ok=True)
        return before - _size(ledger.folder)


def _beyond(best: Path, keep: "Keep") -> int:
    """The number of bytes of a cell's weights that ``keep`` does not ask for."""
    if keep != "heads":
        return _size(best) if keep == "none" else 0
    with (best / "tensors.safetensors").open("rb") as file:  # a length and that many bytes of JSON come first
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    spans = [tensor["data_offsets"] for name, tensor in header.items() if name.startswith("encoder.")]
    return sum(end - start for start, end in spans)


def _use(category: str, path: Path, may_go: bool = False) -> DiskUse:
    size = _size(path)
    return DiskUse(category, path, size, size if may_go else 0)


def _children(folder: Path) -> list[Path]:
    """The contents of a folder; nothing for a link, which may lead out of the registry."""
    return sorted(folder.iterdir()) if folder.is_dir() and not folder.is_symlink() else []


def _size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder; links are not followed."""
    inside = [Path(folder, name) for folder, _, names in os.walk(path) for name in names] if path.is_dir() else [path]
    return sum(file.lstat().st_size for file in inside if os.path.lexists(file))
