"""A GPU that is not there, for tests of what runs on one: its tensors compute on the CPU and refuse what CUDA refuses.

    with PretendGPU() as gpu:  # torch.cuda.is_available(), and torch.device("cuda") is the pretend device
        train()
    gpu.kernels.total(), gpu.waits.most_common(5)

* tensors of two devices in one operator, a generator of another device and ``numpy()`` raise what they raise on CUDA;
* ``kernels`` counts operators that launch something, by name and line. One call counts as one, though CUDA cuts what
  ``_foreach_*`` and ``_fused_*`` operators are given into a few launches of many tensors each; so do copies count;
* ``waits`` counts what makes the host wait for the device, by cause and line: ``item``, ``tolist``, copies that block
  or are not from pinned memory, masks as indices, ``nonzero``, ``unique`` and their like.

It stands on torch's backend for devices of others, which belongs to the whole process from the first use on.
"""

from collections import Counter
from contextlib import ExitStack, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode

from taskloom.core.testing.device import attention, autocast
from taskloom.core.testing.device.dispatch import Dispatch, Watch
from taskloom.core.testing.device.generator import GPUGenerator
from taskloom.core.testing.device.rules import is_pinned, pin
from taskloom.core.testing.device.tensor import GPUTensor

__all__ = ["GPUTensor", "PretendGPU"]


class _Backend:
    """``torch.gpu``: what torch asks of a device's module."""

    default: GPUGenerator

    def is_available(self) -> bool:
        return True

    is_initialized = is_available

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        self.default.manual_seed(seed)

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return self.default.get_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        self.default.set_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


_backend: list[_Backend] = []


def _registered() -> _Backend:
    """torch's module of the device, made on the first use in a process."""
    if not _backend:
        from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

        _backend.append(_Backend())
        _setup_privateuseone_for_python_backend("gpu", backend_module=_backend[0])
        autocast.register()
        attention.register()
    return _backend[0]


class _Names(TorchFunctionMode):
    """Who asks for ``cuda`` gets the pretend device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {key: _renamed(value) for key, value in (kwargs or {}).items()}
        return func(*map(_renamed, args), **kwargs)


def _renamed(value: Any) -> Any:
    return "gpu:0" if isinstance(value, str) and value in ("cuda", "cuda:0") else value


class PretendGPU:
    """Enter it to have a GPU. ``watch`` is called with each operator on it: see :data:`Watch`."""

    def __init__(self, watch: Watch | None = None) -> None:
        self._backend = _registered()
        self.default = GPUGenerator("gpu")
        self._mode = Dispatch(self.default, watch)
        self.device = torch.device("gpu:0")

    @staticmethod
    def possible() -> bool:
        """Whether this torch has a backend for devices of others in Python, and nobody else has taken it."""
        known = hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend")
        return known and torch._C._get_privateuse1_backend_name() in ("privateuseone", "gpu")

    @property
    def kernels(self) -> Counter[tuple[str, str]]:
        """How often what was launched, by operator and line."""
        return self._mode.kernels

    @property
    def waits(self) -> Counter[tuple[str, str]]:
        """How often the host waited, by cause and line."""
        return self._mode.waits

    def reset(self) -> None:
        """Count from zero."""
        self.kernels.clear()
        self.waits.clear()

    def __enter__(self) -> "PretendGPU":
        self._stack = stack = ExitStack()
        self._backend.default = default = self.default
        names: dict[str, Any] = {
            "_lazy_init": lambda: None,
            "current_device": lambda: 0,
            "default_generators": (default,),
            "device_count": lambda: 1,
            "empty_cache": lambda: None,
            "get_rng_state": self._backend.get_rng_state,
            "is_available": lambda: True,
            "is_bf16_supported": lambda *including: True,
            "is_initialized": lambda: True,
            "manual_seed_all": self._backend.manual_seed_all,
            "max_memory_allocated": lambda *device: 0,
            "reset_peak_memory_stats": lambda *device: None,
            "set_rng_state": self._backend.set_rng_state,
            "synchronize": lambda *device: self._mode.wait("synchronize"),
        }
        stack.enter_context(patch.multiple(torch.cuda, **names))
        stack.enter_context(patch.multiple(torch.Tensor, pin_memory=pin, is_pinned=is_pinned))  # in every thread
        stack.enter_context(patch.object(torch, "clear_autocast_cache", autocast.forget_casts))
        stack.enter_context(patch.object(torch, "Generator", GPUGenerator))
        # A tensor like these has no views in inference mode; without gradients the operators are the same.
        inference = patch.object(torch._C, "_InferenceMode", lambda on: torch.no_grad() if on else nullcontext())
        stack.enter_context(inference)
        stack.enter_context(patch.object(GPUTensor, "run", self._mode.run))
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))  # a mode is one thread's
        _setting(stack, torch.__future__, "swap_module_params_on_conversion")  # module.to() keeps its parameters
        stack.callback(torch._C._set_only_lift_cpu_tensors, torch._C._only_lift_cpu_tensors())
        torch._C._set_only_lift_cpu_tensors(True)
        stack.enter_context(_Names())
        stack.enter_context(self._mode)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()


def _setting(stack: ExitStack, module: Any, name: str) -> None:
    """Switch one of torch's settings on until the stack is closed."""
    change = getattr(module, f"set_{name}")
    stack.callback(change, getattr(module, f"get_{name}")())
    change(True)
