"""A linear layer that knows copies of its parameters, and a faster way where nothing is learned."""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from taskloom.plugins.encoders.copies import Parts, linear


class Linear(nn.Linear):
    """x Wᵀ + b, with GELU behind it if asked for; the weights may be copies (see ``copies``).

    In evaluation on a CPU the weights are laid out once as oneDNN wants them, which makes its products about a tenth
    faster than those on plain weights, and GELU comes with them. Other weights are noticed and laid out anew.
    """

    _laid_out: tuple[tuple[int, int], Tensor] | None = None  # address and version of the weights, and their layout

    def forward(  # type: ignore[override]
        self, x: Tensor, parts: Parts, *, activate: bool = False
    ) -> Tensor:
        if (weight := self._layout(x)) is not None:
            kind, algorithm = ("gelu", "none") if activate else ("none", "")
            return torch.ops.mkldnn._linear_pointwise(  # type: ignore[no-any-return]
                x, weight, self.bias, kind, [], algorithm
            )
        out = linear(x, self.weight, self.bias, parts)
        return functional.gelu(out) if activate else out

    def train(self, mode: bool = True) -> "Linear":
        if mode:
            self._laid_out = None  # nobody needs it while weights change
        return super().train(mode)

    def _layout(self, x: Tensor) -> Tensor | None:
        """The weights as oneDNN wants them; None where it cannot be used, or gradients or graphs are recorded."""
        if self.training or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return None
        plain = x.device.type == "cpu" and x.dtype == self.weight.dtype == torch.float32
        if not plain or self.weight.is_inference() or torch.is_autocast_enabled("cpu") or not _available():
            return None
        known = (self.weight.data_ptr(), self.weight._version)
        if self._laid_out is None or self._laid_out[0] != known:
            self._laid_out = (known, torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), None))
        return self._laid_out[1]


def _available() -> bool:
    library: Any = torch.backends.mkldnn
    return bool(library.is_available() and library.enabled)


def empty_linear(inputs: int, outputs: int) -> Linear:
    """A linear layer, not yet filled: ``nn.Linear(…)`` would draw from torch's global generator."""
    make = cast(Any, nn.utils.skip_init)
    return make(Linear, inputs, outputs)  # type: ignore[no-any-return]
