"""Passes cells' events to trackers, each in a thread of its own, so that none can delay or end a run."""

import time
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Self

from taskloom.core import Event, Job, RequestError, TaskloomError, TrackedRun, Tracker
from taskloom.core.errors import count
from taskloom.core.work import reason_of

if TYPE_CHECKING:
    from taskloom.registry.installed.catalogue import Catalogue
    from taskloom.registry.results.ledger import Ledger

#: Seconds that one call may take at the end of a run, when nothing else is left to wait for.
PATIENCE = 30.0
#: Which method of trackers is called for which event.
METHODS = {
    "started": "run_started",
    "resumed": "run_started",
    "epoch": "epoch_ended",
    "finished": "run_finished",
    "failed": "run_failed",
    "oom": "run_failed",
}
Say = Callable[[str], None]


def make_trackers(catalogue: "Catalogue", specs: Iterable[str | Mapping[str, Any]]) -> list[Tracker]:
    """Construct trackers from names, or names with options; ``RequestError`` with all problems of all of them."""
    objects = [{"name": spec} if isinstance(spec, str) else spec for spec in specs]
    resolved = [catalogue.resolve("tracker", spec, str(spec.get("name", ""))) for spec in objects]
    problems = [problem for _, spec_problems in resolved for problem in spec_problems]
    if problems:
        raise RequestError("--tracker", problems)
    return [catalogue.make(Tracker, spec) for spec in objects]


class Trackers:
    """Passes the events of a grid's cells to trackers. A context manager, which waits for them at the end.

    ``say`` tells the user about a tracker's first error; ``failures`` keeps these messages. ``patience`` is how many
    seconds one call may take at the end.
    """

    def __init__(
        self, trackers: Iterable[Tracker] = (), folder: Path = Path(), grid: str = "", say: Say = lambda text: None
    ) -> None:
        self.grid, self.say, self.patience = grid, say, PATIENCE
        self.failures: list[str] = []
        self._news: SimpleQueue[str] = SimpleQueue()
        self._listeners = [_Listener(tracker, folder.absolute(), self._news) for tracker in trackers]
        for listener in self._listeners:
            listener.start()

    def tell(self, job: Job, event: Event) -> None:
        """Pass on an event of a cell."""
        if event.what not in METHODS or event.facts.get("again"):
            return
        run = TrackedRun(job.cell, job.label, job.seed, self.grid, job.spec)
        facts = {name: fact for name, fact in event.facts.items() if name not in ("retold", "digests")}
        match METHODS[event.what]:
            case "run_started":
                self._pass_on("run_started", run)
            case "run_failed":
                self._pass_on("run_failed", run, str(facts.get("reason", "")))
            case method:
                self._pass_on(method, run, facts)

    def retell(self, job: Job, ledger: "Ledger") -> None:
        """Pass on all recorded events of a cell that ended earlier or in another driver."""
        if self._listeners:
            record = ledger.cell(job.cell)
            self.tell(job, Event("resumed", job.cell))
            for epoch in ledger.epochs(job.cell):
                self.tell(job, Event("epoch", job.cell, {**vars(epoch), "memory": None}))
            known = ("scores", "test", "best_epoch", "costs", "seconds", "peak_memory")
            names = known if record.status == "finished" else ("reason",)
            self.tell(job, Event(record.status, job.cell, {name: getattr(record, name) for name in names}))

    def grid_finished(self, table: str) -> None:
        """Pass on the table of the grid, in Markdown."""
        self._pass_on("grid_finished", self.grid, table)

    def relay(self) -> None:
        """Tell the user about new failures. Threads only queue them, since a display has one writer."""
        while not self._news.empty():
            self.failures.append(self._news.get())
            self.say(self.failures[-1])

    def close(self) -> None:
        """Wait for the trackers as long as they make progress; calls left then are dropped and reported."""
        began = time.monotonic()
        for listener in self._listeners:
            listener.calls.put(("close", ()))
        for listener in self._listeners:
            try:
                while listener.is_alive() and time.monotonic() - max(began, listener.moved) < self.patience:
                    listener.join(0.05)
            except KeyboardInterrupt:
                self.patience = 0.0
            if listener.is_alive():
                why = f"has not returned for {self.patience:g} s" if self.patience else "was not waited for"
                self._news.put(
                    f"{listener.name}: {listener.doing}() {why}; {count(listener.calls.qsize(), 'call')} dropped"
                )
        self._listeners = []
        self.relay()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _pass_on(self, method: str, *arguments: Any) -> None:
        for listener in self._listeners:
            listener.calls.put((method, deepcopy(arguments)))


class _Listener(Thread):
    """Calls one tracker until it is closed; one that cannot be opened gets no further calls."""

    def __init__(self, tracker: Tracker, folder: Path, news: "SimpleQueue[str]") -> None:
        super().__init__(name=f"tracker {tracker.name!r}", daemon=True)
        self.calls: SimpleQueue[tuple[str, tuple[Any, ...]]] = SimpleQueue()
        self.calls.put(("open", (folder,)))
        self.doing, self.moved = "", time.monotonic()
        self._tracker, self._news, self._failed = tracker, news, False
        self._unknown: set[str] = set()  # cells whose run_started() failed: they get no further calls

    def run(self) -> None:
        while self.doing != "close":
            self.doing, arguments = self.calls.get()
            self.moved = time.monotonic()
            cell = arguments[0].cell if arguments and isinstance(arguments[0], TrackedRun) else ""
            if self.doing == "run_started" or cell not in self._unknown:
                succeeded = self._call(self.doing, arguments)
                if self.doing == "open" and not succeeded:
                    return
                if self.doing == "run_started":
                    (self._unknown.discard if succeeded else self._unknown.add)(cell)

    def _call(self, method: str, arguments: tuple[Any, ...]) -> bool:
        """Call a method; returns whether it succeeded, and queues a message for the first failure."""
        try:
            getattr(self._tracker, method)(*arguments)
        except BaseException as error:  # SystemExit too; Ctrl-C comes to the main thread alone
            if isinstance(error, OSError) and error.filename is not None:
                error = TaskloomError(f"{error.filename}: {error.strerror}")
            where = "" if isinstance(error, TaskloomError) else f"{method}(): "
            goes_on = "the run goes on without it" if method == "open" else "said once; the run goes on"
            if not self._failed:
                self._news.put(f"{self.name}: {where}{reason_of(error)} ({goes_on})")
            self._failed = True
            return False
        return True
