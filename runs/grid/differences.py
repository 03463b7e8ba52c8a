"""The differences between the identities of two cells, by field and in words."""

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from taskloom.registry.installed.manager import BUILTIN
from taskloom.registry.results.records import CellRecord
from taskloom.runs.grid.identity import modern_facts

if TYPE_CHECKING:
    from taskloom.registry.installed.catalogue import Catalogue

#: Characters of a fingerprint that are shown.
SHORT = 12
#: The most digits of a revision; fingerprints have more.
MOST_DIGITS = 6
#: The most files of changed code that are listed.
MOST_FILES = 3
#: The parts of an identity, in the order in which differences are listed.
FIELDS = ("spec", "weights", "data", "code", "trainer")
#: Shown where one side of a difference has no entry.
ABSENT = "nothing"
CAUSES = {"spec": "the specification changed", "weights": "the weights changed", "data": "the data changed"}
#: One field that differs: ``field`` (of FIELDS) and ``path``, ``old`` and ``new`` (null where absent), and a ``text``.
Difference = dict[str, Any]


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    """List where the facts of two cells differ: first the spec, then content, code and trainer.

    >>> differences({"trainer": 2}, {"trainer": 3})[0]["text"]
    'trainer: 2 → 3'
    """
    before, after = fields_of(old), fields_of(new)
    listed = []
    for field, path in sorted({**before, **after}, key=lambda key: FIELDS.index(key[0])):
        sides = [fields.get((field, path), ABSENT) for fields in (before, after)]
        if sides[0] != sides[1]:
            shown = {"data": f"content of {path}", "weights": f"content of {path}", "code": f"code of {path}"}
            words = shown.get(field, path if field == "trainer" else f"{field} {path}")
            text = f"{words}: {' → '.join(_format(field, side) for side in sides)}"
            was, now = (None if side is ABSENT else side for side in sides)
            listed.append({"field": field, "path": path, "old": was, "new": now, "text": text})
    return listed


def causes_of(old: CellRecord, new: Mapping[str, Any], catalogue: "Catalogue") -> list[str]:
    """Why a recorded cell differs from the one with these facts, in short phrases."""
    fields = differences(modern_facts(old.facts, catalogue), new)
    causes = []
    for difference in fields:
        field, path = difference["field"], difference["path"]
        if field == "code":
            causes.append(_code_cause(path, difference, old, catalogue))
        elif field == "trainer":
            older = isinstance(difference["old"], int) and difference["old"] < difference["new"]
            causes.append(f"made by {'an older' if older else 'another'} trainer")
        else:
            causes.append(CAUSES[field])
    if not causes and old.identity is not None:  # identified again since, with code other than today's
        plugins = [name for name in old.facts.get("plugins", {}) if name != BUILTIN]
        causes = [f"the code of {name} changed" for name in plugins if _brings_components(name, catalogue)]
    return list(dict.fromkeys(causes)) or ["an older version decided its predictions otherwise"]


def _brings_components(distribution: str, catalogue: "Catalogue") -> bool:
    return any(entry.plugin.distribution == distribution for entry in catalogue.entries)


def _code_cause(path: str, difference: Difference, cell: CellRecord, catalogue: "Catalogue") -> str:
    kind, _, name = path.partition(" ")
    entry = next((entry for entry in catalogue.entries if (entry.kind, entry.name) == (kind, name)), None)
    if entry is None:
        return f"{kind} {name!r} is not installed"
    if not entry.code_files:
        old, new = (str(difference[side] or 1).rpartition(" ")[2] for side in ("old", "new"))
        if not old.isdigit() or len(old) > MOST_DIGITS:
            return f"{kind} {name!r} states revision {new} now"
        return f"{kind} {name!r} has another revision ({old} → {new})"
    key = f"code of {entry.plugin.distribution}"
    before, now = ({*text.split(", ")} for text in (cell.versions.get(key, ""), _listed(entry.code_files)))
    changed = {line.rpartition(" ")[0].rpartition("/")[2] for line in before ^ now}
    files = f" ({', '.join(sorted(changed)[:MOST_FILES])})" if before != {""} and changed else ""
    return f"the {key} changed{files}"


def code_versions(run: Mapping[str, Any], catalogue: "Catalogue") -> dict[str, str]:
    """The files of third-party code with their hashes, recorded so that a later change can be named."""
    entries = [entry for entry in catalogue.used(run) if entry.code_files]
    return {f"code of {entry.plugin.distribution}": _listed(entry.code_files) for entry in entries}


def _listed(files: Mapping[str, str]) -> str:
    return ", ".join(f"{file} {fingerprint[:8]}" for file, fingerprint in sorted(files.items()))


def _format(field: str, side: Any) -> str:
    if side is ABSENT and field == "spec":
        return "default"
    if field in ("data", "weights"):
        return str(side)[:SHORT]
    if field == "code" and isinstance(side, str):
        return side if " " in side else side[:SHORT]
    return str(side) if side is ABSENT else json.dumps(side, ensure_ascii=False)


def fields_of(facts: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    """The parts of an identity as a mapping of field and path.

    >>> fields_of({"spec": {"stages": [{"epochs": 3}], "tasks": {}}, "trainer": 1})
    {('spec', 'stages.0.epochs'): 3, ('spec', 'tasks'): {}, ('trainer', 'trainer'): 1}
    """
    content = facts.get("content", {})
    weights_content = {path: fingerprint for path, fingerprint in content.items() if path == "encoder"}
    data_content = {path: fingerprint for path, fingerprint in content.items() if path != "encoder"}
    parts = (facts.get("spec"), weights_content, data_content, facts.get("code"), facts.get("trainer"))
    return {
        (field, path or field): leaf
        for field, part in zip(FIELDS, parts, strict=True)
        for path, leaf in _leaves(part, "")
    }


def _leaves(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict | list) and node:
        for key, child in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _leaves(child, f"{path}.{key}" if path else str(key))
    elif path or not isinstance(node, dict | None):
        yield path, node
