"""Out of memory as a state: who did not fit, and with how many examples at a time."""

import ctypes
import gc
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

from taskloom.core import OutOfMemory
from taskloom.core.work import is_out_of_memory


@contextmanager
def annotate_oom(task: str, *, micro_batch: int, batch: int) -> Iterator[None]:
    """Turn every way in which memory runs out into one error with the task and the number of examples."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OutOfMemory) or not is_out_of_memory(error):
            raise
        traceback.clear_frames(error.__traceback__)  # they hold on to everything that was in memory
        raise OutOfMemory(task, micro_batch=micro_batch, batch=batch) from None


def release_memory() -> None:
    """Give back what nothing needs any more, also what the C library keeps for later (see ``keep_freed_memory``)."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    with suppress(OSError, AttributeError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
