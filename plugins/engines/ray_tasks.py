"""Cells as Ray tasks: what runs on the cluster, and the driver's only thread that talks to it."""

import atexit
import logging
import os
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taskloom.core import ENDS, Event, Job, reason_of
from taskloom.core.engine import SPENT
from taskloom.core.work import CELL_THREAD
from taskloom.plugins.engines.devices import DEFAULTS
from taskloom.plugins.engines.inline import CellThread
from taskloom.plugins.engines.worker import logged_work

#: Seconds between two checks for the file that asks a cell to stop, if it reports nothing.
LOOK = 0.5
#: Seconds between two queries of the cluster's nodes, and seconds that the thread waits for events.
FRESH, PULSE = 2.0, 0.1
#: Seconds that a process which should not be used again waits for the driver to kill it, before it ends itself.
GRACE = 60.0
#: A task's first message: it has left Ray's queue.
BEGUN: dict[str, Any] = {}


def stop_file(job: Job) -> Path:
    """The file that asks an attempt to write a checkpoint and end."""
    return job.cell_folder() / f"stop-{job.attempt}"


def run_cell(work: str, job: dict[str, Any], cpus: float, gpus: float) -> Iterator[dict[str, Any]]:
    """The task: run ``work`` for a job, both as JSON; yields ``BEGUN``, then each event as JSON.

    A process that should not be used again waits for the driver to kill it: Ray would give it the next task.
    """
    yield BEGUN
    import ray

    worker = {"worker": f"ray:{ray.get_runtime_context().get_node_id()[:8]}", "pid": os.getpid()}
    cell_work = logged_work(work, max(1, int(cpus)), "cuda" if gpus else "cpu", min(1.0, gpus))
    thread = CellThread(cell_work, Job(**job))
    thread.start()
    event = None
    while event is None or event.what not in ENDS:
        thread.stop_asked = thread.stop_asked or stop_file(thread.job).exists()
        with suppress(queue.Empty):
            event = thread.events.get(timeout=LOOK)
            if event.what in ("started", "resumed"):
                event.facts.update(worker)
            yield vars(event)
    if event.what in SPENT:
        time.sleep(GRACE)
        os._exit(1)


@dataclass(eq=False)
class SubmittedJob:
    """A job submitted to Ray, with the resources that it requests."""

    job: Job
    resources: dict[str, float]
    begun: bool = False  # it has left Ray's queue
    cancelled: bool = False  # it should be killed


class RayThread(threading.Thread):
    """Joins a cluster (or starts one), then runs cells there and forwards their events, until it is told to leave.

    Any call of Ray may hang while the cluster does not answer, so no other thread calls it or waits for it.
    """

    def __init__(self, address: str | None, work: str) -> None:
        super().__init__(name=f"{CELL_THREAD}on Ray", daemon=True)
        self.submitted: queue.SimpleQueue[SubmittedJob] = queue.SimpleQueue()
        self.events: queue.SimpleQueue[tuple[SubmittedJob, Event]] = queue.SimpleQueue()
        self.nodes: list[dict[str, float]] = []  # the resources of each living node
        self.joined = threading.Event()  # also set if joining failed: `trouble` says why
        self.has_gpus = False  # when the cluster was joined
        self.trouble = ""  # Ray's last error
        self.answered = time.monotonic()
        self._address, self._work_name = address, work
        self._streams: dict[Any, SubmittedJob] = {}
        self._looked = float("-inf")
        self._leaving = False

    def leave(self, seconds: float) -> None:
        """Kill the cells and leave the cluster, stopping it if it was started here; never waits for a silent one."""
        self._leaving = True
        self.join(max(0.0, self.answered + seconds - time.monotonic()))
        if self.is_alive():
            import ray

            atexit.unregister(ray.shutdown)  # so that the program's exit does not wait for it either

    def run(self) -> None:
        import ray

        ours = not ray.is_initialized()
        try:
            if ours:
                logging.getLogger("ray").setLevel(logging.ERROR)  # or it warns that this is not the main thread
                new: dict[str, Any] = {} if self._address else {"include_dashboard": False}
                # A cell's output is in its log.
                ray.init(self._address or "local", logging_level=logging.ERROR, log_to_driver=False, **new)
            self._look()
            self.has_gpus = any(node.get("GPU") for node in self.nodes)
        except (Exception, SystemExit) as error:  # Ray fails with many kinds of errors
            self.trouble = reason_of(error)
            return
        finally:
            self.answered = time.monotonic()
            self.joined.set()
        while not self._leaving:
            try:
                self._look()
                self._exchange()
                self.answered = time.monotonic()
            except Exception as error:  # it may answer the next time
                self.trouble = reason_of(error)
                time.sleep(PULSE)
        for stream in self._streams:
            ray.cancel(stream, force=True)
        if ours:
            ray.shutdown()

    def _look(self) -> None:
        import ray

        if time.monotonic() - self._looked > FRESH:
            nodes = ray.nodes()  # type: ignore[no-untyped-call]
            self.nodes = [node["Resources"] for node in nodes if node["Alive"]]
            self._looked = time.monotonic()

    def _exchange(self) -> None:
        """Start submitted jobs, kill cancelled ones and forward events; waits a moment for the first event."""
        import ray

        with suppress(queue.Empty):
            while True:
                self._start(self.submitted.get(timeout=0 if self._streams else PULSE))
        for stream in [stream for stream, submitted in self._streams.items() if submitted.cancelled]:
            del self._streams[stream]
            ray.cancel(stream, force=True)
        ready, _ = ray.wait(list(self._streams), timeout=PULSE) if self._streams else ([], [])
        for stream in ready:
            submitted = self._streams[stream]
            event = next_event(stream, submitted.job)
            submitted.begun = True
            if event is not None:
                self.events.put((submitted, event))
                if event.what in ENDS:
                    del self._streams[stream]
                if event.what in SPENT:
                    ray.cancel(stream, force=True)

    def _start(self, submitted: SubmittedJob) -> None:
        import ray

        job = submitted.job
        task = ray.remote(run_cell).options(
            num_cpus=submitted.resources["CPU"],
            num_gpus=submitted.resources["GPU"],
            max_retries=0,
            num_returns="streaming",
            runtime_env={"env_vars": {name: os.environ.get(name, value) for name, value in DEFAULTS.items()}},
            name=f"taskloom {job.cell[:12]}",
        )
        try:
            stream = task.remote(self._work_name, vars(job), *submitted.resources.values())
        except Exception as error:  # 1.5 GPUs, say
            self.events.put((submitted, Event("failed", job.cell, {"reason": reason_of(error)}, job.attempt)))
        else:
            self._streams[stream] = submitted


def next_event(stream: Any, job: Job) -> Event | None:
    """The next event of a stream that has one or is broken; ``None`` if its task has just begun."""
    import ray

    known = {"NodeDiedError": "its Ray node died", "WorkerCrashedError": "its Ray worker died"}
    try:
        message = ray.get(next(stream))
        return None if message == BEGUN else Event(**message)
    except StopIteration:
        reason = "its task ended without saying how"
    except ray.exceptions.OutOfMemoryError:
        reason = "Ray ended its worker because memory ran out"
        return Event("oom", job.cell, {"reason": reason, "micro_batch": job.micro_batch, "task": None}, job.attempt)
    except ray.exceptions.RayError as error:
        reason = known.get(type(error).__name__) or reason_of(error)
    return Event("lost", job.cell, {"reason": reason}, job.attempt)
