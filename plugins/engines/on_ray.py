"""The engine that runs cells on a Ray cluster. Needs the extra ``ray``.

Ray sees a cell as a task that yields its events, as JSON, one by one. Files need no help from Ray: every node sees the
registry's folder, with the cells' checkpoints, under the same path. Ray's own retries are off, since a retry of a
yielding task skips as many events as were received before. A task that is lost with its worker or node is ``lost``
here, and the driver begins another attempt from the last checkpoint.
"""

import socket
import time
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from queue import Empty
from typing import Any

from taskloom.core import ENDS, Engine, EngineError, Event, Job, TaskloomError
from taskloom.core.errors import count
from taskloom.plugins.engines.ray_tasks import RayThread, Sent, stop_file

#: Seconds that a cluster's address has to answer, that opening waits for the cluster, and that closing does.
ANSWER, OPENING, GRACE = 10.0, 30.0, 10.0
#: Seconds that a cluster may take to be joined, or have no room for any cell, before the run ends.
JOIN, PATIENCE = 120.0, 300.0
#: Seconds that it may be silent: after 60 Ray itself ends the program.
SILENCE = 45.0


class Ray(Engine):
    """Runs the cells as tasks of a Ray cluster, as many at once as it has room for.

    Each cell asks for the ``resources`` of its specification: ``cpus`` (1 by default, and as many threads) and
    ``gpus`` (1 by default where the cluster has any). The registry has to be on a disk that all nodes see under the
    same path, and every node needs taskloom and the plugins of the grid. A lost worker or node costs its cells what
    they did since their last checkpoint.

    Options:
        address: where the cluster is, say ``auto`` or ``10.0.0.1:6379``; by default a new one on this machine

    Siblings: ``local`` is the same on one machine, without Ray.

    Reference: Moritz et al. 2018, Ray: A Distributed Framework for Emerging AI Applications

    Example: ``taskloom run quickstart --engine ray --address auto``
    """

    name = "ray"

    def __init__(self, *, address: str | None = None) -> None:
        self.address = address
        self._cells: dict[str, Sent] = {}
        self._events: list[Event] = []  # of cells that this engine itself ended
        self._thread: RayThread | None = None
        self._smallest: dict[str, float] = {}  # that a cell has asked for so far
        self._had_room = time.monotonic()  # for a cell, the last time

    def check(self) -> None:
        if find_spec("ray") is None:
            raise TaskloomError("engine 'ray' needs the package ray; `pip install 'taskloom[ray]'` installs it")
        if self.address not in (None, "auto", "local"):
            _reach(self.address)

    def open(self, work: str, folder: Path) -> None:
        self._thread = RayThread(self.address, work)
        self._thread.start()
        if self._thread.joined.wait(OPENING):  # if it takes longer, Ctrl-C should not have to wait for it
            self._check_cluster(self._thread)

    @property
    def slots(self) -> int:
        """How many of the smallest cells that were submitted so far fit at once; 1 before the cluster is known."""
        return max(1, self._room([]))

    @property
    def free(self) -> int:
        """How many more of the smallest cells fit; none while Ray keeps one waiting."""
        return self._room(self._cells.values())

    def queued(self, cell: str) -> bool:
        return cell in self._cells and not self._cells[cell].begun

    def submit(self, job: Job) -> None:
        assert self._thread is not None, "the engine is open"
        wants = self._wants(job.spec)
        if not any(all(node.get(what, 0) >= amount for what, amount in wants.items()) for node in self._thread.nodes):
            reason = f"asks for {_in_words(wants)} in its resources; no node of the Ray cluster has that much"
            self._events.append(Event("failed", job.cell, {"reason": reason}, job.attempt))
            return
        self._smallest = {what: min(amount, self._smallest.get(what, amount)) for what, amount in wants.items()}
        stop_file(job).unlink(missing_ok=True)
        self._cells[job.cell] = Sent(job, wants)
        self._thread.submitted.put(self._cells[job.cell])

    def poll(self, seconds: float) -> list[Event]:
        assert self._thread is not None, "the engine is open"
        events, self._events = self._events, []
        try:
            while True:  # waits for the first only
                sent, event = self._thread.events.get(timeout=0 if events else seconds)
                if sent.cancelled:
                    continue
                events.append(event)
                if event.what in ENDS:
                    del self._cells[event.cell]
                    stop_file(sent.job).unlink(missing_ok=True)
        except Empty:
            pass
        if not events:
            self._check_cluster(self._thread)
        return events

    def stop(self, cell: str | None = None, *, at_once: bool = False) -> None:
        for sent in [one for one in self._cells.values() if cell in (None, one.job.cell)]:
            job = sent.job
            if sent.begun and not at_once:
                stop_file(job).touch()
                continue
            sent.cancelled = True
            del self._cells[job.cell]
            how, facts = ("lost", {"reason": "stopped at once"}) if at_once else ("interrupted", {})
            self._events.append(Event(how, job.cell, facts, job.attempt))

    def close(self) -> None:
        if self._thread is not None:
            self._thread.leave(GRACE)
            self._thread = None

    def describe(self) -> str:
        where = f"the Ray cluster at {self.address}" if self.address else "a Ray cluster of this machine"
        return f"{where}, {count(self.slots, 'cell')} at once" if self._thread else where

    def _check_cluster(self, thread: RayThread) -> None:
        """Give up a cluster that is gone: nothing that it was asked to do would ever end."""
        now, name = time.monotonic(), f"the Ray cluster at {self.address}" if self.address else "the Ray cluster"
        joined = thread.joined.is_set()
        if joined and not thread.is_alive():
            raise TaskloomError(f"{name} cannot be used: {thread.trouble}")
        if now - thread.answered > (limit := SILENCE if joined else JOIN):
            trouble = f" ({thread.trouble})" if thread.trouble else ""
            guess = "its head may be gone" if joined else "it may still be starting, or something else listens there"
            raise EngineError(f"{name} has not answered for {limit:g} s{trouble}; {guess}")
        if not joined or self._room([]):
            self._had_room = now
        elif now - self._had_room > PATIENCE:
            raise EngineError(f"{name} has had no node for a cell ({_in_words(self._wants({}))}) for {PATIENCE:g} s")

    def _room(self, cells: Iterable[Sent]) -> int:
        """For how many more of the smallest cells: which ask for nothing special, or less if one asked for less."""
        left = {"CPU": 0.0, "GPU": 0.0}
        for resources in self._thread.nodes if self._thread else []:
            left = {what: amount + resources.get(what, 0.0) for what, amount in left.items()}
        for cell in cells:
            left = {what: amount - cell.wants[what] for what, amount in left.items()}
        smallest = {what: min(amount, self._smallest.get(what, amount)) for what, amount in self._wants({}).items()}
        room = min((left[what] / amount for what, amount in smallest.items() if amount), default=0)
        return int(room) if min(left.values()) >= 0 else 0

    def _wants(self, spec: Mapping[str, Any]) -> dict[str, float]:
        """What a cell asks for. One that does not say gets a GPU if the cluster had any when it was joined.

        Whatever nodes die later: results differ between CPU and GPU in the last digits.
        """
        resources = spec.get("resources") or {}
        gpus = resources.get("gpus")
        if gpus is None:
            gpus = self._thread is not None and self._thread.has_gpus
        return {"CPU": float(resources.get("cpus") or 1), "GPU": float(gpus)}


def _reach(address: str) -> None:
    """Refuse an address where nobody answers: Ray itself would try for minutes, and then end the program."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or "/" in host:
        raise TaskloomError(f"the address of a Ray cluster should be 'auto', 'local' or HOST:PORT. Found {address!r}.")
    try:
        socket.create_connection((host, int(port)), timeout=ANSWER).close()
    except (OSError, OverflowError) as error:
        raise TaskloomError(
            f"no Ray cluster answers at {address!r}: {error}. `ray status` shows its address."
        ) from None


def _in_words(wants: Mapping[str, float]) -> str:
    return " and ".join(f"{amount:g} {what}" for what, amount in wants.items() if amount)
