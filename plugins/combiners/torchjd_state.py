"""What a TorchJD aggregator remembers, as bytes that can be saved beside weights."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

_SHAPE = "shape"


def pack(aggregator: Any, shape: list[int]) -> Tensor:
    """The state of an aggregator that last saw a matrix of this shape: one row of bytes."""
    state: dict[str, Tensor] = {}
    if shape and hasattr(aggregator, "reset"):  # only what has state can be reset
        state[_SHAPE] = torch.tensor(shape)
        for name, _, _, value in _remembered(aggregator):
            if value is not None:
                # A float of Python's is one of 64 bits.
                kept = torch.tensor(value, dtype=torch.float64) if isinstance(value, float) else torch.as_tensor(value)
                state[name] = kept.detach().clone().contiguous()
    return torch.frombuffer(bytearray(save(state)), dtype=torch.uint8)


def unpack(aggregator: Any, packed: Tensor, prime: Callable[[list[int]], None]) -> None:
    """Fill an aggregator with a state that :func:`pack` gave; ``prime`` calls it on a matrix of a shape."""
    state = load(packed.cpu().numpy().tobytes())
    if _SHAPE not in state:
        return
    prime(state[_SHAPE].tolist())
    for name, home, key, value in list(_remembered(aggregator)):
        saved = state.get(name)
        if saved is None or isinstance(value, Tensor) or value is None:
            home[key] = saved if saved is None else saved.to(value.device if isinstance(value, Tensor) else "cpu")
        else:
            home[key] = saved.numpy() if isinstance(value, np.ndarray) else type(value)(saved.item())


def _remembered(aggregator: Any) -> Iterator[tuple[str, dict[str, Any], str, Any]]:
    """Every number, array and buffer of an aggregator's modules: name, holder, key there, value."""
    for path, module in aggregator.named_modules():
        for key, value in list(vars(module).items()):
            if isinstance(value, int | float | np.ndarray) and not isinstance(value, bool):
                yield f"{path}.{key}", vars(module), key, value
        for key, value in list(module._buffers.items()):
            yield f"{path}.{key}", module._buffers, key, value
