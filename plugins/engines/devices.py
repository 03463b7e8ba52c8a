"""The slots in which the local engine's workers run: what the machine has, and what the options ask for."""

import os
import re
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from taskloom.core.errors import Problem, RequestError, count

#: CPU workers by default: more are seldom faster.
CPU_WORKERS = 8
#: The CPU time that a container may use, as "quota period".
QUOTA = Path("/sys/fs/cgroup/cpu.max")
#: Environment variables of worker processes, unless they are set. Waiting threads spin only briefly: on busy cores
#: spinning makes a cell of seconds take minutes (eight times as long with 30,000 turns). A step of MiniLM is as fast
#: with 1,000 turns as with more, and a tenth slower with none. And cuBLAS is deterministic.
DEFAULTS = {"GOMP_SPINCOUNT": "1000", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
#: GPUs that cells use only if ``devices`` names them: those of Apple and of Intel, of which nobody has reported yet.
EXPERIMENTAL = ("mps", "xpu")


@dataclass(frozen=True)
class Inventory:
    """What the machine has: cores that this process may use, and GPUs as ``variable`` names them.

    ``max_threads`` is the limit of ``OMP_NUM_THREADS``, if it is set. ``variable`` is the environment variable that
    limits which GPUs a process sees; ROCm has its own. ``experimental`` is an available GPU of :data:`EXPERIMENTAL`,
    where there is no other.
    """

    cores: int
    cuda: tuple[str, ...] = ()
    max_threads: int | None = None
    variable: str = "CUDA_VISIBLE_DEVICES"
    experimental: str = ""


@dataclass(frozen=True)
class Slot:
    """Where one worker runs: the slot's name, its device and share of it, its threads, and the GPU it sees."""

    name: str
    device: str
    threads: int
    cuda: str = ""
    share: float = 1.0
    variable: str = "CUDA_VISIBLE_DEVICES"

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that confine a process to this slot."""
        threads = str(self.threads)
        # HIP treats an empty list as no list at all; -1 means no GPU everywhere.
        return {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, self.variable: self.cuda or "-1"}


def inventory() -> Inventory:
    """What this machine has; the only function here that looks at it."""
    import torch

    try:
        gpus = torch.cuda.device_count()  # respects the variables
    except RuntimeError as error:  # lists that contradict each other
        raise _refused("devices", f"torch cannot count the GPUs: {error}") from None
    # ROCm applies ROCR_VISIBLE_DEVICES first and numbers the remaining GPUs from 0, for workers too.
    variable = "HIP_VISIBLE_DEVICES" if torch.version.hip else "CUDA_VISIBLE_DEVICES"
    listed = os.environ.get(variable, os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    threads = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()  # a list is for threads within threads
    max_threads = int(threads) if threads.isdecimal() else None
    others = {"mps": torch.backends.mps.is_available(), "xpu": torch.xpu.is_available()}
    experimental = next((name for name, available in others.items() if available and not gpus), "")
    return Inventory(_cores(), names_of(listed, gpus), max_threads, variable, experimental)


def names_of(listed: str, count: int) -> tuple[str, ...]:
    """The names of the GPUs that torch found, by what the environment lists; numbers where those are too few.

    Of the parts of a GPU (MIG) torch finds one, however many are listed: a process can use no more. Each is a GPU here.

    >>> names_of("2,GPU-8f2", 2), names_of("", 2), names_of("MIG-1,MIG-2", 1), names_of("0,-1,1", 1), names_of("-1", 0)
    (('2', 'GPU-8f2'), ('0', '1'), ('MIG-1', 'MIG-2'), ('0',), ())
    """
    names = [name.strip() for name in listed.split(",") if name.strip()]
    parts = tuple(takewhile(lambda name: name.startswith("MIG-"), names))
    if count and parts:
        return parts
    return tuple(names[:count] if len(names) >= count else map(str, range(count)))


def _cores() -> int:
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        cores = os.cpu_count() or 1
    try:  # a container may have the CPU time of fewer cores than it sees
        quota, period = QUOTA.read_text().split()
        cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return cores


def assign_slots(
    machine: Inventory,
    *,
    devices: str = "auto",
    workers: int | None = None,
    cells_per_gpu: int = 1,
    threads: int | None = None,
) -> tuple[Slot, ...]:
    """The slots of a machine; ``RequestError`` where it cannot provide what the options ask for.

    ``devices`` is ``auto`` (every GPU, or the CPU where there is none), ``cuda``, ``cpu``, ``cpu:N`` (N at once), a
    list such as ``cuda:0,cuda:2``, or one of :data:`EXPERIMENTAL`. Threads depend on the machine and the options, never
    on the number of cells: the last digits of a cell's results may depend on them.

    >>> [slot.name for slot in assign_slots(Inventory(8, ("0", "1")), cells_per_gpu=2)]
    ['cuda:0/0', 'cuda:1/0', 'cuda:0/1', 'cuda:1/1']
    >>> [(slot.device, slot.threads) for slot in assign_slots(Inventory(cores=4), devices="cpu:2")]
    [('cpu', 2), ('cpu', 2)]
    """
    cpu, gpus = _parse(devices, machine)
    limit = max(32, 4 * machine.cores)
    numbers = {"devices": cpu, "workers": workers, "cells_per_gpu": cells_per_gpu, "threads": threads}
    for option, value in numbers.items():
        if value is not None and not 1 <= value <= limit:
            bound = "at least 1" if value < 1 else f"at most {limit} here ({machine.cores} cores)"
            raise _refused(option, f"should be {bound}. Found {value}.")
    if not gpus:
        if cells_per_gpu > 1:
            raise _refused("cells_per_gpu", f"no GPU is used here (devices: {devices}); --workers sets the CPU's cells")
        if cpu and workers and cpu != workers:
            raise _refused("workers", f"{workers} workers and devices {devices!r} do not agree; give one of them")
        number = cpu or workers or min(machine.cores, CPU_WORKERS)
        slots = [(f"cpu:{index}", "cpu", "") for index in range(number)]
    else:  # first one cell on every device, then the second: fewer workers still use as many GPUs as they can
        ends = [f"/{cell}" for cell in range(cells_per_gpu)] if cells_per_gpu > 1 else [""]
        slots = [(f"{device}{end}", device, visible) for end in ends for device, visible in gpus.items()][:workers]
        if workers is not None and workers > len(slots):
            room = f"{count(len(gpus), 'GPU')} with {count(cells_per_gpu, 'cell')} each"
            raise _refused("workers", f"{workers} workers need more than {room}; --cells-per-gpu puts several on one")
    slot_threads = threads or max(1, min(machine.cores // len(slots), machine.max_threads or machine.cores))
    share = 1 / cells_per_gpu
    return tuple(Slot(name, device, slot_threads, cuda, share, machine.variable) for name, device, cuda in slots)


def _parse(devices: str, machine: Inventory) -> tuple[int | None, dict[str, str]]:
    """The number of CPU workers if it is stated, and the GPUs with the names by which workers see them.

    Without GPUs, cells run on the CPU.
    """
    text = devices.replace(" ", "")
    cuda = {f"cuda:{gpu}": name for gpu, name in enumerate(machine.cuda)}
    if text == "auto":
        return None, cuda
    if text.removesuffix(":0") in EXPERIMENTAL:
        name = text.removesuffix(":0")
        if name != machine.experimental:
            raise _refused("devices", f"torch finds no {name} on this machine; --devices cpu trains on the CPU")
        return None, {name: ""}
    if not re.fullmatch(r"cpu(:[1-9]\d{0,8})?|cuda|cuda:\d{1,9}(,cuda:\d{1,9})*", text):
        form = "auto, cpu, cpu:N for N cells at once, cuda, a list such as cuda:0,cuda:1, or mps or xpu (experimental)"
        raise _refused("devices", f"should be {form}. Found {devices!r}.")
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    if text.startswith("cpu"):
        return (numbers[0] if numbers else None), {}
    gpus = numbers or list(range(len(machine.cuda)))
    if not gpus or max(gpus) >= len(machine.cuda):
        here = ", ".join(cuda) or "no GPU"
        missing = f"cuda:{max(gpus)}" if gpus else "cuda"
        raise _refused("devices", f"there is no {missing} on this machine ({here}; {machine.cores} cores)")
    if len(set(gpus)) < len(gpus):
        raise _refused("devices", f"a GPU appears twice; --cells-per-gpu puts several on one. Found {devices!r}.")
    return None, {f"cuda:{gpu}": machine.cuda[gpu] for gpu in gpus}


def _refused(option: str, text: str) -> RequestError:
    return RequestError("engine 'local'", [Problem(option, text)])
