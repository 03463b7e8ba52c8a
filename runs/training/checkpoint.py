"""Checkpoints: everything a run needs to continue as if it had never stopped.

A checkpoint is a folder that appears whole or not at all: ``tensors.safetensors`` (weights, optimizer, buffers,
random states) and ``state.json`` (progress, the sampler's state, the events reported so far, and a checksum of both
files). The token cache consists of such folders too.
The last two checkpoints are kept, in case the newest one is damaged. Nothing is ever unpickled.
"""

import errno
import hashlib
import json
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from taskloom.registry.results.artifacts import partial_prefix, sync

Tensors = dict[str, Tensor]
KEPT = 2
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


def save_checkpoint(
    folder: Path, stage: int, epoch: int, tensors: Tensors, state: dict[str, Any], *, steps: int = 0
) -> None:
    """Write a checkpoint of a cell; removes all others but the one before it (later ones are damaged).

    ``epoch`` is the last whole epoch, ``steps`` the number of steps taken in the next one.
    """
    name = f"checkpoint-{stage:03d}-{epoch:05d}" + (f"-{steps:07d}" if steps else "")
    save_folder(folder / name, tensors, state)
    paths = _checkpoints(folder)
    for other in set(paths) - set([path for path in paths if path.name <= name][-KEPT:]):
        shutil.rmtree(other, ignore_errors=True)


def newest_checkpoint(folder: Path) -> tuple[tuple[Tensors, dict[str, Any]] | None, list[str]]:
    """The newest intact checkpoint, and the problems of newer ones."""
    damaged: list[str] = []
    for path in reversed(_checkpoints(folder)):
        try:
            return load_folder(path), damaged
        except ValueError as error:
            damaged.append(str(error))
    return None, damaged


def drop_checkpoints(folder: Path) -> None:
    """Remove a finished cell's checkpoints, and the files that a killed writer left."""
    for path in [*_checkpoints(folder), *folder.glob(".partial-*")]:
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


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("checkpoint-*"))


def module_state(module: nn.Module, prefix: str) -> Tensors:
    """A module's weights and buffers by name."""
    return {prefix + name: tensor for name, tensor in unique(module.state_dict()).items()}


def unique(tensors: Tensors) -> Tensors:
    """The tensors without second names of shared ones, which safetensors refuses to store twice."""
    seen: set[tuple[int, int]] = set()
    kept: Tensors = {}
    for name, tensor in tensors.items():
        memory = (tensor.data_ptr(), tensor.numel())
        if tensor.numel() and memory in seen:
            continue
        seen.add(memory)
        kept[name] = tensor.contiguous()
    return kept


def load_module_state(module: nn.Module, tensors: Tensors, prefix: str) -> None:
    """Copy saved weights and buffers into a module; those that were not saved stay unchanged."""
    saved = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
    _, unexpected = module.load_state_dict(saved, strict=False)
    if unexpected:
        raise ValueError(f"saved tensors that nothing here has: {', '.join(unexpected)}")


def optimizer_state(optimizer: torch.optim.Optimizer) -> Tensors:
    """The optimizer's running means and step counts, by parameter index."""
    state = optimizer.state_dict()["state"]
    return {
        f"optimizer.{index}.{key}": tensor
        for index, parameter_state in state.items()
        for key, tensor in parameter_state.items()
    }


def load_optimizer_state(optimizer: torch.optim.Optimizer, tensors: Tensors) -> None:
    """Load saved running means and step counts into an optimizer over the same parameters."""
    state: dict[int, Tensors] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".")
            state.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
