"""How a process ended, in words, and whether it was for want of memory."""

import os
import signal
from contextlib import suppress
from pathlib import Path

#: Of the machine's memory: a process that held more when it was killed was killed for it.
LARGE = 0.8
#: Where the system and the container count the processes that they killed for want of memory.
COUNTERS = ("/proc/vmstat", "/sys/fs/cgroup/memory.events")


def describe_death(code: int | None, pid: int) -> str:
    """An exit code in words.

    >>> describe_death(-9, 71)
    'worker process 71 was killed (SIGKILL)'
    """
    if code is None:
        return f"worker process {pid} is gone"
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        what = "was killed" if -code in (signal.SIGKILL, signal.SIGTERM) else "crashed"
        return f"worker process {pid} {what} ({name})"
    return f"worker process {pid} ended with exit code {code}"


def kernel_kills() -> int:
    """How many processes the system has killed for want of memory since it was started, as far as it tells."""
    count = 0
    for path in COUNTERS:
        try:
            lines = Path(path).read_text().splitlines()
        except OSError:
            continue
        count += sum(int(line.split()[1]) for line in lines if line.split()[:1] == ["oom_kill"])
    return count


def memory_limit() -> int:
    """Bytes that this process and its children may use: the machine's, or the container's if that is less."""
    try:
        limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        limit = 1 << 62
    with suppress(OSError, ValueError):  # "max", or no such limits here
        limit = min(limit, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return limit


def ran_out_of_memory(code: int | None, peak: int, kills_before: int) -> bool:
    """Whether a process was killed by the system for want of memory: it says so, or the process was nearly all of it.

    ``peak`` is its largest size in bytes, ``kills_before`` what :func:`kernel_kills` said when it began.
    """
    if code != -signal.SIGKILL:
        return False
    return kernel_kills() > kills_before or peak > LARGE * memory_limit()
