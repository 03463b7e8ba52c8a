"""The identity of a cell: everything that determines its result, and the digest of that."""

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from taskloom.core.errors import TaskloomError
from taskloom.core.specs import StageSpec, plain
from taskloom.registry.installed.resolution import homes_of
from taskloom.runs.grid.trainer import TRAINER

if TYPE_CHECKING:
    from taskloom.registry.installed.catalogue import Catalogue
    from taskloom.runs.grid.contents import Contents

#: Keys that affect where a run is executed, not its result.
NOT_PART = frozenset({"resources"})
#: Defaults of a run and of its stages, apart from components.
_RUN = {"overall": "mean", "selection": "overall", "score": {"train": 0, "test": False}}
_STAGE = {key: value for key, value in plain(StageSpec()).items() if key not in ("sampler", "combiner")}


def canonical(value: Any) -> str:
    """One text for one JSON value, whatever the order of its keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def digest(value: Any) -> str:
    """A short name for a JSON value: 20 hex digits of its SHA-256."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:20]


def facts(spec: dict[str, Any], catalogue: "Catalogue", contents: "Contents") -> dict[str, Any]:
    """Exactly what is hashed: the resolved spec without locations and defaults, content of data and weights, and code.

    ``code`` says what each component does: the revision of a built-in unless it is 1, the fingerprint of a third
    party's code or its author's revision. Versions of packages are no part of it: a release changes no result.

    Example: ``{"spec": {…}, "content": {"encoder": "9f…"}, "code": {"loss focal": "4c…"}, "trainer": 3}``.
    Runs with equal facts have equal results, so any difference between two cells is in here.
    """
    return {
        "spec": without_defaults(spec, catalogue),
        "content": contents.of(spec),
        "code": catalogue.code(spec),
        "trainer": TRAINER,
    }


def locations(spec: Mapping[str, Any], catalogue: "Catalogue") -> dict[str, Any]:
    """The options of a resolved spec that say where files are."""

    def of(kind: str, component: Mapping[str, Any]) -> dict[str, Any]:
        cls = catalogue.get(kind, component["name"]).cls
        return {key: component[key] for key in (cls.location_options | cls.path_options) & component.keys()}

    tasks = {name: {"data": of("data", task["data"])} for name, task in spec["tasks"].items()}
    return {"encoder": of("encoder", spec["encoder"]), "tasks": tasks}


def without_defaults(spec: Mapping[str, Any], catalogue: "Catalogue") -> dict[str, Any]:
    """The spec without locations and defaults; the names of components are always kept."""
    bare = {key: value for key, value in spec.items() if key not in NOT_PART}
    bare["tasks"] = {name: dict(task) for name, task in spec["tasks"].items()}
    bare["stages"] = [_changed(stage, _STAGE) for stage in spec["stages"]]
    for _, home, key, kind in homes_of(bare):
        home[key] = catalogue.without_defaults(kind, home[key])
    stated: dict[str, Any] = _changed(bare, _RUN)
    return stated


def _changed(stated: Any, default: Any) -> Any:
    """A JSON value without the entries that are at their defaults."""
    if not isinstance(stated, dict) or not isinstance(default, dict):
        return stated
    return {
        key: _changed(setting, default.get(key))
        for key, setting in stated.items()
        if key not in default or setting != default[key]
    }


def modern_facts(recorded: Mapping[str, Any], catalogue: "Catalogue") -> dict[str, Any]:
    """The facts of a recorded cell as they would be written today, whichever version wrote them.

    Up to 0.2 they had every option, and versions of packages in place of code. Built-ins count as of revision 1 then,
    and a third party's component as what is installed, if that is of the same version.
    """
    if "plugins" not in recorded:
        return dict(recorded)
    code: dict[str, int | str] = {}
    for _, home, key, kind in homes_of(recorded["spec"]):
        try:
            entries = catalogue.used_by(kind, home[key])
        except TaskloomError:
            code[f"{kind} {home[key]['name']}"] = "not installed"
            continue
        for entry in entries:
            version = recorded["plugins"].get(entry.plugin.distribution, "")
            if not entry.plugin.builtin:
                same = version == entry.plugin.version
                code[f"{entry.kind} {entry.name}"] = entry.known_by if same else f"of version {version}"
    known = {key: recorded[key] for key in ("content", "trainer")}
    return {"spec": without_defaults(recorded["spec"], catalogue), **known, "code": code}


def stage_keys(spec: dict[str, Any], catalogue: "Catalogue", contents: "Contents") -> tuple[str, ...]:
    """The identity of the weights after each stage but the last: equal for runs that agree in everything up to there.

    Selection and extra scores are ignored: a stage hands on its last epoch. The overall score is not: a loss may react
    to it. Where a stage has patience, selection says which epoch is the last.
    """
    keys = []
    for count in range(1, len(spec["stages"])):
        stages = spec["stages"][:count]
        names = {name for stage in stages for name in stage["tasks"]}
        tasks = {name: task for name, task in spec["tasks"].items() if name in names}
        selection = spec["selection"] if any("patience" in stage for stage in stages) else "last"
        prefix = {**spec, "stages": stages, "tasks": tasks, "selection": selection, "score": {}}
        keys.append(digest(facts(prefix, catalogue, contents)))
    return tuple(keys)
