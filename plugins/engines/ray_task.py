"""A cell as a task of Ray's: it runs in a worker process of the cluster and yields the cell's events."""

import os
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

from taskloom.core import ENDS, Event, Job, cell_log, find_work, perform

#: The file in a cell's folder that asks an attempt to write a checkpoint and end.
STOP = "stop-{fence}"
#: Seconds between two looks for that file: the disk may be on another machine.
LOOK = 0.5
#: What a task yields first: it no longer waits for its turn.
BEGUN: dict[str, Any] = {}


def run_cell(work: str, job: dict[str, Any], threads: int) -> Iterator[dict[str, Any]]:
    """Run ``work`` for a job, both as JSON, with so many threads; yields ``BEGUN``, then each event as JSON."""
    yield BEGUN
    import ray
    import torch

    torch.set_num_threads(threads)
    thread = _Thread(work, Job.of_json(job), ray.get_runtime_context().get_node_id()[:8])
    thread.start()
    event = None
    while event is None or event.what not in ENDS:
        event = thread.events.get()
        yield event.as_json()


class _Thread(threading.Thread):
    """Does the work while the task waits for its next event; the job's ``Emit``."""

    def __init__(self, work: str, job: Job, node: str) -> None:
        super().__init__(name=f"cell {job.cell[:12]}", daemon=True)
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._name, self._job, self._node = work, job, node
        self._folder = job.cell_folder()
        self._asked, self._looked = False, time.monotonic()

    def __call__(self, event: Event) -> None:
        if event.what in ("started", "resumed"):
            event.facts.update(worker=f"ray:{self._node}", pid=os.getpid())
        cell_log.rotate(self._folder)
        self.events.put(event)

    @property
    def stop_asked(self) -> bool:
        if not self._asked and time.monotonic() - self._looked > LOOK:
            self._looked = time.monotonic()
            self._asked = (self._folder / STOP.format(fence=self._job.fence)).exists()
        return self._asked

    def run(self) -> None:
        try:
            with cell_log.redirected(self._folder):
                perform(find_work(self._name), self._job, self)
        except BaseException as error:  # SystemExit, or a work that is not installed on this node
            reason = f"the worker of a Ray node gave up: {type(error).__name__}: {error}"
            self.events.put(Event("failed", self._job.cell, {"reason": reason}, self._job.fence))
