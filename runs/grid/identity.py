"""What a cell is: everything that decides its result, and the name that follows from it."""

import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskloom.registry.installed.catalogue import Catalogue
    from taskloom.runs.grid.contents import Contents

#: Part of every identity: raised when the trainer itself would give other results for the same spec.
TRAINER = 3
#: Where a run finds room, not what it computes.
NOT_PART = frozenset({"resources"})


def canonical(value: Any) -> str:
    """One text for one JSON value, whatever the order of its keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def digest(value: Any) -> str:
    """A short name for a JSON value: 20 hex digits of its SHA-256."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:20]


def without_locations(catalogue: "Catalogue", kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    """A component's options without those that change no result, such as where a file is."""
    cls = catalogue.get(kind, spec["name"]).cls
    locations = cls.location_options | cls.path_options
    return {key: value for key, value in spec.items() if key not in locations}


def facts(spec: dict[str, Any], catalogue: "Catalogue", contents: "Contents") -> dict[str, Any]:
    """Exactly what is hashed: resolved spec without locations, content of data and weights, plugins and their versions.

    Example: ``{"spec": {…}, "content": {"encoder": "9f…"}, "plugins": {"taskloom": "0.1.0"}, "trainer": 1}``.
    Runs with equal facts have equal results, so what differs between two cells is found here.
    """
    bare = {
        **{key: value for key, value in spec.items() if key not in NOT_PART},
        "encoder": without_locations(catalogue, "encoder", spec["encoder"]),
        "tasks": {
            name: {**task, "data": without_locations(catalogue, "data", task["data"])}
            for name, task in spec["tasks"].items()
        },
    }
    return {
        "spec": bare,
        "content": contents.of(spec),
        "plugins": catalogue.versions(spec),
        "trainer": TRAINER,
    }


def stage_keys(spec: dict[str, Any], catalogue: "Catalogue", contents: "Contents") -> tuple[str, ...]:
    """The identity of what each stage but the last hands on: equal for runs that agree in all up to there.

    Selection and what else is scored play no part: a stage hands on its last epoch. The overall score does: a loss may
    react to it.
    """
    keys = []
    for count in range(1, len(spec["stages"])):
        stages = spec["stages"][:count]
        names = {name for stage in stages for name in stage["tasks"]}
        tasks = {name: task for name, task in spec["tasks"].items() if name in names}
        prefix = {**spec, "stages": stages, "tasks": tasks, "selection": "last", "score": {}}
        keys.append(digest(facts(prefix, catalogue, contents)))
    return tuple(keys)
