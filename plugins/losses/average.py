"""A moving average of a model, kept as state."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from taskloom.plugins.similarity import at_least_float32


class MovingAverage(nn.Module):
    """θ̃ ← m θ̃ + (1 − m) θ of the parameters that are being trained; it begins as a copy of them.

    The average is in buffers that come into being with the first parameters seen, or with a saved state: they
    are saved, restored and moved between devices like any others. Half precision is averaged in float32, where
    a step of 1 − m is not lost to rounding.
    """

    def __init__(self, momentum: float) -> None:
        super().__init__()
        self.momentum = momentum

    @torch.no_grad()
    def update(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Move the average of every parameter that learns towards its present value."""
        for name, parameter in parameters.items():
            if not parameter.requires_grad:
                continue
            present = at_least_float32(parameter.detach())
            average = self._buffers.get(_key(name))
            if average is None:
                self.register_buffer(_key(name), present.clone())
            else:
                average = self._buffers[_key(name)] = average.to(present.device)
                average.lerp_(present, 1 - self.momentum)

    def values(self, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
        """What to put in the place of the parameters: averages where they learn, else themselves; no gradients."""
        values = {}
        for name, parameter in parameters.items():
            average = self._buffers.get(_key(name)) if parameter.requires_grad else None
            values[name] = parameter.detach() if average is None else average.to(parameter)
        return values

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        for name, tensor in state_dict.items():
            key = name.removeprefix(prefix)
            if name.startswith(prefix) and key not in self._buffers:
                self.register_buffer(key, torch.empty_like(tensor))
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _key(name: str) -> str:
    """A parameter's name as a buffer's, which may hold no dot."""
    return name.replace(".", "/")
