"""Durations, sizes and figures as a person says them. Imports nothing of ours."""

from collections.abc import Mapping


def figures(values: Mapping[str, float]) -> str:
    """Names with their figures.

    >>> figures({"sst": 0.41249, "overall": 0.5})
    'sst 0.412 overall 0.500'
    """
    return " ".join(f"{name} {value:.3f}" for name, value in values.items()) or "nothing"


def duration(seconds: float) -> str:
    """Seconds as a person says them.

    >>> duration(8.31), duration(75), duration(3 * 3600 + 120), duration(50 * 3600)
    ('8.3 s', '1 min 15 s', '3 h 2 min', '2 d 2 h')
    """
    if round(seconds, 1) < 60:
        return f"{max(0.0, seconds):.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def memory(size: float) -> str:
    """Bytes as a person says them.

    >>> memory(5 * 2**10), memory(412.4 * 2**20), memory(1.5 * 2**30)
    ('5 KiB', '412 MiB', '1.5 GiB')
    """
    if size < 2**20:
        return f"{size / 2**10:.0f} KiB"
    return f"{size / 2**20:.0f} MiB" if size < 1000 * 2**20 else f"{size / 2**30:.1f} GiB"


def count(number: int, thing: str) -> str:
    """How many there are of something.

    >>> count(1, "example"), count(0, "epoch"), count(2, "process")
    ('1 example', '0 epochs', '2 processes')
    """
    plural = f"{thing}es" if thing.endswith("s") else f"{thing}s"
    return f"{number} {thing if number == 1 else plural}"


def out_of_memory(reason: str) -> str:
    """The reason of a cell that ran out of memory, which says so once.

    >>> out_of_memory("out of memory with 1 example of task 'sst' at a time"), out_of_memory("MemoryError")
    ("out of memory with 1 example of task 'sst' at a time", 'out of memory: MemoryError')
    """
    if "out of memory" in reason.lower():
        return reason
    return f"out of memory: {reason}" if reason else "out of memory"
