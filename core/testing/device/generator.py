"""A generator that says it is on the pretend device, with the state that CUDA's have: a seed and an offset."""

from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from taskloom.core.component import derive_seed

CPUGenerator = torch.Generator
_KNOWN: WeakValueDictionary[int, "GPUGenerator"] = WeakValueDictionary()


class _AnyGenerator(type(torch.Generator)):  # type: ignore[misc]
    """Every generator counts as one, also those that were made before this class took the name ``torch.Generator``."""

    def __instancecheck__(cls, one: Any) -> bool:
        return isinstance(one, CPUGenerator)


class GPUGenerator(torch.Generator, metaclass=_AnyGenerator):
    """Stands in for ``torch.Generator``; asked for another device it makes torch's own.

    A draw depends on the seed and the offset alone and moves the offset on, so any 16 bytes are a state.
    """

    seed_now: int
    offset: int

    def __new__(cls, device: torch.device | str = "cpu") -> Any:
        if (where := torch.device(device)).type != "gpu":
            return CPUGenerator(where)
        made = super().__new__(cls)
        made.seed_now, made.offset = 67280421310721, 0  # torch's default seed
        _KNOWN[made._cdata] = made  # type: ignore[attr-defined]
        return made

    def __init__(self, device: torch.device | str = "cpu") -> None:
        pass

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Where its numbers are drawn."""
        return torch.device("gpu:0")

    def manual_seed(self, seed: int) -> "GPUGenerator":
        """Begin anew."""
        self.seed_now, self.offset = seed % 2**63, 0
        return self

    def initial_seed(self) -> int:
        """The seed."""
        return self.seed_now

    def get_state(self) -> Tensor:
        """Seed and offset as 16 bytes, on the host."""
        return torch.tensor([self.seed_now, self.offset]).view(torch.uint8)

    def set_state(self, new_state: Tensor) -> "GPUGenerator":
        """Go on from a state."""
        if type(new_state) is not Tensor or new_state.dtype != torch.uint8:
            raise TypeError("RNG state must be a torch.ByteTensor")
        if new_state.numel() != 16:
            raise RuntimeError("RNG state is wrong size")
        self.seed_now, self.offset = new_state.clone().view(torch.int64).tolist()
        return self

    def draw(self) -> tuple[int, int]:
        """The seed and the offset of one kernel's draws, which no other draw shares."""
        self.offset += 4
        return self.seed_now, self.offset - 4

    def ready(self) -> CPUGenerator:
        """Itself as the CPU's kernels take it, set up for one kernel's draws."""
        super().manual_seed(seed_of(*self.draw()))
        return self


def seed_of(seed: int, offset: int) -> int:
    """The CPU generator's seed for the draws of one kernel."""
    return derive_seed(seed, "kernel", offset)


def on_gpu(generator: CPUGenerator | None) -> "GPUGenerator | None":
    """The pretend generator that this is: what comes through torch's dispatcher is another object for the same one."""
    return None if generator is None else _KNOWN.get(generator._cdata)  # type: ignore[attr-defined]
