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
from taskloom.plugins.engines.ray_tasks import RayThread, SubmittedJob, stop_file

#: Seconds to wait for an answer from a cluster's address, for the cluster when opening, and for it when closing.
ANSWER, OPENING, GRACE = 10.0, 30.0, 10.0
#: Seconds that a cluster may take to be joined, or have no room for any cell, before the run ends.
JOIN, PATIENCE = 120.0, 300.0
#: Seconds that a cluster may be silent; after 60 Ray itself ends the program.
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
        self._cells: dict[str, SubmittedJob] = {}
        self._events: list[Event] = []  # of cells that this engine itself ended
        self._thread: RayThread | None = None
        self._smallest: dict[str, float] = {}  # resources that a cell has requested so far
        self._had_room = time.monotonic()  # when it last had room for a cell

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
    def free(self) -> int:
        """How many more of the smallest cells fit; none while Ray keeps one waiting."""
        return self._room(self._cells.values())

    def queued(self, cell: str) -> bool:
        return cell in self._cells and not self._cells[cell].begun

    def submit(self, job: Job) -> None:
        assert self._thread is not None, "the engine is open"
        request = self._request(job.spec)
        if not any(all(node.get(kind, 0) >= amount for kind, amount in request.items()) for node in self._thread.nodes):
            reason = f"asks for {_amounts(request)} in its resources; no node of the Ray cluster has that much"
            self._events.append(Event("failed", job.cell, {"reason": reason}, job.attempt))
            return
        self._smallest = {kind: min(amount, self._smallest.get(kind, amount)) for kind, amount in request.items()}
        stop_file(job).unlink(missing_ok=True)
        self._cells[job.cell] = SubmittedJob(job, request)
        self._thread.submitted.put(self._cells[job.cell])

    def poll(self, seconds: float) -> list[Event]:
        assert self._thread is not None, "the engine is open"
        events, self._events = self._events, []
        try:
            while True:  # waits for the first only
                submitted, event = self._thread.events.get(timeout=0 if events else seconds)
                if submitted.cancelled:
                    continue
                events.append(event)
                if event.what in ENDS:
                    del self._cells[event.cell]
                    stop_file(submitted.job).unlink(missing_ok=True)
        except Empty:
            pass
        if not events:
            self._check_cluster(self._thread)
        return events

    def stop(self, cell: str | None = None, *, at_once: bool = False) -> None:
        for submitted in list(self._cells.values()):
            job = submitted.job
            if cell not in (None, job.cell):
                continue
            if submitted.begun and not at_once:
                stop_file(job).touch()
                continue
            submitted.cancelled = True
            del self._cells[job.cell]
            outcome, facts = ("lost", {"reason": "stopped at once"}) if at_once else ("interrupted", {})
            self._events.append(Event(outcome, job.cell, facts, job.attempt))

    def close(self) -> None:
        if self._thread is not None:
            self._thread.leave(GRACE)
            self._thread = None

    def _check_cluster(self, thread: RayThread) -> None:
        """Give up a cluster that is gone, since its cells would never end."""
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
            raise EngineError(f"{name} has had no node for a cell ({_amounts(self._request({}))}) for {PATIENCE:g} s")

    def _room(self, cells: Iterable[SubmittedJob]) -> int:
        """How many more of the smallest cells fit: those of the default request, or less if a cell asked for less."""
        left = {"CPU": 0.0, "GPU": 0.0}
        for resources in self._thread.nodes if self._thread else []:
            left = {kind: amount + resources.get(kind, 0.0) for kind, amount in left.items()}
        for cell in cells:
            left = {kind: amount - cell.resources[kind] for kind, amount in left.items()}
        smallest = {kind: min(amount, self._smallest.get(kind, amount)) for kind, amount in self._request({}).items()}
        room = min((left[kind] / amount for kind, amount in smallest.items() if amount), default=0)
        return int(room) if min(left.values()) >= 0 else 0

    def _request(self, spec: Mapping[str, Any]) -> dict[str, float]:
        """The resources that a cell requests; by default a GPU if the cluster had any when it was joined.

        That does not change when nodes die: results differ between CPU and GPU in the last digits.
        """
        resources = spec.get("resources") or {}
        gpus = resources.get("gpus")
        if gpus is None:
            gpus = self._thread is not None and self._thread.has_gpus
        return {"CPU": float(resources.get("cpus") or 1), "GPU": float(gpus)}


def _reach(address: str) -> None:
    """Refuse an address that does not answer: Ray itself would try for minutes and then end the program."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or "/" in host:
        raise TaskloomError(f"the address of a Ray cluster should be 'auto', 'local' or HOST:PORT. Found {address!r}.")
    try:
        socket.create_connection((host, int(port)), timeout=ANSWER).close()
    except (OSError, OverflowError) as error:
        raise TaskloomError(
            f"no Ray cluster answers at {address!r}: {error}. `ray status` shows its address."
        ) from None


def _amounts(request: Mapping[str, float]) -> str:
    return " and ".join(f"{amount:g} {kind}" for kind, amount in request.items() if amount)
