"""Whether another driver still lives: the clocks and processes of this machine."""

import os
import socket
import time
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path


class Machine:
    """This machine as leases see it; tests give another.

    ``boot`` names the time since the machine was started, and ``uptime()`` counts in it: every process here reads the
    same clock, which nobody can set, and which stands still while the machine sleeps. It is empty where there is no
    such name; then only the wall clock is left.
    """

    def __init__(self) -> None:
        self.host = socket.gethostname()
        self.pid = os.getpid()
        # A container may have clocks and process numbers of its own.
        self.boot = " ".join(filter(None, (_text("/proc/sys/kernel/random/boot_id"), _link("/proc/self/ns/time"))))
        self._pids = _link("/proc/self/ns/pid")

    def wall(self) -> float:
        """Seconds since 1970, as far as this machine knows."""
        return time.time()

    def uptime(self) -> float:
        """Seconds since the machine was started."""
        return time.monotonic()

    def process(self) -> str:
        """This process, so that another that is given its number later is not taken for it."""
        return f"{self._pids} {_start_of(self.pid) or '?'}"

    def is_gone(self, pid: int, process: str) -> bool:
        """Whether a process of this boot has certainly ended; a stopped one has not."""
        pids, _, start = process.rpartition(" ")
        if os.name == "nt" or pids != self._pids:
            return False
        try:
            os.kill(pid, 0)  # sends nothing
        except ProcessLookupError:
            return True
        except OSError:
            pass  # somebody else's
        found = _start_of(pid)
        return found is not None and found != start

    def mark(self) -> str:
        """This process in the name of a file: machine and boot, number, beginning."""
        return f"{self._short()}-{self.pid}-{_start_of(self.pid) or 0}"

    def left_by_dead(self, mark: str) -> bool | None:
        """Whether the process with a mark has ended, whatever follows it; ``None`` if that cannot be told from here."""
        short, pid, start, *_ = [*mark.split("-"), "", ""]
        if short != self._short() or not pid.isdigit():
            return None
        return self.is_gone(int(pid), f"{self._pids} {start}")

    def _short(self) -> str:
        return sha256(f"{self.host} {self.boot} {self._pids}".encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Driver:
    """A process that runs cells: who it is, and when it last said that it lives.

    ``beat`` is that moment by the wall clock, ``uptime`` by the clock of its machine's ``boot``. After ``patience``
    seconds of silence it counts as dead.
    """

    id: str
    host: str
    pid: int
    process: str
    boot: str
    began: str
    beat: float
    uptime: float
    patience: float

    def lives(self, machine: Machine) -> bool:
        """Whether its leases hold, seen from a machine.

        On the same boot of the same machine: while its process is there and has said so within its patience, whatever
        the wall clock does. Elsewhere, or after a restart, the wall clocks have to agree to within the patience.
        """
        if machine.boot and machine.boot == self.boot:
            return not machine.is_gone(self.pid, self.process) and machine.uptime() - self.uptime <= self.patience
        return abs(machine.wall() - self.beat) <= self.patience


def _start_of(pid: int) -> str | None:
    """When a process began, in ticks since the boot; ``""`` if it has ended and nobody has asked how yet."""
    text = _text(f"/proc/{pid}/stat")
    if not text:
        return None
    state, *rest = text.rpartition(")")[2].split()  # what stands before is its name, which may hold anything
    return "" if state in "ZX" else rest[18]


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""
