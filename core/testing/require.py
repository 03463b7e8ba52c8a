"""Requirements on tensors and modules."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.autograd.gradcheck import GradcheckError
from torch.autograd.graph import saved_tensors_hooks
from torch.testing import assert_close

from taskloom.core.testing.law import given, require, words_of


def require_same(actual: Tensor, expected: Tensor, message: str, *, within: float = 0.0) -> None:
    """Equal to the last bit, or up to ``within`` times the largest expected value."""
    largest = float(expected.detach().abs().double().nan_to_num().max()) if expected.numel() else 0.0
    assert_close(
        actual.detach(),
        expected.detach(),
        rtol=0.0,
        atol=within * largest + (1e-6 if within else 0.0),
        equal_nan=True,
        check_dtype=False,
        msg=lambda text: f"{message}: {text}",
    )


def require_zero_mean(gaps: Tensor, message: str) -> None:
    """The mean of gaps, [seeds, values], is zero within five and a half standard errors."""
    error = gaps.std(0) / len(gaps) ** 0.5
    excess = (gaps.mean(0).abs() - 5.5 * error).max().item()
    require(excess <= 1e-5, f"over {len(gaps)} seeds, {message} on average, by {excess:.3g}")


def require_finite(value: Tensor, name: str) -> None:
    """No NaN and no infinity."""
    wrong = value.detach()[~value.detach().isfinite()]
    require(not wrong.numel(), f"{name} is not finite: {wrong[:1].tolist()}")


#: Step, absolute and relative tolerance of finite differences: in float64, and where an operation rounds to float32 (as
#: ``score.float()`` does): there a longer step is safe from rounding and a shorter one from kinks.
_FINE = ((1e-6, 1e-6, 1e-4),)
_COARSE = ((1e-2, 1e-3, 5e-3), (1e-3, 1e-3, 5e-3))


def require_gradient(value: Callable[[], Tensor], at: Mapping[str, Tensor], hint: str = "") -> None:
    """Require that the gradient of ``value()`` with respect to each tensor in ``at`` is that of finite differences.

    The tensors are float64, and ``value`` reads them. The message ends with ``hint``.
    """
    dtypes: list[torch.dtype] = []

    def note(saved: Tensor) -> Tensor:
        dtypes.append(saved.dtype)
        return saved

    with saved_tensors_hooks(note, lambda saved: saved):
        value()
    rounds = torch.float32 in dtypes or torch.bfloat16 in dtypes
    for name, tensor in at.items():
        errors = []
        for step, absolute, relative in (*_FINE, *(_COARSE if rounds else ())):
            options: Any = {"eps": step, "atol": absolute, "rtol": relative, "check_undefined_grad": False}
            try:
                # Adding 0 makes a sparse gradient dense, as gradcheck requires.
                gradcheck(lambda x: value().double() + 0 * x.sum(), (tensor,), fast_mode=True, **options)
                break
            except GradcheckError as error:
                errors.append(error)
        else:
            with given(f"{name} of shape {list(tensor.shape)}"):
                raise AssertionError(f"its gradient is not that of finite differences: {words_of(errors[0])}{hint}")


def through_checkpoint(module: nn.Module) -> dict[str, Tensor]:
    """A module's state saved to and loaded from the bytes of a checkpoint: tensors, and nothing to be unpickled."""
    state = module.state_dict()
    for name, value in state.items():
        kind = type(value).__name__
        require(isinstance(value, Tensor), f"state {name!r} should be a tensor (use a buffer). Found {kind}.")
    kept = [name for name, buffer in module.named_buffers() if buffer.requires_grad]
    require(not kept, f"buffer {', '.join(kept)} still holds the graph of a step; detach what goes into a buffer")
    return load(save({name: value.detach().clone().contiguous() for name, value in state.items()}))


def new_generator(seed: int = 0, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator of this seed."""
    return torch.Generator(device).manual_seed(seed)
