"""Randomness that is passed in: generators derived from names, and dropout with a generator of its own."""

from typing import cast

import torch
from torch import Tensor, nn

from taskloom.core.component import derive_seed

_STEPS = 65536  # values of the 16 random bits of one element


def derive_generator(seed: int, *names: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator for one purpose; see :func:`taskloom.core.component.derive_seed`."""
    return torch.Generator(device=device).manual_seed(derive_seed(seed, *names))


class Dropout(nn.Module):
    """Dropout that draws from the generator bound to it; on a CPU never from torch's global one.

    In training each element is zeroed with probability ``p`` and the rest scaled by 1/(1 − p), as
    ``torch.nn.Dropout`` does; the runner binds the run's generator with :func:`bind_generator`, so that two runs
    of one seed are equal whatever else draws numbers. On a GPU it is torch's own kernel, which draws from the device's
    default generator: a run seeds that one for each stage and keeps its state in checkpoints.

    >>> drop = Dropout(0.5).train()
    >>> bind_generator(drop, torch.Generator().manual_seed(0))
    >>> drop(torch.ones(8)).unique().tolist()
    [0.0, 2.0]
    """

    def __init__(self, p: float = 0.1) -> None:
        super().__init__()
        if not 0.0 <= p < 1.0:
            raise ValueError(f"dropout should be at least 0 and below 1. Found {p}.")
        self.p = p
        self.generator: torch.Generator | None = None

    @property
    def active(self) -> bool:
        """Whether anything is dropped now."""
        return self.training and self.p > 0.0

    def forward(self, x: Tensor) -> Tensor:
        """``x``, with elements dropped in training."""
        if not self.active:
            return x
        return x * self.noise(x) if x.device.type == "cpu" else torch.native_dropout(x, self.p, True)[0]

    def noise(self, like: Tensor) -> Tensor:
        """The factors of an active dropout, 0 or 1/(1 − p), with the shape and dtype of ``like``."""
        return dropout_noise(like, self.p, self.generator)

    def extra_repr(self) -> str:
        """The options that ``print`` shows."""
        return f"p={self.p}"


def dropout_noise(like: Tensor, p: float, generator: torch.Generator | None) -> Tensor:
    """0 with probability ``p`` and 1/(1 − p) otherwise, with the shape and dtype of ``like``.

    On a CPU dropout costs as much as its random numbers, which torch draws one after another, so one 64-bit number
    serves four elements: ``p`` is rounded to multiples of 1/65536, and so is the scale, which keeps the mean at 1.
    """
    count = like.numel()
    dropped = min(round(p * _STEPS), _STEPS - 1)
    words = torch.empty((count + 3) // 4, dtype=torch.int64, device=like.device)
    draws = words.random_(-(2**63), None, generator=generator).view(torch.int16)[:count].view(like.shape)
    noise = torch.empty(like.shape, dtype=like.dtype, device=like.device)
    torch.ge(draws, dropped - _STEPS // 2, out=noise)  # straight into floats: no mask, no cast
    return noise.mul_(_STEPS / (_STEPS - dropped))


def bind_generator(module: nn.Module, generator: torch.Generator | None) -> None:
    """Give ``generator`` to every submodule that draws random numbers (has an attribute ``generator``)."""
    for part in module.modules():
        if hasattr(part, "generator"):
            part.generator = cast(Tensor, generator)


def init_linear(layer: nn.Linear, generator: torch.Generator, std: float = 0.02) -> nn.Linear:
    """Draw a layer's weights as BERT does, N(0, std²) with a zero bias, from ``generator``."""
    with torch.no_grad():
        layer.weight.normal_(0.0, std, generator=generator)
        if layer.bias is not None:
            layer.bias.zero_()
    return layer


def new_linear(inputs: int, outputs: int, generator: torch.Generator, *, bias: bool = True) -> nn.Linear:
    """A linear layer drawn by :func:`init_linear`, without the draw from global state of ``nn.Linear(…)``."""
    layer = cast(nn.Linear, nn.utils.skip_init(nn.Linear, inputs, outputs, bias=bias))  # type: ignore[no-untyped-call]
    return init_linear(layer, generator)
