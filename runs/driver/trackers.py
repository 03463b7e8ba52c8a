"""Trackers are told what happens to cells, each in a thread of its own: none can hold up, or end, a run."""

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
    """The trackers that names, or names with options, stand for; ``RequestError`` with all that is wrong with them."""
    given = [{"name": spec} if isinstance(spec, str) else spec for spec in specs]
    problems = [each for spec in given for each in catalogue.resolve("tracker", spec, str(spec.get("name", "")))[1]]
    if problems:
        raise RequestError("--tracker", problems)
    return [catalogue.make(Tracker, spec) for spec in given]


class Trackers:
    """Passes on to trackers what happens to the cells of a grid. A context manager: at the end they are waited for.

    ``say`` tells the user what went wrong, once for each tracker; ``failures`` keeps it. ``patience`` is how many
    seconds one call may take in the end.
    """

    def __init__(
        self, trackers: Iterable[Tracker] = (), folder: Path = Path(), grid: str = "", say: Say = lambda text: None
    ) -> None:
        self.grid, self.say, self.patience = grid, say, PATIENCE
        self.failures: list[str] = []
        self._news: SimpleQueue[str] = SimpleQueue()
        self._listeners = [_Listener(one, folder.absolute(), self._news) for one in trackers]
        for one in self._listeners:
            one.start()

    def tell(self, job: Job, event: Event) -> None:
        """Pass on an event of a cell."""
        if event.what not in METHODS or event.facts.get("again"):
            return
        run = TrackedRun(job.cell, job.label, job.seed, self.grid, job.spec)
        facts = {name: fact for name, fact in event.facts.items() if name != "retold"}
        match METHODS[event.what]:
            case "run_started":
                self._pass_on("run_started", run)
            case "run_failed":
                self._pass_on("run_failed", run, str(facts.get("reason", "")))
            case method:
                self._pass_on(method, run, facts)

    def retell(self, job: Job, ledger: "Ledger") -> None:
        """Pass on all that the ledger knows of a cell that ended before, or elsewhere."""
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
        """Say what has gone wrong since the last time. Threads only put it down: a display has one writer."""
        while not self._news.empty():
            self.failures.append(self._news.get())
            self.say(self.failures[-1])

    def close(self) -> None:
        """Wait for the trackers, while they get on; what they have not taken then is dropped, and said."""
        began = time.monotonic()
        for one in self._listeners:
            one.calls.put(("close", ()))
        for one in self._listeners:
            try:
                while one.is_alive() and time.monotonic() - max(began, one.moved) < self.patience:
                    one.join(0.05)
            except KeyboardInterrupt:
                self.patience = 0.0
            if one.is_alive():
                why = f"has not returned for {self.patience:g} s" if self.patience else "was not waited for"
                self._news.put(f"{one.name}: {one.doing}() {why}; {count(one.calls.qsize(), 'call')} dropped")
        self._listeners = []
        self.relay()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _pass_on(self, method: str, *arguments: Any) -> None:
        for one in self._listeners:
            one.calls.put((method, deepcopy(arguments)))


class _Listener(Thread):
    """Calls one tracker until it is closed. One that cannot be opened is told nothing else."""

    def __init__(self, tracker: Tracker, folder: Path, news: "SimpleQueue[str]") -> None:
        super().__init__(name=f"tracker {tracker.name!r}", daemon=True)
        self.calls: SimpleQueue[tuple[str, tuple[Any, ...]]] = SimpleQueue()
        self.calls.put(("open", (folder,)))
        self.doing, self.moved = "", time.monotonic()
        self._tracker, self._news, self._failed = tracker, news, False
        self._unknown: set[str] = set()  # cells whose start it did not take, and so nothing else

    def run(self) -> None:
        while self.doing != "close":
            self.doing, arguments = self.calls.get()
            self.moved = time.monotonic()
            cell = arguments[0].cell if arguments and isinstance(arguments[0], TrackedRun) else ""
            if self.doing == "run_started" or cell not in self._unknown:
                taken = self._call(self.doing, arguments)
                if self.doing == "open" and not taken:
                    return
                if self.doing == "run_started":
                    (self._unknown.discard if taken else self._unknown.add)(cell)

    def _call(self, method: str, arguments: tuple[Any, ...]) -> bool:
        """Whether a call came back; if not, that is news once."""
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
