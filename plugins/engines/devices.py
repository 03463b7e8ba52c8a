"""Where the local engine's workers run: what the machine has, and what was asked for."""

import os
import re
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from taskloom.core.errors import Problem, RequestError, count

#: CPU workers by default: more seldom pay.
CPU_WORKERS = 8
#: Where a container says how much of the cores' time it is given, as "quota period".
QUOTA = Path("/sys/fs/cgroup/cpu.max")


#: What worker processes have, unless the environment says otherwise. Threads that wait soon sleep: where the cores are
#: busy with something else, spinning makes a cell of seconds one of minutes (with 30,000 turns eight times as long).
#: A step of MiniLM is as fast with 1,000 turns as with more; sleeping at once would cost it a tenth. And cuBLAS gives
#: the same sums every time.
DEFAULTS = {"GOMP_SPINCOUNT": "1000", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
#: Accelerators that torch knows and cells do not use, and why.
UNUSED = {
    "mps": "Apple's GPUs have no float64, in which scores are computed",
    "xpu": "nothing here was ever tried on Intel's GPUs",
}


@dataclass(frozen=True)
class Inventory:
    """What there is: cores that this process may use, and the GPUs as ``variable`` names them.

    ``max_threads`` is what ``OMP_NUM_THREADS`` allows a process, if it is set. ``variable`` is the environment variable
    by which a process sees some of the GPUs only; ROCm has its own. ``unused`` is an accelerator that cells do not use.
    """

    cores: int
    cuda: tuple[str, ...] = ()
    max_threads: int | None = None
    variable: str = "CUDA_VISIBLE_DEVICES"
    unused: str = ""


@dataclass(frozen=True)
class Slot:
    """A place for one worker: its own name, its device and share of it, its threads, and which GPU it sees."""

    name: str
    device: str
    threads: int
    cuda: str = ""
    share: float = 1.0
    variable: str = "CUDA_VISIBLE_DEVICES"

    @property
    def environment(self) -> dict[str, str]:
        """What keeps a process in this place."""
        threads = str(self.threads)
        # HIP takes an empty list for none at all; -1 is no GPU everywhere.
        return {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, self.variable: self.cuda or "-1"}


def inventory() -> Inventory:
    """What this machine has. The only function here that looks."""
    import torch

    try:
        found = torch.cuda.device_count()  # respects the variables
    except RuntimeError as error:  # lists that contradict each other
        raise _refused("devices", f"torch cannot count the GPUs: {error}") from None
    # Of ROCm's variables ROCR_VISIBLE_DEVICES comes first: what it leaves is numbered anew, for workers too.
    variable = "HIP_VISIBLE_DEVICES" if torch.version.hip else "CUDA_VISIBLE_DEVICES"
    listed = os.environ.get(variable, os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    threads = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()  # a list is for threads within threads
    most = int(threads) if threads.isdecimal() else None
    others = {"mps": torch.backends.mps.is_available(), "xpu": torch.xpu.is_available()}
    unused = next((name for name, there in others.items() if there and not found), "")
    return Inventory(_cores(), names_of(listed, found), most, variable, unused)


def names_of(listed: str, found: int) -> tuple[str, ...]:
    """The names of the GPUs that torch found, by what the environment lists; numbers where those are too few.

    Of the parts of a GPU (MIG) torch finds one, however many are listed: a process can use no more. Each is a GPU here.

    >>> names_of("2,GPU-8f2", 2), names_of("", 2), names_of("MIG-1,MIG-2", 1), names_of("0,-1,1", 1), names_of("-1", 0)
    (('2', 'GPU-8f2'), ('0', '1'), ('MIG-1', 'MIG-2'), ('0',), ())
    """
    names = [name.strip() for name in listed.split(",") if name.strip()]
    parts = tuple(takewhile(lambda name: name.startswith("MIG-"), names))
    if found and parts:
        return parts
    return tuple(names[:found] if len(names) >= found else map(str, range(found)))


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
    """The slots of a machine; ``RequestError`` says what it cannot give.

    ``devices`` is ``auto`` (every GPU, or the CPU where there is none), ``cuda``, ``cpu``, ``cpu:N`` (N at once) or a
    list such as ``cuda:0,cuda:2``. Threads depend on the machine and on what was asked for, never on how many cells
    there are: the last digits of a cell's results may depend on them.

    >>> [slot.name for slot in place(Inventory(8, ("0", "1")), cells_per_gpu=2)]
    ['cuda:0/0', 'cuda:1/0', 'cuda:0/1', 'cuda:1/1']
    >>> [(slot.device, slot.threads) for slot in place(Inventory(cores=4), devices="cpu:2")]
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
        places = [(f"cpu:{index}", "cpu", "") for index in range(number)]
    else:  # device by device, then the second cell of each: fewer workers than that use as many GPUs as they can
        ends = [f"/{cell}" for cell in range(cells_per_gpu)] if cells_per_gpu > 1 else [""]
        places = [(f"cuda:{gpu}{end}", f"cuda:{gpu}", machine.cuda[gpu]) for end in ends for gpu in gpus][:workers]
        if workers is not None and workers > len(places):
            room = f"{count(len(gpus), 'GPU')} with {count(cells_per_gpu, 'cell')} each"
            raise _refused("workers", f"{workers} workers need more than {room}; --cells-per-gpu puts several on one")
    each = threads or max(1, min(machine.cores // len(places), machine.max_threads or machine.cores))
    return tuple(Slot(name, device, each, cuda, 1 / cells_per_gpu, machine.variable) for name, device, cuda in places)


def _parse(devices: str, machine: Inventory) -> tuple[int | None, list[int]]:
    """The GPUs, or none and the number of CPU workers if it is given."""
    text = devices.replace(" ", "")
    if text == "auto":
        return None, list(range(len(machine.cuda)))
    if text.partition(":")[0] in UNUSED:
        instead = "--devices cpu trains on the CPU; cuda stands for GPUs of NVIDIA and of AMD (ROCm)"
        raise _refused("devices", f"{text} cannot be used: {UNUSED[text.partition(':')[0]]}. {instead}.")
    if not re.fullmatch(r"cpu(:[1-9]\d{0,8})?|cuda|cuda:\d{1,9}(,cuda:\d{1,9})*", text):
        form = "auto, cpu, cpu:N for N cells at once, cuda, or a list such as cuda:0,cuda:1"
        raise _refused("devices", f"should be {form}. Found {devices!r}.")
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    if text.startswith("cpu"):
        return (numbers[0] if numbers else None), []
    gpus = numbers or list(range(len(machine.cuda)))
    if not gpus or max(gpus) >= len(machine.cuda):
        here = ", ".join(f"cuda:{gpu}" for gpu in range(len(machine.cuda))) or "no GPU"
        missing = f"cuda:{max(gpus)}" if gpus else "cuda"
        raise _refused("devices", f"there is no {missing} on this machine ({here}; {machine.cores} cores)")
    if len(set(gpus)) < len(gpus):
        raise _refused("devices", f"a GPU appears twice; --cells-per-gpu puts several on one. Found {devices!r}.")
    return None, gpus


def _refused(option: str, text: str) -> RequestError:
    return RequestError("engine 'local'", [Problem(option, text)])
