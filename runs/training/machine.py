"""The training process: set up for a cell and restored; its memory, torch's compiler, versions, seeds."""

import ctypes
import functools
import gc
import platform
import random
import resource
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from taskloom.core import Encoder, OutOfMemory, derive_seed, is_out_of_memory
from taskloom.registry.installed.catalogue import load_catalogue


@contextmanager
def set_up(spec: Mapping[str, Any]) -> Iterator[None]:
    """Prepare this process for a cell, and restore it afterwards: with ``engine="inline"`` it is the caller's own.

    The global generators (Python's, NumPy's, torch's, the GPUs') then continue where they were, and torch has its
    number of threads and its optimizers' own ``step``. Two things cannot be restored: peak memory counts from the
    beginning of the last cell, and glibc, whose thresholds cannot be read, has the highest that it would choose itself.
    """
    reset_peak_memory()
    with ExitStack() as stack:
        for change in (kept_memory(), skipped_compiler(), fitting_threads(spec), seeded(spec["seed"])):
            stack.enter_context(change)
        yield


@contextmanager
def annotate_oom(task: str, *, micro_batch: int, batch: int, where: str = "") -> Iterator[None]:
    """Turn every out-of-memory error into ``OutOfMemory`` with the task and the number of examples."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OutOfMemory) or not is_out_of_memory(error):
            raise
        traceback.clear_frames(error.__traceback__)  # they hold on to everything that was in memory
        raise OutOfMemory(task, micro_batch=micro_batch, batch=batch, where=where) from None


def gpu_module() -> Any:
    """torch's module for the GPU that this process uses (``torch.cuda``, ``torch.xpu``, ``torch.mps``), or None.

    A GPU that is visible but not initialized does not count.
    """
    module: Any
    for module in (torch.cuda, torch.xpu):
        if module.is_initialized():
            return module
    # torch.mps has no is_initialized(); allocated memory shows that it is in use.
    return torch.mps if torch.backends.mps.is_available() and torch.mps.current_allocated_memory() else None


def gpu_generator(module: Any) -> torch.Generator:
    """The default generator of the current GPU of a module such as ``torch.cuda``."""
    if hasattr(module, "default_generators"):
        generator: torch.Generator = module.default_generators[module.current_device()]
        return generator
    return torch.mps._get_default_mps_generator()  # no public function returns it


def to_device(module: nn.Module, device: torch.device) -> None:
    """Move a module to a device, in place. Its float64 buffers stay on the host if the device is Apple's GPU.

    That has no float64; what is kept in it (margins, histories of losses) is a few numbers per task or example.
    """
    if device.type != "mps":
        module.to(device)
        return
    apply: Any = module._apply
    apply(lambda tensor: tensor if tensor.dtype == torch.float64 else tensor.to(device))


def release_memory() -> None:
    """Free unused memory, including what the C library keeps for later."""
    gc.collect()
    if gpu := gpu_module():
        gpu.empty_cache()
    with suppress(OSError, AttributeError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def keep_freed_memory() -> None:
    """Let the C library keep freed memory instead of returning it to the system (glibc only).

    Gradients are freed and allocated anew in every step; without this each step pays for thousands of page faults.
    """
    _set_thresholds(mapped=1 << 30, trim=(1 << 31) - 1)


@contextmanager
def kept_memory() -> Iterator[None]:
    """Keep freed memory until the block ends."""
    keep_freed_memory()
    try:
        yield
    finally:
        _set_thresholds(mapped=32 << 20, trim=64 << 20)  # the highest that glibc itself chooses


def _set_thresholds(*, mapped: int, trim: int) -> None:
    """Allocate blocks of up to ``mapped`` bytes on the heap, and shrink it when ``trim`` bytes at its end are free."""
    with suppress(OSError, AttributeError, TypeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-3, mapped)  # M_MMAP_THRESHOLD
        mallopt(-1, trim)  # M_TRIM_THRESHOLD


@contextmanager
def skipped_compiler() -> Iterator[None]:
    """Keep torch from importing its compiler, which takes a second or two and is not used here.

    torch's optimizers import it only to exclude their methods from compilation: some by an attribute, which is set here
    directly, and ``step`` by a wrapper, in whose place one is set here that guards the gradient mode in the same way.
    Nothing happens if a later torch does this differently. Attributes and wrappers are removed when the block ends.
    """
    if "torch._dynamo" in sys.modules:
        yield
        return
    wrapped = [getattr(method, "__wrapped__", None) for method in vars(torch.optim.Optimizer).values()]
    marked = [method for method in wrapped if hasattr(method, "__dict__") and "__dynamo_disable" not in vars(method)]
    for method in marked:
        vars(method)["__dynamo_disable"] = method

    def guarded(step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(step)
        def call(self: torch.optim.Optimizer, closure: Any = None) -> Any:
            with torch.set_grad_enabled(self.defaults["differentiable"]):
                return step(self, closure)

        return call

    kinds: tuple[Any, ...] = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
    steps = {kind: vars(kind).get("step") for kind in kinds}
    for kind, step in steps.items():
        if step is not None and step.__code__.co_name == "_use_grad":
            kind.step = guarded(step.__wrapped__)
    try:
        yield
    finally:
        for kind, step in steps.items():
            if step is not None:
                kind.step = step
            elif "step" in vars(kind):  # which torch has made of its parent's, with its hooks
                del kind.step
        for method in marked:
            vars(method).pop("__dynamo_disable", None)


def reset_peak_memory() -> None:
    """Restart the measurement of peak memory, if the system allows it."""
    if (gpu := gpu_module()) and hasattr(gpu, "reset_peak_memory_stats"):
        gpu.reset_peak_memory_stats()
    with suppress(OSError):  # then the peak is that of the whole process
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int:
    """Bytes: the GPU's peak where one is used, else the largest resident size of this process.

    Of Apple's GPU, which counts no peak, it is what the driver has allocated by now.
    """
    if gpu := gpu_module():
        allocated = getattr(gpu, "max_memory_allocated", None) or gpu.driver_allocated_memory
        return int(allocated())
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024  # macOS counts bytes


@contextmanager
def fitting_threads(spec: Mapping[str, Any]) -> Iterator[None]:
    """Let torch use this process's threads, but only one if the encoder says that it is small."""
    threads, (encoder, _) = torch.get_num_threads(), load_catalogue().try_out(Encoder, spec["encoder"])
    torch.set_num_threads(1 if encoder is not None and encoder.small else threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def machine_versions() -> dict[str, str]:
    """The versions of Python and of libraries, recorded with a result beside those of plugins."""
    names = ("taskloom", "torch", "numpy", "tokenizers", "safetensors")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def device_name(device: torch.device) -> str:
    """The kind of a device, with its model if torch knows it: ``cuda (NVIDIA A100)``."""
    name = getattr(torch.get_device_module(device), "get_device_name", None)
    return f"{device.type} ({name(device)})" if name else device.type


def trained_on(device: torch.device, resumed: Mapping[str, Any] | None) -> dict[str, str]:
    """Device and number of threads, on which the last digits of a score depend; in order, if a cell had several.

    >>> before = {"trained_on": {"device": "cuda (NVIDIA A100)", "threads": str(torch.get_num_threads())}}
    >>> trained_on(torch.device("cpu"), before)["device"]
    'cuda (NVIDIA A100), then cpu'
    """
    here = {"device": device_name(device), "threads": str(torch.get_num_threads())}
    before: dict[str, str] = resumed["trained_on"] if resumed else here
    last = {name: value.rpartition(", then ")[2] for name, value in before.items()}
    return {name: before[name] + (f", then {here[name]}" if last[name] != here[name] else "") for name in here}


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators, in case a plugin draws from them (built-ins never do), and restore them."""
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    gpu = gpu_module()
    gpus = gpu and (gpu.get_rng_state_all() if hasattr(gpu, "get_rng_state_all") else gpu.get_rng_state())
    random.seed(derive_seed(seed, "global", "python"))
    np.random.seed(derive_seed(seed, "global", "numpy") % 2**32)
    torch.default_generator.manual_seed(derive_seed(seed, "global", "torch"))
    _seed_gpus(derive_seed(seed, "global", "torch"))
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.default_generator.set_state(cpu)
        if gpu is None:  # as torch would have seeded them
            _seed_gpus(torch.initial_seed())
        elif hasattr(gpu, "set_rng_state_all"):
            gpu.set_rng_state_all(gpus)
        else:
            gpu.set_rng_state(gpus)


def _seed_gpus(seed: int) -> None:
    """Seed the GPUs of every kind; those that are not used yet when they are."""
    torch.cuda.manual_seed_all(seed)
    torch.xpu.manual_seed_all(seed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)
