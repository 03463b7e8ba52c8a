"""The process that trains: its memory, torch's compiler, versions, seeds of the global generators."""

import ctypes
import functools
import gc
import platform
import random
import resource
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from taskloom.core import OutOfMemory, derive_seed, is_out_of_memory


@contextmanager
def annotate_oom(task: str, *, micro_batch: int, batch: int, where: str = "") -> Iterator[None]:
    """Turn every way in which memory runs out into one error with the task and the number of examples."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OutOfMemory) or not is_out_of_memory(error):
            raise
        traceback.clear_frames(error.__traceback__)  # they hold on to everything that was in memory
        raise OutOfMemory(task, micro_batch=micro_batch, batch=batch, where=where) from None


def uses_gpu() -> bool:
    """Whether this process has a GPU in use; one that it only sees is none of its business."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def release_memory() -> None:
    """Give back what nothing needs any more, also what the C library keeps for later."""
    gc.collect()
    if uses_gpu():
        torch.cuda.empty_cache()
    with suppress(OSError, AttributeError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def keep_freed_memory() -> None:
    """Let the C library keep what is freed instead of giving it back to the system (glibc only).

    Gradients are freed and allocated anew in every step; without this each step pays for thousands of page faults.
    """
    with suppress(OSError, AttributeError, TypeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD: take large blocks from the heap
        mallopt(-1, (1 << 31) - 1)  # M_TRIM_THRESHOLD: and do not shrink it


def skip_compiler() -> None:
    """Spare a process torch's compiler, whose import takes a second or two and which nothing here uses.

    torch's optimizers import it only to tell it to look away: from some methods by a mark, which is set here by hand,
    and from ``step``, which gets the same guard of the gradient mode without it. Where torch has changed, nothing
    happens.
    """
    if "torch._dynamo" in sys.modules:
        return
    for method in vars(torch.optim.Optimizer).values():
        function = getattr(method, "__wrapped__", None)
        if function is not None and hasattr(function, "__dict__"):
            function.__dict__.setdefault("__dynamo_disable", function)

    def guarded(step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(step)
        def call(self: torch.optim.Optimizer, closure: Any = None) -> Any:
            with torch.set_grad_enabled(self.defaults["differentiable"]):
                return step(self, closure)

        return call

    for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD):
        step = vars(kind).get("step")
        if step is not None and step.__code__.co_name == "_use_grad":
            kind.step = guarded(step.__wrapped__)  # type: ignore[method-assign]


def reset_peak_memory() -> None:
    """Start measuring anew, where the system allows it."""
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


#: Encoders up to this width are trained by one thread: dividing so little work costs more than it gains.
NARROW = 64


@contextmanager
def fitting_threads(spec: Mapping[str, Any]) -> Iterator[None]:
    """Let torch use the threads that this process was given, but one where the encoder is small."""
    given, width = torch.get_num_threads(), spec["encoder"].get("width")
    torch.set_num_threads(1 if isinstance(width, int) and width <= NARROW else given)
    try:
        yield
    finally:
        torch.set_num_threads(given)


def machine_versions() -> dict[str, str]:
    """What a result should remember beside the plugins' versions: those of other libraries."""
    names = ("taskloom", "torch", "numpy", "tokenizers", "safetensors")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def trained_on(device: torch.device, resumed: Mapping[str, Any] | None) -> dict[str, str]:
    """Device and number of threads, on which the last digits of a result depend; in order, if a cell had several.

    >>> before = {"trained_on": {"device": "cuda (NVIDIA A100)", "threads": str(torch.get_num_threads())}}
    >>> trained_on(torch.device("cpu"), before)["device"]
    'cuda (NVIDIA A100), then cpu'
    """
    model = f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""
    here = {"device": f"{device.type}{model}", "threads": str(torch.get_num_threads())}
    before: dict[str, str] = resumed["trained_on"] if resumed else here
    last = {name: value.rpartition(", then ")[2] for name, value in before.items()}
    return {name: before[name] + (f", then {here[name]}" if last[name] != here[name] else "") for name in here}


def seed_globals(seed: int) -> None:
    """Seed the global generators: our components never draw from them, but a plugin might."""
    torch.manual_seed(derive_seed(seed, "global", "torch"))
    np.random.seed(derive_seed(seed, "global", "numpy") % 2**32)
    random.seed(derive_seed(seed, "global", "python"))
