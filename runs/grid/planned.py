"""A cell of a plan."""

from dataclasses import dataclass, field
from typing import Any

from taskloom.runs.grid.expansion import Trial

#: The status of a cell whose row has no settings yet.
WAITING = "waiting"


@dataclass(frozen=True)
class PlannedCell:
    """One cell: a variant with a seed. ``id`` is its identity, ``spec`` the fully resolved run.

    ``facts`` are what its ``identity`` is computed from, which is also its id unless an older version recorded it. A
    cell that is not ``chosen`` is in the table but not part of this run. ``locations`` are the options of its spec
    that say where files are. A ``trial`` of a search pauses after ``pause`` epochs of its last stage; one that has been
    ``tried`` is not run again, whether it is finished, paused or failed.
    """

    id: str
    label: str
    seed: int
    status: str
    spec: dict[str, Any]
    versions: dict[str, str]
    stage_keys: tuple[str, ...] = ()
    reported: dict[str, float] = field(default_factory=dict)
    chosen: bool = True
    facts: dict[str, Any] = field(default_factory=dict)
    identity: str = ""
    locations: dict[str, Any] = field(default_factory=dict)
    trial: Trial | None = None
    pause: int | None = None
    tried: bool = False
