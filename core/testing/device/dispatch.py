"""What happens to an operator on the pretend device: it is refused or counted, and computed on the CPU."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from taskloom.core.testing.device.generator import CPUGenerator, GPUGenerator, on_gpu, seed_of
from taskloom.core.testing.device.rules import EMULATED, FREE, INDEXED, MIXED, pin, waits_of
from taskloom.core.testing.device.tensor import GPUTensor

#: What a watcher is given: the operator, its arguments as plain tensors, and the line that it comes from.
Watch = Callable[[Any, tuple[Any, ...], dict[str, Any], str], None]
_NOT_THEIRS = (str(Path(torch.__file__).parent), str(Path(__file__).parent))


class Dispatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs every operator while the device is there. Counts are by operator (or cause) and line."""

    def __init__(self, default: GPUGenerator, watch: Watch | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.default, self.watch = default, watch
        self.kernels: Counter[tuple[str, str]] = Counter()
        self.waits: Counter[tuple[str, str]] = Counter()

    def wait(self, cause: str) -> None:
        """The host waits for the device."""
        self.waits[cause, line()] += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One operator, on whichever device."""
        name = func._schema.name.removeprefix("aten::")
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        ours = [one for one in tensors if isinstance(one, GPUTensor)]
        place = self._place(name, args, kwargs, ours)
        _refuse_generator(name, kwargs.get("generator"), place)
        if not ours and place != "gpu":
            return _on_host(func, args, kwargs)
        _refuse_mixture(func, name, args, tensors, place)
        for cause in waits_of(name, args, kwargs, place):
            self.wait(cause)
        reshaped = torch.Tag.inplace_view in func.tags  # squeeze_ and its like
        if name not in FREE and not func.is_view and not reshaped:
            self.kernels[name, line()] += 1
        if reshaped:
            _reshape(func, args, kwargs)
        return self._compute(func, name, args, kwargs, tensors, place)

    def _place(self, name: str, args: Any, kwargs: Any, ours: list[GPUTensor]) -> str:
        """Where the result is."""
        if (device := kwargs.get("device")) is not None:
            return torch.device(device).type
        decides = args[:1] if name == "copy_" or name in INDEXED else ours
        return "gpu" if any(isinstance(one, GPUTensor) for one in decides) else "cpu"

    def _compute(self, func: Any, name: str, args: Any, kwargs: Any, tensors: list[Tensor], place: str) -> Any:
        args, kwargs = tree_map_only(GPUTensor, lambda one: one.plain, (args, kwargs))
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        if self.watch:
            self.watch(func, args, kwargs, line())
        if name in EMULATED:
            draw = {} if name.endswith("backward") else {"draw": self.default.draw()}
            found = EMULATED[name](*args, **kwargs, **draw)
        elif generator := on_gpu(kwargs.get("generator")):
            found = func(*args, **{**kwargs, "generator": generator.ready()})
        elif torch.Tag.nondeterministic_seeded in func.tags:
            with self._drawing():
                found = func(*args, **kwargs)
        else:
            found = func(*args, **kwargs)
        known = {id(one.plain if isinstance(one, GPUTensor) else one): one for one in tensors}

        def wrap(one: Tensor) -> Tensor:
            # What an emulated kernel leaves on the host is a scalar: the seed and the offset of its draws.
            host = place != "gpu" or (name in EMULATED and one.dtype == torch.int64)
            return known[id(one)] if id(one) in known else one if host else GPUTensor(one)

        return tree_map_only(Tensor, wrap, found)

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        """Let an operator that takes no generator draw from the device's default one."""
        state = torch.default_generator.get_state()
        torch.default_generator.manual_seed(seed_of(*self.default.draw()))
        try:
            yield
        finally:
            torch.default_generator.set_state(state)


def _reshape(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Let an operator that only changes a tensor's form change the wrapper's, too."""
    before = torch._C._meta_in_tls_dispatch_include()
    with no_dispatch():
        torch._C._set_meta_in_tls_dispatch_include(True)
        try:
            func(*args, **kwargs)
        finally:
            torch._C._set_meta_in_tls_dispatch_include(before)


def line() -> str:
    """The innermost line that is neither torch's nor the device's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_THEIRS):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _refuse_generator(name: str, generator: CPUGenerator | None, place: str) -> None:
    if generator is not None and (kind := "gpu" if on_gpu(generator) else "cpu") != place:
        raise RuntimeError(f"Expected a '{place}' device type for generator but found '{kind}' ({name})")


def _refuse_mixture(func: Any, name: str, args: Any, tensors: list[Tensor], place: str) -> None:
    """What CUDA says to tensors of two devices; kernels of single elements take a number from the host."""
    if name in ("copy_", "_to_copy"):
        return
    if name in INDEXED and place == "cpu":
        raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
    host = [one for one in tensors if not isinstance(one, GPUTensor)]
    if name in INDEXED:  # indices are copied to the device, and so is a single value
        host = [one for one in host if not any(one is index for index in args[1])]
    scalars = name in MIXED or name.startswith("_foreach_") or torch.Tag.pointwise in func.tags
    written = name.endswith("_") and not isinstance(tensors[0], GPUTensor)
    if host and (written or not scalars or any(one.dim() for one in host)):
        found = ", ".join(f"{list(one.shape)} on {one.device}" for one in tensors)
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, gpu:0 and cpu! "
            f"({name} of {found})"
        )


def _on_host(func: Any, args: Any, kwargs: Any) -> Any:
    """An operator of the CPU, which has no memory to pin of its own."""
    pinned = kwargs.pop("pin_memory", None)
    found = func(*args, **kwargs)
    return pin(found) if pinned else found
