"""Folders of tensors with their state: weights, checkpoints, results of stages, tokenized texts.

Such a folder appears whole or not at all: ``tensors.safetensors`` and ``state.json``, which has a checksum of both.
Nothing is ever unpickled.
"""

import errno
import hashlib
import json
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from taskloom.registry.results.artifacts import partial_prefix, sync

Tensors = dict[str, Tensor]
#: What a finished cell keeps of the weights of its best epoch: all, all but the encoder's, or nothing.
Keep = Literal["best", "heads", "none"]


def save_folder(folder: Path, tensors: Tensors, state: dict[str, Any]) -> None:
    """Write tensors and state into ``folder``, whole or not at all; replaces an existing folder."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=partial_prefix(), dir=folder.parent))
    try:
        save_file(tensors, partial / "tensors.safetensors")
        facts = json.loads(json.dumps(state, default=float))  # numbers may be numpy's
        facts["sha256"] = _checksum(partial, facts)
        (partial / "state.json").write_text(json.dumps(facts), encoding="utf-8")
        for path in (partial / "tensors.safetensors", partial / "state.json", partial):
            sync(path)
        put_folder(partial, folder)
        sync(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def put_folder(partial: Path, folder: Path) -> None:
    """Rename a folder. An existing one of that name is moved aside first, so that nobody sees it half removed."""
    while True:
        try:
            partial.rename(folder)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        aside = Path(tempfile.mkdtemp(prefix=partial_prefix(), dir=folder.parent))
        with suppress(FileNotFoundError):  # another process was quicker
            folder.rename(aside / "old")
        shutil.rmtree(aside, ignore_errors=True)


def load_folder(folder: Path) -> tuple[Tensors, dict[str, Any]]:
    """Read what :func:`save_folder` wrote; ``ValueError`` if it is not what was written."""
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        whole = isinstance(state, dict) and state.get("sha256") == _checksum(folder, state)
        tensors = load_file(folder / "tensors.safetensors") if whole else {}
    except (
        OSError,
        ValueError,
        RecursionError,
        SafetensorError,
        RuntimeError,
    ) as error:  # the files may come from anywhere
        raise ValueError(f"{folder.name} cannot be read: {error}") from None
    if not whole:
        raise ValueError(f"{folder.name} is damaged: its checksum is not the one that was written")
    return tensors, state


def _checksum(folder: Path, state: dict[str, Any]) -> str:
    """The checksum of the tensors in a folder together with a state."""
    with (folder / "tensors.safetensors").open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    kept = {key: value for key, value in state.items() if key != "sha256"}
    digest.update(json.dumps(kept, sort_keys=True).encode())
    return digest.hexdigest()


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a cell, the oldest first."""
    return sorted(folder.glob("checkpoint-*"))


def drop_checkpoints(folder: Path) -> None:
    """Remove a finished cell's checkpoints, and the files that a killed writer left."""
    for path in [*checkpoints(folder), *folder.glob(".partial-*")]:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def keep_weights(folder: Path, keep: Keep) -> None:
    """Remove the weights of a finished cell that ``keep`` does not name, as far as they still exist."""
    best = folder / "best"
    if keep == "none":
        shutil.rmtree(best, ignore_errors=True)
    elif keep == "heads" and best.is_dir():
        tensors, state = load_folder(best)
        heads = {name: tensor for name, tensor in tensors.items() if not name.startswith("encoder.")}
        if len(heads) < len(tensors):
            save_folder(best, heads, {key: value for key, value in state.items() if key != "sha256"})
