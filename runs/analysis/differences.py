"""Two runs field by field: what their identities are made of, and where they differ."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

#: What stands in a difference where one side has nothing at all.
ABSENT = "nothing"
_SHORT = 12  # characters of a fingerprint that are shown


@dataclass(frozen=True)
class Difference:
    """One field: ``field`` is spec, data, weights, plugin or trainer, ``path`` the place; a side may be absent.

    >>> print(Difference("plugin", "taskloom-focal", "1.0", "1.1"))
    plugin taskloom-focal: 1.0 → 1.1
    """

    field: str
    path: str
    old: Any
    new: Any
    source: str = ""

    def __str__(self) -> str:
        if self.field in ("data", "weights"):
            what = f"the content of {self.source or 'its ' + self.field}"
            return f"{self.field} of {self.path}: {what} is another ({_cut(self.old)} → {_cut(self.new)})"
        write = str if self.field == "plugin" else _written
        head = f"{self.field} " if self.field != "trainer" else ""
        return f"{head}{self.path}: {write(self.old)} → {write(self.new)}"

    def as_dict(self) -> dict[str, Any]:
        """As JSON values; what is absent is null, and so is a null."""
        sides = {key: None if value is ABSENT else value for key, value in (("old", self.old), ("new", self.new))}
        return {"field": self.field, "path": self.path, **sides, "text": str(self)}


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    """Where the facts of two cells differ, in the order spec, data and weights, plugins, trainer.

    Facts that an older registry did not keep are not compared. All that it kept is the specification with the places
    of files, which are no part of facts.
    """
    before, after = flatten(old), flatten(new)
    if old.keys() == {"spec"}:
        before = {key: value for key, value in before.items() if key in after}
    known = old.keys() & new.keys()
    found = []
    for key in dict.fromkeys([*before, *after]):
        part, _, path = key.partition(" ")
        one, other = before.get(key, ABSENT), after.get(key, ABSENT)
        if part in known and one != other:
            found.append(_difference(part, path, one, other, new.get("spec", {})))
    order = ("spec", "content", "plugins", "trainer")
    fields = {"data": "content", "weights": "content", "plugin": "plugins"}
    return sorted(found, key=lambda one: order.index(fields.get(one.field, one.field)))


def flatten(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts as fields: "spec stages.0.epochs", "content encoder", "plugins taskloom", "trainer trainer".

    >>> flatten({"spec": {"stages": [{"epochs": 3}], "tasks": {}}, "trainer": 1})
    {'spec stages.0.epochs': 3, 'spec tasks': {}, 'trainer trainer': 1}
    """
    fields: dict[str, Any] = {}
    for part, value in facts.items():
        if part == "spec":
            fields |= {f"spec {path}": leaf for path, leaf in _leaves(value, "")}
        elif isinstance(value, Mapping):
            fields |= {f"{part} {path}": leaf for path, leaf in value.items()}
        else:
            fields[f"{part} {part}"] = value
    return fields


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    inner: Iterator[tuple[Any, Any]] | None = None
    if isinstance(value, dict) and value:
        inner = iter(value.items())
    elif isinstance(value, list) and value:
        inner = iter(enumerate(value))
    if inner is None:
        yield path, value
        return
    for key, item in inner:
        yield from _leaves(item, f"{path}.{key}" if path else str(key))


def _difference(part: str, path: str, old: Any, new: Any, spec: Mapping[str, Any]) -> Difference:
    if part == "plugins":
        return Difference("plugin", path, old, new)
    if part != "content":
        return Difference(part, path, old, new)
    home: Any = spec
    for step in path.split("."):
        home = home.get(step, {}) if isinstance(home, Mapping) else {}
    name = home.get("name", "") if isinstance(home, Mapping) else ""
    if path == "encoder":
        return Difference("weights", path, old, new, f"the weights of encoder {name!r}")
    task = path.removeprefix("tasks.").removesuffix(".data")
    return Difference("data", f"task {task!r}", old, new, f"data set {name!r}")


class Nearest:
    """Among many cells, the one that differs from another in the fewest fields.

    Every value of every field is a number here, so that one question is one comparison of arrays.
    """

    def __init__(self, facts: Sequence[Mapping[str, Any]]) -> None:
        self._columns: dict[str, int] = {}
        self._codes: dict[str, int] = {}
        rows = [self._coded(one, grow=True) for one in facts]
        self._table = np.full((len(self._columns), len(rows)), -1, dtype=np.int32)  # [fields, cells]
        for place, row in enumerate(rows):
            self._table[list(row.keys()), place] = list(row.values())

    def of(self, facts: Mapping[str, Any]) -> int | None:
        """The place of the nearest, the latest of several; None if there is none."""
        cells = self._table.shape[1]
        if not cells:
            return None
        wanted = np.full(len(self._columns), -1, dtype=np.int32)
        row = self._coded(facts, grow=False)
        wanted[list(row.keys())] = list(row.values())
        misses = (self._table != wanted[:, None]).sum(0)  # [cells]
        return int(cells - 1 - np.argmin(misses[::-1]))

    def _coded(self, facts: Mapping[str, Any], *, grow: bool) -> dict[int, int]:
        coded = {}
        for key, value in flatten(facts).items():
            if grow:
                self._columns.setdefault(key, len(self._columns))
            if key in self._columns:
                text = value if isinstance(value, str) else json.dumps(value)
                coded[self._columns[key]] = (
                    self._codes.setdefault(text, len(self._codes)) if grow else self._codes.get(text, -2)
                )
        return coded


def _written(value: Any) -> str:
    return ABSENT if value is ABSENT else json.dumps(value, ensure_ascii=False)


def _cut(fingerprint: Any) -> str:
    text = str(fingerprint)
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}…"
