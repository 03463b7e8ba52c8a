"""A linear layer that knows copies of its parameters, and a faster way where nothing is learned."""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from taskloom.plugins.encoders.copies import Parts, has_onednn, linear


class Linear(nn.Linear):
    """x Wᵀ + b, with GELU behind it if asked for; the weights may be copies (see ``copies``).

    In evaluation on a CPU the weights are laid out once as oneDNN wants them, which makes its products about a tenth
    faster than those on plain weights, and GELU comes with them. Weights that changed are laid out anew; what is
    written to them through ``.data``, behind autograd's back, goes unnoticed until the next ``train()``.
    """

    #: The weights (so that nobody else gets their address), their version and their layout.
    _laid_out: tuple[Tensor, int, Tensor] | None = None

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
        if not plain or self.weight.is_inference() or torch.is_autocast_enabled("cpu") or not has_onednn():
            return None
        weight, found = self.weight.detach(), self._laid_out
        if found is None or (found[0].data_ptr(), found[1]) != (weight.data_ptr(), self.weight._version):
            layout = torch.ops.mkldnn._reorder_linear_weight(weight, None)
            self._laid_out = found = (weight, self.weight._version, layout)
        return found[2]

    def __getstate__(self) -> dict[str, Any]:
        """Without the layout, which can be neither copied nor saved."""
        return {key: value for key, value in self.__dict__.items() if key != "_laid_out"}


def empty_linear(inputs: int, outputs: int) -> Linear:
    """A linear layer, not yet filled: ``nn.Linear(…)`` would draw from torch's global generator."""
    make = cast(Any, nn.utils.skip_init)
    return make(Linear, inputs, outputs)  # type: ignore[no-any-return]
