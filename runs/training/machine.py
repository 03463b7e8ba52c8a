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

from taskloom.core import Encoder, OutOfMemory, derive_seed, is_out_of_memory
from taskloom.registry.installed.catalogue import load_catalogue


@contextmanager
def set_up(spec: Mapping[str, Any]) -> Iterator[None]:
    """Set this process up for a cell, and leave it as it was: with ``engine="inline"`` it is the caller's own.

    Afterwards the global generators (Python's, NumPy's, torch's, the GPUs') continue where they were, torch has its
    number of threads, and its optimizers their own ``step``. Two things cannot be restored: the peak memory of the
    process counts from the beginning of its last cell, and glibc, which does not say what its thresholds were, has
    those at which its own adjustment ends.
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


def uses_gpu() -> bool:
    """Whether this process uses a GPU, as opposed to only seeing one."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def release_memory() -> None:
    """Free unused memory, including what the C library keeps for later."""
    gc.collect()
    if uses_gpu():
        torch.cuda.empty_cache()
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
    """Spare a process torch's compiler, whose import takes a second or two and which nothing here uses.

    torch's optimizers import it only to tell it to look away: from some methods by a mark, which is set here by hand,
    and from ``step``, which gets the same guard of the gradient mode without it. Where torch has changed, nothing
    happens. When the block ends, marks and guards are gone.
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
    if uses_gpu():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):  # then the peak is that of the whole process
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int:
    """Bytes: the GPU's peak where one is used, else the largest resident size of this process."""
    if uses_gpu():
        return torch.cuda.max_memory_allocated()
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


def trained_on(device: torch.device, resumed: Mapping[str, Any] | None) -> dict[str, str]:
    """Device and number of threads, on which the last digits of a score depend; in order, if a cell had several.

    >>> before = {"trained_on": {"device": "cuda (NVIDIA A100)", "threads": str(torch.get_num_threads())}}
    >>> trained_on(torch.device("cpu"), before)["device"]
    'cuda (NVIDIA A100), then cpu'
    """
    model = f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""
    here = {"device": f"{device.type}{model}", "threads": str(torch.get_num_threads())}
    before: dict[str, str] = resumed["trained_on"] if resumed else here
    last = {name: value.rpartition(", then ")[2] for name, value in before.items()}
    return {name: before[name] + (f", then {here[name]}" if last[name] != here[name] else "") for name in here}


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators, in case a plugin draws from them (built-ins never do), and restore them."""
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    gpus = torch.cuda.get_rng_state_all() if uses_gpu() else None
    random.seed(derive_seed(seed, "global", "python"))
    np.random.seed(derive_seed(seed, "global", "numpy") % 2**32)
    torch.default_generator.manual_seed(derive_seed(seed, "global", "torch"))
    torch.cuda.manual_seed_all(derive_seed(seed, "global", "torch"))  # once there is one, if there is none yet
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.default_generator.set_state(cpu)
        if gpus is not None:
            torch.cuda.set_rng_state_all(gpus)
        else:  # as torch would have seeded them
            torch.cuda.manual_seed_all(torch.initial_seed())
