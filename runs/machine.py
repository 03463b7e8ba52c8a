"""What the machine can tell: peak memory, versions, seeds of the global generators."""

import ctypes
import platform
import random
import resource
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from taskloom.core import derive_seed


def keep_freed_memory() -> None:
    """Let the C library keep what is freed instead of giving it back to the system (glibc only).

    Gradients are freed and allocated anew in every step; without this each step pays for thousands of page faults.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return  # another C library
    mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD: take large blocks from the heap
    mallopt(-1, (1 << 31) - 1)  # M_TRIM_THRESHOLD: and do not shrink it


def reset_peak_memory() -> None:
    """Start measuring anew, where the system allows it."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return  # then the peak is that of the whole process


def peak_memory() -> int:
    """Bytes: the GPU's peak where there is one, else the largest resident size of this process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def machine_versions() -> dict[str, str]:
    """The versions beside the plugins' that a result should remember."""
    names = ("taskloom", "torch", "numpy", "tokenizers", "safetensors")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def seed_globals(seed: int) -> None:
    """Seed the global generators: our components never draw from them, but a plugin might."""
    torch.manual_seed(derive_seed(seed, "global", "torch"))
    np.random.seed(derive_seed(seed, "global", "numpy") % 2**32)
    random.seed(derive_seed(seed, "global", "python"))
