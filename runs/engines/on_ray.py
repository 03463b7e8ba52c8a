"""The engine that runs cells on a Ray cluster. Needs the extra ``ray``.

Ray sees a cell as a task that yields its events, as JSON, one by one. Files need no help of Ray's: the registry's
folder, and a cell's checkpoints in it, is a place that every node sees under the same path.

Ray's own retries stay off. A retry of a yielding task leaves out as many first events as were heard before, and it
would go on under the fence of the attempt that was given up. A task that is lost with its worker or node is ``lost``
here, and the driver begins another attempt from the last checkpoint under a new fence.
"""

import logging
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from taskloom.core import ENDS, Engine, Event, Job, TaskloomError
from taskloom.registry.artifacts import Artifacts
from taskloom.runs.engines.ray_task import STOP, run_cell

#: Seconds for which what a cluster said it has is believed.
FRESH = 2.0
#: Seconds that a cluster has to answer.
ANSWER = 10.0
#: Seconds that a cluster may be without any node before the run ends.
PATIENCE = 300.0


class Ray(Engine):
    """Runs the cells as tasks of a Ray cluster, as many at once as it has room for.

    Each cell asks for the ``resources`` of its specification: ``cpus`` (1 by default, and as many threads) and
    ``gpus`` (1 by default where the cluster has any). The registry has to lie on a disk that all nodes see under the
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
        self._cells: dict[str, _Cell] = {}
        self._told: list[Event] = []  # what this engine itself has to say
        self._nodes: list[dict[str, float]] = []  # what each living node has
        self._counted = self._seen = float("-inf")
        self._open = self._ours = False

    def check(self) -> None:
        if find_spec("ray") is None:
            raise TaskloomError("engine 'ray' needs the package ray; `pip install 'taskloom[ray]'` brings it")
        if self.address not in (None, "auto", "local"):
            _reach(self.address)

    def open(self, work: str, folder: Path) -> None:
        import ray

        self._work = work
        self._ours = not ray.is_initialized()
        if self._ours:
            new: dict[str, Any] = {} if self.address else {"include_dashboard": False}
            try:
                with _our_signals():
                    # What a cell prints is in its log.
                    ray.init(self.address or "local", logging_level=logging.ERROR, log_to_driver=False, **new)
            except (Exception, SystemExit) as error:  # Ray gives up in many ways
                where = f"the Ray cluster at {self.address!r}" if self.address else "a Ray cluster on this machine"
                raise TaskloomError(f"{where} cannot be used: {' '.join(str(error).split())}") from None
        self._open = True

    @property
    def slots(self) -> int:
        """The GPUs of the nodes that are alive, or their CPUs if they have none; 1 before they are known."""
        return max(1, self._room())

    @property
    def free(self) -> int:
        return max(0, int(self._room() - sum(cell.weight for cell in self._cells.values())))

    def submit(self, job: Job) -> None:
        import ray

        wants = self._wants(job.spec)
        if not any(all(node.get(what, 0) >= much for what, much in wants.items()) for node in self._nodes):
            asked = " and ".join(f"{much:g} {what}" for what, much in wants.items() if much)
            reason = f"asks for {asked}; no node of the Ray cluster has that much. Its resources say so."
            self._told.append(Event("failed", job.cell, {"reason": reason}, job.fence))
            return
        task = ray.remote(run_cell).options(
            num_cpus=wants["CPU"],
            num_gpus=wants["GPU"],
            max_retries=0,
            num_returns="streaming",
            name=f"taskloom {job.cell[:12]}",
        )
        _stop_file(job).unlink(missing_ok=True)
        stream = task.remote(self._work, job.as_json(), max(1, int(wants["CPU"])))
        self._cells[job.cell] = _Cell(job, stream, wants["GPU"] or wants["CPU"])

    def poll(self, seconds: float) -> list[Event]:
        import ray

        events, self._told = self._told, []
        streams = {cell.stream: cell for cell in self._cells.values()}
        wait = 0.0 if events else seconds
        if not streams:
            time.sleep(wait)
        while streams:
            ready, _ = ray.wait(list(streams), num_returns=1, timeout=wait)
            if not ready:
                break
            cell = streams[ready[0]]
            event = _next_event(cell)
            events.append(event)
            if event.what in ENDS:
                del streams[cell.stream], self._cells[cell.job.cell]
                _stop_file(cell.job).unlink(missing_ok=True)
            wait = 0.0  # what else is there, but no longer
        return events

    def stop(self, cell: str | None = None, *, at_once: bool = False) -> None:
        import ray

        for each in [one for one in self._cells.values() if cell in (None, one.job.cell)]:
            if at_once:  # Ray ends it when it gets to it; what it says until then is heard by nobody
                ray.cancel(each.stream, force=True)
                del self._cells[each.job.cell]
                self._told.append(Event("lost", each.job.cell, {"reason": "stopped at once"}, each.job.fence))
            else:
                _stop_file(each.job).touch()

    def close(self) -> None:
        if not self._open:
            return
        import ray

        self._open = False
        self.stop(at_once=True)
        self._cells.clear()
        if self._ours:
            ray.shutdown()

    def describe(self) -> str:
        where = f"the Ray cluster at {self.address}" if self.address else "a Ray cluster of this machine"
        return f"{where}, {self.slots} cells at once" if self._open else where

    def _look(self) -> None:
        """Ask the cluster what it has, unless that was just done."""
        import ray

        now = time.monotonic()
        if now - self._counted < FRESH:
            return
        self._nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        self._counted = now
        if self._nodes or self._seen < 0:
            self._seen = now
        elif now - self._seen > PATIENCE:
            raise TaskloomError(
                f"the Ray cluster has been without a node for {PATIENCE:.0f} s; what was done is kept, and the same "
                "command goes on from there"
            )

    def _room(self) -> int:
        if self._open:
            self._look()
        return int(self._total("GPU") or self._total("CPU"))

    def _total(self, what: str) -> float:
        return sum(node.get(what, 0) for node in self._nodes)

    def _wants(self, spec: Mapping[str, Any]) -> dict[str, float]:
        """What a cell asks for."""
        resources = spec.get("resources") or {}
        gpus = resources.get("gpus")
        return {
            "CPU": float(resources.get("cpus") or 1),
            "GPU": float(self._total("GPU") > 0 if gpus is None else gpus),
        }


@contextmanager
def _our_signals() -> Iterator[None]:
    """Put the handlers of Ctrl-C and SIGTERM back that Ray replaces by its own."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    if threading.current_thread() is threading.main_thread():
        for number, handler in kept.items():
            if handler is not None:
                signal.signal(number, handler)


def _reach(address: str) -> None:
    """Refuse an address where nobody answers: Ray itself would try for minutes, and then end the program."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or "/" in host:
        raise TaskloomError(f"the address of a Ray cluster should be 'auto', 'local' or HOST:PORT. Found {address!r}.")
    try:
        socket.create_connection((host, int(port)), timeout=ANSWER).close()
    except (OSError, OverflowError) as error:
        raise TaskloomError(
            f"no Ray cluster answers at {address!r}: {error}. `ray status` tells its address."
        ) from None


class _Cell:
    """A submitted job: the stream of its events, and how many slots it takes."""

    def __init__(self, job: Job, stream: Any, weight: float) -> None:
        self.job, self.stream, self.weight = job, stream, weight


def _next_event(cell: _Cell) -> Event:
    """The next event of a stream that has one, or has broken off."""
    import ray

    job = cell.job
    try:
        return Event.of_json(ray.get(next(cell.stream)))
    except StopIteration:
        reason = "its task ended without saying how"
    except ray.exceptions.RayError as error:
        reason = _why(error)
    return Event("lost", job.cell, {"reason": reason}, job.fence)


def _why(error: Exception) -> str:
    """What Ray says, in a line."""
    kind = type(error).__name__
    known = {
        "NodeDiedError": "its Ray node died",
        "WorkerCrashedError": "its Ray worker died",
        "LocalRayletDiedError": "the Ray node of the driver died",
        "OutOfMemoryError": "Ray ended its worker for want of memory",
        "TaskUnschedulableError": "no node of the Ray cluster has what it needs",
    }
    first = str(error).strip().split("\n")[0]
    return known.get(kind, f"{kind}: {first[:300]}")


def _stop_file(job: Job) -> Path:
    return Artifacts(Path(job.folder)).cell(job.cell) / STOP.format(fence=job.fence)
