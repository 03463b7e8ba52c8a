"""What a worker tells the driver while it runs a cell. Plain data, so that it travels between processes."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Job:
    """One cell to be run: its identity, its resolved specification, and the registry's folder.

    ``stage_keys`` are the identities of what its stages hand on, the last one excepted; ``versions`` those of
    the distributions whose components it uses.
    """

    cell: str
    label: str
    seed: int
    spec: dict[str, Any]
    folder: str
    stage_keys: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Event:
    """Something that happened to a cell.

    ``what`` is ``started``, ``resumed``, ``log``, ``progress``, ``epoch``, ``stage``, ``finished`` or ``failed``;
    ``facts`` hold its figures as JSON values. Workers emit events and only the driver writes them down.
    """

    what: str
    cell: str
    facts: dict[str, Any] = field(default_factory=dict)
