"""Checkpoints: everything a run needs to continue as if it had never stopped.

The tensors of a checkpoint are weights, optimizer, buffers and random states; its state is the progress, the sampler's
state and the events reported so far. The last two checkpoints are kept, in case the newest one is damaged.
"""

import shutil
from pathlib import Path
from typing import Any

import torch
from torch import nn

from taskloom.registry.results.tensors import Tensors, checkpoints, load_folder, save_folder

KEPT = 2


def save_checkpoint(
    folder: Path, stage: int, epoch: int, tensors: Tensors, state: dict[str, Any], *, steps: int = 0
) -> None:
    """Write a checkpoint of a cell; removes all others but the one before it (later ones are damaged).

    ``epoch`` is the last whole epoch, ``steps`` the number of steps taken in the next one.
    """
    name = f"checkpoint-{stage:03d}-{epoch:05d}" + (f"-{steps:07d}" if steps else "")
    save_folder(folder / name, tensors, state)
    paths = checkpoints(folder)
    for other in set(paths) - set([path for path in paths if path.name <= name][-KEPT:]):
        shutil.rmtree(other, ignore_errors=True)


def newest_checkpoint(folder: Path) -> tuple[tuple[Tensors, dict[str, Any]] | None, list[str]]:
    """The newest intact checkpoint, and the problems of newer ones."""
    damaged: list[str] = []
    for path in reversed(checkpoints(folder)):
        try:
            return load_folder(path), damaged
        except ValueError as error:
            damaged.append(str(error))
    return None, damaged


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
