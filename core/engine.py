"""Engines: where the cells of a plan are executed."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Protocol

from taskloom.core.component import Component
from taskloom.core.events import Event, Job


class Emit(Protocol):
    """How a cell reports, and hears that it should stop."""

    def __call__(self, event: Event) -> None:
        """Pass an event on to the driver."""

    @property
    def stop_asked(self) -> bool:
        """True once the cell should write a checkpoint, emit ``interrupted`` and return."""


#: What runs one job: it reports by ``emit`` and ends with one event of ``ENDS``.
Work = Callable[[Job, Emit], None]


class Engine(Component, ABC):
    """A place where jobs are run, several at once; passes on what they report.

    The driver, one thread, calls ``check``, ``open``, then ``submit`` while something is ``free`` and ``poll`` for
    events, and ``close`` at the end. Every submitted job ends with exactly one event of ``ENDS``: a failure of the
    work, or the death of what ran it, never stops the other jobs and is never an exception here. Jobs and events
    travel as JSON; ``taskloom.core.perform`` does the worker's part.
    """

    kind: ClassVar[str] = "engine"

    def check(self) -> None:
        """Raise ``TaskloomError`` if it cannot work here: a package or device is missing. Before any folder is made."""

    @abstractmethod
    def open(self, work: str, folder: Path) -> None:
        """Get ready to run ``work``, a ``"module:function"`` as :func:`find_work` reads it, for a registry's folder."""

    @property
    @abstractmethod
    def slots(self) -> int:
        """How many cells run at once, at least 1; before ``open`` as far as it is known by then."""

    @property
    @abstractmethod
    def free(self) -> int:
        """How many jobs may be submitted now."""

    def queued(self, cell: str) -> bool:
        """Whether a submitted job waits for its turn somewhere: until it begins, no ``--timeout`` ends it."""
        return False

    @abstractmethod
    def submit(self, job: Job) -> None:
        """Begin a job. Only while something is free."""

    @abstractmethod
    def poll(self, seconds: float) -> list[Event]:
        """Events since the last call, each job's in order; waits up to ``seconds`` for the first. May be empty."""

    @abstractmethod
    def stop(self, cell: str | None = None, *, at_once: bool = False) -> None:
        """Ask one cell, or all, to write a checkpoint and end (``interrupted``); ``at_once`` ends it now (``lost``)."""

    @abstractmethod
    def close(self) -> None:
        """End everything that still runs. May be called twice."""

    def describe(self) -> str:
        """One line for the log, say "2 worker processes, 1 thread each"."""
        return self.name
