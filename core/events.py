"""What travels between the driver and a worker: jobs one way, events the other. Plain data, as JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: The events that end a job: every submitted job gives exactly one of them, as its last.
ENDS = frozenset({"finished", "failed", "interrupted", "oom", "lost"})


@dataclass(frozen=True)
class Job:
    """One cell to be run: its identity, its resolved specification, and the registry's folder.

    ``stage_keys`` are the identities of what its stages hand on, the last one excepted; ``versions`` those of
    the distributions whose components it uses. ``micro_batch`` is the most examples of one task at a time, after the
    cell ran out of memory (``None``: as the spec says). ``attempt`` counts from 1. ``fence`` is the same number in a
    job that was submitted: its events carry it, so that those of an attempt that was given up are not mistaken.
    """

    cell: str
    label: str
    seed: int
    spec: dict[str, Any]
    folder: str
    stage_keys: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    fence: int = 0
    micro_batch: int | None = None
    attempt: int = 1

    def cell_folder(self) -> Path:
        """The folder of the cell's files; made if it is not there."""
        folder = Path(self.folder, "cells", self.cell)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def as_json(self) -> dict[str, Any]:
        """The job as a JSON object, which shares what the job holds: copying a specification takes a millisecond."""
        return {**vars(self), "stage_keys": list(self.stage_keys)}

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> "Job":
        """What :meth:`as_json` gave, as a job again."""
        return cls(**{**value, "stage_keys": tuple(value["stage_keys"])})


@dataclass(frozen=True)
class Event:
    """Something that happened to a cell. Workers emit events and only the driver writes them down.

    ``what`` is ``started``, ``resumed``, ``log``, ``progress``, ``epoch`` or ``stage``, and at the end one of
    ``ENDS``: ``finished`` (scores, best_epoch, seconds, peak_memory), ``failed`` (reason), ``interrupted`` (asked to
    stop; a checkpoint is written), ``oom`` (task, micro_batch: what was tried, reason) or ``lost`` (reason: the
    worker died, hung or was stopped; only engines say that). ``facts`` hold the figures as JSON values. ``fence`` is
    the job's. A resumed cell reports its earlier epochs and stages again, with the fact ``retold``; only what the
    ledger had missed is passed on.
    """

    what: str
    cell: str
    facts: dict[str, Any] = field(default_factory=dict)
    fence: int = 0

    def as_json(self) -> dict[str, Any]:
        """The event as a JSON object, which shares the facts."""
        return dict(vars(self))

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> "Event":
        """What :meth:`as_json` gave, as an event again."""
        return cls(**value)
