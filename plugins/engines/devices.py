"""Where the local engine's workers are placed: what the machine has, and what was asked for."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from taskloom.core.errors import Problem, RequestError
from taskloom.core.units import count

#: CPU workers without a word from the user: more seldom pay.
MOST_CPU = 8
#: Workers on the CPU, whatever was asked for: by core, or this many if that is more; and everywhere.
MOST_BY_CORE, FEW, MOST = 4, 32, 512
#: Where a container says how much of the cores' time it is given, as "quota period".
QUOTA = Path("/sys/fs/cgroup/cpu.max")


@dataclass(frozen=True)
class Inventory:
    """What there is: cores that this process may use, and the CUDA devices as ``CUDA_VISIBLE_DEVICES`` names them.

    ``most_threads`` is what ``OMP_NUM_THREADS`` allows a process, if somebody has set it.
    """

    cores: int
    cuda: tuple[str, ...] = ()
    most_threads: int | None = None

    def threads(self, workers: int) -> int:
        """Of each of so many workers."""
        each = max(1, self.cores // workers)
        return min(each, self.most_threads) if self.most_threads else each


@dataclass(frozen=True)
class Slot:
    """A place for one worker: its device, its threads, and the environment that keeps it there."""

    device: str
    threads: int
    environment: dict[str, str] = field(default_factory=dict)


def inventory() -> Inventory:
    """What this machine has. The only function here that looks."""
    import torch

    found = torch.cuda.device_count()  # respects CUDA_VISIBLE_DEVICES
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    names = visible[:found] if len(visible) >= found else [str(place) for place in range(found)]
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()  # a list is for threads within threads
    return Inventory(_cores(), tuple(names), int(asked) if asked.isdecimal() else None)


def _cores() -> int:
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        cores = os.cpu_count() or 1
    try:  # a container may be given the time of fewer cores than it sees
        quota, period = QUOTA.read_text().split()
        cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return cores


def place(
    machine: Inventory,
    *,
    devices: str = "auto",
    workers: int | None = None,
    cells_per_gpu: int = 1,
    threads: int | None = None,
) -> tuple[Slot, ...]:
    """The slots of a machine; ``RequestError`` names what it cannot give.

    ``devices`` is ``auto`` (every GPU, or the CPU where there is none), ``cuda``, ``cpu``, ``cpu:N`` (N at once) or a
    list such as ``cuda:0,cuda:2``. Threads depend on the machine and on what was asked for, never on how many cells
    there are: a cell's last digits may hang on them.

    >>> [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in place(Inventory(8, ("0", "1")), cells_per_gpu=2)]
    ['0', '1', '0', '1']
    >>> [(slot.device, slot.threads) for slot in place(Inventory(cores=4), devices="cpu:2")]
    [('cpu', 2), ('cpu', 2)]
    """
    for option, value in (("workers", workers), ("cells_per_gpu", cells_per_gpu), ("threads", threads)):
        if value is not None and value < 1:
            raise _refused(option, f"should be at least 1. Found {value}.")
    cpu, gpus = _read(devices, machine)
    most = MOST if cpu is None else min(MOST, max(FEW, MOST_BY_CORE * machine.cores))
    counts = {"devices": cpu, "workers": workers, "cells_per_gpu": cells_per_gpu, "threads": threads}
    for option, value in counts.items():
        if value and value > most:
            raise _refused(option, f"should be at most {most} here ({machine.cores} cores). Found {value}.")
    if cpu is not None:
        if cells_per_gpu > 1:
            raise _refused("cells_per_gpu", f"no GPU is used here (devices: {devices}); --workers sets the CPU's cells")
        if cpu and workers and cpu != workers:
            raise _refused("workers", f"{workers} workers and devices {devices!r} do not agree; give one of them")
        many = cpu or workers or min(machine.cores, MOST_CPU)
        each = threads or machine.threads(many)
        return tuple(Slot("cpu", each, _environment(each, "")) for _ in range(many))
    # Device by device, then the second cell of each: fewer workers than that use as many GPUs as they can.
    chosen = [gpu for _ in range(cells_per_gpu) for gpu in gpus]
    if workers is not None:
        if workers > len(chosen):
            room = f"{count(len(gpus), 'GPU')} with {count(cells_per_gpu, 'cell')} each"
            raise _refused("workers", f"{workers} workers need more than {room}; --cells-per-gpu puts several on one")
        chosen = chosen[:workers]
    each = threads or machine.threads(len(chosen))
    return tuple(Slot(f"cuda:{gpu}", each, _environment(each, machine.cuda[gpu])) for gpu in chosen)


def named(slots: Sequence[Slot]) -> list[tuple[Slot, str]]:
    """The slots with names of their own: ``cpu:0``, ``cpu:1``; ``cuda:0``, or ``cuda:0/0`` where cells share it.

    >>> [name for _, name in named([Slot("cuda:0", 1), Slot("cuda:1", 1), Slot("cuda:0", 1)])]
    ['cuda:0/0', 'cuda:1', 'cuda:0/1']
    """
    devices = [slot.device for slot in slots]
    names = []
    for index, device in enumerate(devices):
        number = devices[:index].count(device)
        shared = f"{device}/{number}" if devices.count(device) > 1 else device
        names.append(f"cpu:{number}" if device == "cpu" else shared)
    return list(zip(slots, names, strict=True))


def _read(devices: str, machine: Inventory) -> tuple[int | None, list[int]]:
    """The number of CPU slots (0: as many as fit) or the GPUs."""
    here = ", ".join(f"cuda:{place}" for place in range(len(machine.cuda))) or "no GPU"
    gpus: list[int] = []
    cpu: int | None = None
    for item in (part.strip() for part in devices.split(",")):
        kind, colon, number = item.partition(":")
        if item == "auto" and devices.strip() == "auto":
            return (None, list(range(len(machine.cuda)))) if machine.cuda else (0, [])
        if kind not in ("cpu", "cuda") or (colon and not (number.isdecimal() and len(number) < 10)) or item == "cpu:0":
            text = "should be auto, cpu, cpu:N for N cells at once, cuda, or a list such as cuda:0,cuda:1"
            raise _refused("devices", f"{text}. Found {devices!r}.")
        if kind == "cpu":
            if cpu is not None:
                raise _refused("devices", f"the CPU stands twice; cpu:N is N cells at once. Found {devices!r}.")
            cpu = int(number or 0)
            continue
        asked = [int(number)] if colon else list(range(len(machine.cuda)))
        if not asked or any(place >= len(machine.cuda) for place in asked):
            raise _refused("devices", f"there is no {item} on this machine ({here}; {machine.cores} cores)")
        if set(asked) & set(gpus):
            raise _refused("devices", f"{item} stands twice; --cells-per-gpu puts several on it. Found {devices!r}.")
        gpus += asked
    if cpu is not None and gpus:
        text = f"CPU and GPU cannot share a grid: their results differ in the last digits. Found {devices!r}."
        raise _refused("devices", text)
    return cpu, gpus


def _environment(threads: int, cuda: str) -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "CUDA_VISIBLE_DEVICES": cuda}


def _refused(option: str, text: str) -> RequestError:
    return RequestError("engine 'local'", [Problem(option, text)])
