"""Engines, which run the cells of a plan, and what passes between them and the driver: jobs and events."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from taskloom.core.component import Component

#: The events that end a job: every submitted job gives exactly one of them, as its last.
ENDS = frozenset({"finished", "failed", "interrupted", "oom", "lost"})
#: The ends after which the process that ran the job is not used again: its memory is fragmented, its device failed.
SPENT = frozenset({"oom", "lost"})


@dataclass(frozen=True)
class Job:
    """One cell to be run: its identity, its resolved specification, and the registry's folder.

    ``stage_keys`` are the identities of what its stages hand on, the last one excepted; ``versions`` those of
    the distributions whose components it uses. ``micro_batch`` is the most examples of one task at a time, after the
    cell ran out of memory (``None``: as the spec says). ``attempt`` counts from 1; events carry it, so that those of an
    attempt that was given up are not mistaken for its successor's. ``device`` is where an engine wants it to run, by
    torch's name for it in the process that runs it (``None``: on the GPU that is there, else on the CPU). ``content``
    are the fingerprints of the data and weights that it was planned with, by their paths in the specification. After
    ``pause`` epochs of its last stage it ends as ``interrupted`` (``None``: it goes on to its end).
    """

    cell: str
    label: str
    seed: int
    spec: dict[str, Any]
    folder: str
    stage_keys: Sequence[str] = ()
    versions: dict[str, str] = field(default_factory=dict)
    micro_batch: int | None = None
    attempt: int = 1
    device: str | None = None
    content: dict[str, str] = field(default_factory=dict)
    pause: int | None = None

    def cell_folder(self) -> Path:
        """The folder of the cell's files; made if it is not there."""
        folder = Path(self.folder, "cells", self.cell)
        folder.mkdir(parents=True, exist_ok=True)
        return folder


@dataclass(frozen=True)
class Event:
    """Something that happened to a cell. Workers emit events and only the driver writes them down.

    ``what`` is ``started``, ``resumed``, ``log``, ``progress``, ``epoch`` or ``stage``, and at the end one of
    ``ENDS``: ``finished`` (scores, best_epoch, seconds, peak_memory), ``failed`` (reason), ``interrupted`` (asked to
    stop, or ``paused`` where its job says so; a checkpoint is written), ``oom`` (task, micro_batch: what was tried, if
    known, reason) or ``lost`` (reason: the worker died, hung or was stopped, or its device failed). ``facts`` hold the
    figures as JSON values. ``attempt`` is the job's. A resumed cell reports its earlier epochs and stages again, with
    the fact ``retold``; only what the ledger had missed is passed on.
    """

    what: str
    cell: str
    facts: dict[str, Any] = field(default_factory=dict)
    attempt: int = 0


class Emit(Protocol):
    """How a cell reports, and learns that it should stop."""

    def __call__(self, event: Event) -> None:
        """Pass an event on to the driver."""

    @property
    def stop_asked(self) -> bool:
        """True once the cell should write a checkpoint, emit ``interrupted`` and return."""


#: What runs one job: it reports by ``emit`` and ends with one event of ``ENDS``.
Work = Callable[[Job, Emit], None]


class Engine(Component, ABC):
    """Runs jobs, several at once, and passes on what they report.

    The driver, one thread, calls ``check``, ``open``, then ``submit`` while something is ``free`` and ``poll`` for
    events, and ``close`` at the end. Every submitted job ends with exactly one event of ``ENDS``: a failure of the
    work, or the death of what ran it, never stops the other jobs and is never an exception here. Jobs and events
    are plain data: ``vars(job)`` as JSON is a job again by ``Job(**value)``. ``taskloom.core.perform`` does the
    worker's part.
    """

    kind: ClassVar[str] = "engine"

    def check(self) -> None:
        """Raise ``TaskloomError`` if it cannot work here: a package or device is missing. Before any folder is made."""

    @abstractmethod
    def open(self, work: str, folder: Path) -> None:
        """Get ready to run ``work``, a ``"module:function"`` as :func:`find_work` reads it, for a registry's folder."""

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
