"""The thread that talks to Ray: any call of Ray's may hang for as long as the cluster does not answer."""

import atexit
import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from taskloom.core import ENDS, Event, Job
from taskloom.core.work import CELL_THREAD
from taskloom.plugins.engines.ray_task import BEGUN, run_cell

#: Seconds for which what a cluster said it has is believed.
FRESH = 2.0
#: Seconds that the thread waits for events before it looks for orders.
PULSE = 0.1


@dataclass(eq=False)
class Sent:
    """A job that was handed over: what it asks for, and whether its task has begun."""

    job: Job
    wants: dict[str, float]
    begun: bool = False


class RayThread(threading.Thread):
    """Joins a cluster (or starts one), then runs cells there and passes on what they say, until it is told to end.

    Nobody who gives an order waits until it is carried out. ``nodes`` is what each living node has; ``silent`` is for
    how many seconds Ray has not answered.
    """

    def __init__(self, address: str | None, work: str) -> None:
        super().__init__(name=f"{CELL_THREAD}on Ray", daemon=True)
        self.nodes: list[dict[str, float]] = []
        self.heard: queue.SimpleQueue[tuple[Sent, Event]] = queue.SimpleQueue()
        self.trouble = ""  # what Ray last said instead of an answer
        self._address, self._work = address, work
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._streams: dict[Any, Sent] = {}
        self._answered, self._looked = time.monotonic(), float("-inf")
        self.joined = threading.Event()  # or it could not, and ``trouble`` says why
        self.has_gpus = False  # when it was joined
        self._ours = False

    @property
    def silent(self) -> float:
        return time.monotonic() - self._answered

    def submit(self, sent: Sent) -> None:
        self._orders.put(lambda: self._submit(sent))

    def cancel(self, sent: Sent) -> None:
        self._orders.put(lambda: self._cancel(sent))

    def end(self, seconds: float) -> None:
        """Leave the cluster, and end it if it was started here; whatever does not answer is left behind."""
        self._orders.put(None)
        self.join(max(0.0, seconds - self.silent))
        if self.is_alive():
            self._abandon()

    def run(self) -> None:
        try:
            self._connect()
            self._look()
            self.has_gpus = any(node.get("GPU") for node in self.nodes)
        except (Exception, SystemExit) as error:  # Ray gives up in many ways
            self.trouble = in_a_line(error)
            return
        finally:
            self._answered = time.monotonic()
            self.joined.set()
        import ray

        with suppress(EOFError):
            while True:
                try:
                    self._obey()
                    self._look()
                    self._listen()
                    self._answered = time.monotonic()
                except EOFError:
                    raise
                except Exception as error:  # perhaps it answers the next time
                    self.trouble = in_a_line(error)
                    time.sleep(PULSE)
        if self._ours:
            ray.shutdown()

    def _connect(self) -> None:
        import ray

        if ray.is_initialized():
            return
        self._ours = True
        logging.getLogger("ray").setLevel(logging.ERROR)  # or it warns that only the main thread hears signals
        new: dict[str, Any] = {} if self._address else {"include_dashboard": False}
        # What a cell prints is in its log.
        ray.init(self._address or "local", logging_level=logging.ERROR, log_to_driver=False, **new)

    def _look(self) -> None:
        """Ask the cluster what it has, unless that was just done."""
        import ray

        if time.monotonic() - self._looked > FRESH:
            nodes = ray.nodes()  # type: ignore[no-untyped-call]
            self.nodes = [node["Resources"] for node in nodes if node["Alive"]]
            self._looked = time.monotonic()

    def _obey(self) -> None:
        """Carry the orders out; waits for one if there is nobody to listen to. ``EOFError`` if it was the last."""
        with suppress(queue.Empty):
            order = self._orders.get(timeout=0 if self._streams else PULSE)
            while True:
                if order is None:
                    raise EOFError
                order()
                order = self._orders.get_nowait()

    def _submit(self, sent: Sent) -> None:
        import ray

        job, cpus = sent.job, sent.wants["CPU"]
        task = ray.remote(run_cell).options(
            num_cpus=cpus,
            num_gpus=sent.wants["GPU"],
            max_retries=0,
            num_returns="streaming",
            name=f"taskloom {job.cell[:12]}",
        )
        try:
            stream = task.remote(self._work, job.as_json(), max(1, int(cpus)))
        except Exception as error:  # say, more than one GPU that are no whole number
            self.heard.put((sent, Event("failed", job.cell, {"reason": in_a_line(error)}, job.fence)))
            return
        self._streams[stream] = sent

    def _cancel(self, sent: Sent) -> None:
        """Ray ends it when it gets to it; what it says until then is heard by nobody."""
        import ray

        for stream in [stream for stream, other in self._streams.items() if other is sent]:
            del self._streams[stream]
            ray.cancel(stream, force=True)

    def _listen(self) -> None:
        import ray

        if not self._streams:
            return
        ready, _ = ray.wait(list(self._streams), num_returns=1, timeout=PULSE)
        for stream in ready:
            sent = self._streams[stream]
            said = _next(stream, sent.job)
            if said is None:
                sent.begun = True
                continue
            if said.what in ENDS:
                del self._streams[stream]
            self.heard.put((sent, said))

    def _abandon(self) -> None:
        """Leave the thread where it hangs; nor should the end of the program wait for Ray."""
        import ray

        atexit.unregister(ray.shutdown)


def _next(stream: Any, job: Job) -> Event | None:
    """The next event of a stream that has one or has broken off; ``None`` if its task has just begun."""
    import ray

    facts: dict[str, Any] = {}
    try:
        said = ray.get(next(stream))
        return None if said == BEGUN else Event.of_json(said)
    except StopIteration:
        reason = "its task ended without saying how"
    except ray.exceptions.OutOfMemoryError:
        facts = {"reason": "Ray ended its worker for want of memory", "micro_batch": job.micro_batch, "task": None}
        return Event("oom", job.cell, facts, job.fence)
    except ray.exceptions.RayError as error:
        reason = _why(error)
    return Event("lost", job.cell, {"reason": reason}, job.fence)


def _why(error: Exception) -> str:
    """What Ray says of a task that is lost, in a line."""
    known = {
        "NodeDiedError": "its Ray node died",
        "WorkerCrashedError": "its Ray worker died",
        "LocalRayletDiedError": "the Ray node of the driver died",
        "TaskUnschedulableError": "no node of the Ray cluster has what it needs",
    }
    kind = type(error).__name__
    return known.get(kind, f"{kind}: {str(error).strip().split(chr(10))[0][:300]}")


def in_a_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__
