"""What a registry takes on the disk, and what of it may go. Light to import."""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from taskloom.core.errors import RegistryError
from taskloom.registry.results.artifacts import ROOMS
from taskloom.registry.results.locks import Claims

if TYPE_CHECKING:
    from taskloom.registry.results.ledger import Ledger
    from taskloom.runs.training.checkpoint import Keep

WEIGHTS, RESULTS = "weights of the best epochs", "scores, predictions and logs"


@dataclass(frozen=True)
class Item:
    """One file or folder of a registry: what it is, how many bytes it takes, and how many of them may go."""

    what: str
    path: Path
    bytes: int
    may_go: int = 0


def items(ledger: "Ledger", keep: "Keep" = "best") -> list[Item]:
    """Everything in a registry's folder.

    May go: tokenized texts, which are made again when they are needed; results of shared stages, while no cell of a
    grid is unfinished; weights and checkpoints of cells that no grid has any more; what a killed process left behind;
    and of the weights of finished cells all that ``keep`` does not ask for.
    """
    status = {place.cell.id: place.cell.status for grid in ledger.grids() for place in grid.cells}
    all_done = all(each == "finished" for each in status.values())
    rooms = (("cache", "tokenized texts", True), ("stages", "shared stages", all_done), ("examples", RESULTS, False))
    found = [_item(what, path, may_go) for room, what, may_go in rooms for path in _children(ledger.folder / room)]
    found += [_item("ledger", path) for path in _children(ledger.folder) if path.name not in ROOMS]
    for cell in _children(ledger.folder / "cells"):
        where = status.get(cell.name)
        for path in _children(cell):
            if path.name.startswith(".partial-"):
                found.append(_item("left by killed processes", path, True))
            elif path.name.startswith("checkpoint-"):
                what = "checkpoints" if where else "checkpoints of cells in no grid"
                found.append(_item(what, path, where in (None, "finished")))
            elif path.name == "best" and where is None:
                found.append(_item("weights of cells in no grid", path, True))
            elif path.name == "best":
                found.append(Item(WEIGHTS, path, _size(path), _beyond(path, keep) if where == "finished" else 0))
            else:
                found.append(_item(RESULTS, path))
    return found


def collect(ledger: "Ledger", keep: "Keep" = "best") -> int:
    """Remove what may go; returns how many bytes that were. Refused while a run uses the registry."""
    from taskloom.runs.training.checkpoint import keep_weights  # and with it torch

    with Claims(ledger.folder) as claims:
        if not claims.alone:
            raise RegistryError(f"a run is using {ledger.folder}; try again when it has ended")
        before = _size(ledger.folder)
        for item in items(ledger, keep):
            if not item.may_go:
                continue
            if item.what == WEIGHTS:
                keep_weights(item.path.parent, keep)
            elif item.path.is_dir():
                shutil.rmtree(item.path, ignore_errors=True)
            else:
                item.path.unlink(missing_ok=True)
        return before - _size(ledger.folder)


def _beyond(best: Path, keep: "Keep") -> int:
    """How many bytes of a cell's weights are more than what is to be kept."""
    if keep != "heads":
        return _size(best) if keep == "none" else 0
    with (best / "tensors.safetensors").open("rb") as file:  # a length and that many bytes of JSON come first
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    spans = [tensor["data_offsets"] for name, tensor in header.items() if name.startswith("encoder.")]
    return sum(end - start for start, end in spans)


def _item(what: str, path: Path, may_go: bool = False) -> Item:
    size = _size(path)
    return Item(what, path, size, size if may_go else 0)


def _children(folder: Path) -> list[Path]:
    """What is in a folder; of a link, which may lead out of the registry, nothing."""
    return sorted(folder.iterdir()) if folder.is_dir() and not folder.is_symlink() else []


def _size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder; links count as what they are."""
    inside = [Path(folder, name) for folder, _, names in os.walk(path) for name in names] if path.is_dir() else [path]
    return sum(file.lstat().st_size for file in inside if os.path.lexists(file))
