"""Where the dotted paths of one grid lead: what may stand at each place, and the schema of it.

A row lays values over the base, so what stands at a place is what the base has there or what some setting of the grid
puts there. A path leads somewhere if it does so in one of these; whether it does in each row is no matter of form.
"""

from collections.abc import Iterator
from typing import Any

from taskloom.core.forms import Schema, any_of
from taskloom.registry.installed.catalogue import Catalogue
from taskloom.registry.installed.schema import KINDS, option_schema, ref
from taskloom.runs.grid.paths import index_of

Steps = tuple[str, ...]
_DEEPEST = 100  # nothing that anybody writes has so many parts


class Places:
    """The places of a grid: its base with every default written out, and its settings as (path, value)."""

    def __init__(
        self, catalogue: Catalogue, parts: Schema, base: dict[str, Any], settings: list[tuple[str, Any]]
    ) -> None:
        self.parts = parts
        self.base = base
        self._entries = {(entry.kind, entry.name): entry for entry in catalogue.entries}
        self._values: dict[Steps, list[Any]] = {}
        for path, value in settings:
            self._values.setdefault(tuple(path.split(".")), []).append(value)
        self._known: dict[Steps, list[Any]] = {(): [base]}

    def candidates(self, steps: Steps) -> list[Any]:
        """All that may stand at a place, as far as the grid says."""
        if steps not in self._known:
            found = [child for node in self.candidates(steps[:-1]) for child in _children(node, steps[-1])]
            found += [value for path, values in self._values.items() if _meets(path, steps) for value in values]
            self._known[steps] = found
        return self._known[steps]

    def names(self, place: Steps) -> list[str]:
        """The names of the components that may stand at a place."""
        return list(dict.fromkeys(name for name in self.candidates((*place, "name")) if isinstance(name, str)))

    def tasks(self) -> list[str]:
        """The names of all tasks that a row may have."""
        held = [key for node in self.candidates(("tasks",)) if isinstance(node, dict) for key in node]
        added = [path[1] for path in self._values if len(path) > 1 and path[0] == "tasks" and path[1] != "*"]
        return list(dict.fromkeys([*held, *added]))

    def schema(self, steps: Steps) -> Schema | None:
        """The schema of the values at a path; None if it leads nowhere."""
        if steps[0] == "seed" or len(steps) > _DEEPEST:  # seeds are listed under "seeds"
            return None
        if "*" in steps:
            return self._starred(steps)
        schema: Schema | None = ref("RunSpec")
        for place, key in enumerate(steps):
            schema = self._child(schema or {}, steps[:place], key, last=place == len(steps) - 1)
            if schema is None:
                return None
        return self.complete(schema or {}, steps)

    def complete(self, schema: Schema, place: Steps) -> Schema:
        """The schema of a value; where it is a component at a known place, as exact as the grid allows."""
        kind = _kind(schema)
        if kind is None:
            nested = [_kind(one) for one in schema.get("anyOf", ())]
            if not any(nested):
                return schema
            return {**schema, "anyOf": [self.complete(one, place) for one in schema["anyOf"]]}
        kept = {word: item for word, item in schema.items() if word != "$ref"}
        return {**self.component(kind, place), **kept}

    def component(self, kind: str, place: Steps, *, in_base: bool = False) -> Schema:
        """The schema of a component at a place. It may have gaps where other settings fill them."""
        if any(_meets(path, (*place, "name")) for path in self._values):
            return self._merged(kind, self.names(place))
        inner = any(len(path) > len(place) and _meets(path[: len(place)], place) for path in self._values)
        outer = [path for path in self._values if _meets(path, place[: len(path)])]
        replaced = bool(outer) if in_base else sum(len(path) == len(place) for path in outer) > 1
        return ref(kind) if inner or replaced else ref(f"complete-{kind}")

    def offered(self) -> Iterator[Steps]:
        """The paths that an editor offers."""
        yield from self._offered(ref("RunSpec"), ())

    def _starred(self, steps: Steps) -> Schema | None:
        """A ``*`` stands for every part; if some setting replaces the whole, for the parts of one of the two."""
        place = steps.index("*")
        head, tail = steps[:place], steps[place + 1 :]
        nodes = [{"name": node} if isinstance(node, str) else node for node in self.candidates(head)]
        held = [node for node in nodes if isinstance(node, dict | list)]
        keys = _keys(held)
        found = [self.schema((*head, key, *tail)) for key in keys]
        sound = [one for one in found if one is not None]
        if not held or (keys and not sound):
            return None
        if len(held) > 1:
            return any_of(sound) if all(len(node) for node in held) else {}
        if len(sound) < len(found):
            return None
        different = [one for place, one in enumerate(sound) if one not in sound[:place]]
        return different[0] if len(different) == 1 else {"allOf": different} if different else {}

    def _child(self, schema: Schema, place: Steps, key: str, *, last: bool) -> Schema | None:
        there = (*place, key)
        parents = self.candidates(place)
        is_open = any(isinstance(node, str) or (isinstance(node, dict) and "name" in node) for node in parents)
        if not key or not (self.candidates(there) or (last and (is_open or place == ("tasks",)))):
            return None
        found = [self._inner(one, place, key) for one in self._choices(schema)]
        inner = [one for one in found if one is not None]
        return any_of(inner) if inner else None

    def _inner(self, schema: Schema, place: Steps, key: str) -> Schema | None:
        kind = _kind(schema)
        if kind:
            return self._option(kind, self.names(place), key)
        if not schema:
            return {}
        if schema.get("type") == "array":
            first, index = schema.get("prefixItems", ()), index_of(key)
            if index is None:
                return None
            return dict(first[index] if index < len(first) else schema.get("items", {}))
        if schema.get("type") == "object":
            return _property(schema, key)
        return None

    def _option(self, kind: str, names: list[str], key: str) -> Schema | None:
        """The schema of an option of whichever of these components have it."""
        entries = [self._entries[kind, name] for name in names if (kind, name) in self._entries]
        if key == "name":
            return dict(self.parts[kind]["anyOf"][0])
        found = [option_schema(entry.options[key]) for entry in entries if key in entry.options]
        forms = [{word: item for word, item in one.items() if word not in ("default", "description")} for one in found]
        said = dict.fromkeys(one["description"] for one in found if "description" in one)
        return {**any_of(forms), **({"description": "; ".join(said)} if said else {})} if forms else None

    def _merged(self, kind: str, names: list[str]) -> Schema:
        """A component whose name other settings change: it may have the options of any that it becomes."""
        entries = [self._entries[kind, name] for name in names if (kind, name) in self._entries]
        keys = dict.fromkeys(key for entry in entries for key in entry.options)
        every = self.parts[kind]["anyOf"][0]
        properties = {"name": every, **{key: self._option(kind, names, key) for key in keys}}
        written = {"type": "object", "properties": properties, "required": ["name"], "additionalProperties": False}
        return {"anyOf": [every, written, *self.parts[kind]["anyOf"][1:]]}

    def _choices(self, schema: Schema) -> list[Schema]:
        """A schema without references to specs, as a list of what it allows."""
        name = schema.get("$ref", "").removeprefix("#/$defs/")
        if name and name not in KINDS:
            return self._choices(self.parts[name])
        if "anyOf" in schema:
            return [inner for one in schema["anyOf"] for inner in self._choices(one)]
        return [{key: item for key, item in schema.items() if key not in ("description", "default")}]

    def _offered(self, schema: Schema, place: Steps) -> Iterator[Steps]:
        if place:
            yield place
        if len(place) > 6:
            return
        for one in self._choices(schema):
            kind, head = _kind(one), place[0] if place else ""
            if kind:
                yield (*place, "name")
                for name in self.names(place) if "*" not in place else self._starred_names(place):
                    for key, option in getattr(self._entries.get((kind, name)), "options", {}).items():
                        inner = option_schema(option) if self.candidates((*place, key)) else {}
                        nested = any(_kind(choice) for choice in self._choices(inner))
                        yield from self._offered(inner, (*place, key)) if nested else [(*place, key)]
            elif one.get("type") == "object" and len(place) == 1 and head == "tasks":
                for key in (*self.tasks(), "*"):
                    yield from self._offered(one["additionalProperties"], (*place, key))
            elif one.get("type") == "array" and place == ("stages",):
                count = max((len(node) for node in self.candidates(place) if isinstance(node, list)), default=0)
                for key in (*map(str, range(count)), "*"):
                    yield from self._offered(one["items"], (*place, key))
            elif one.get("type") == "object":
                for key, inner in one.get("properties", {}).items():
                    if (place, key) != ((), "seed"):
                        yield from self._offered(inner, (*place, key))

    def _starred_names(self, place: Steps) -> list[str]:
        star = place.index("*")
        keys = _keys(self.candidates(place[:star]))
        return sorted({name for key in keys for name in self.names((*place[:star], key, *place[star + 1 :]))})


def _keys(nodes: list[Any]) -> list[str]:
    """What a ``*`` stands for in these."""
    held = [node if isinstance(node, dict) else range(len(node)) for node in nodes if isinstance(node, dict | list)]
    return [key for key in dict.fromkeys(str(key) for node in held for key in node) if key != "*"]


def _kind(schema: Schema) -> str | None:
    name = schema.get("$ref", "").removeprefix("#/$defs/")
    return name if name in KINDS else None


def _property(schema: Schema, key: str) -> Schema | None:
    """The schema of a key of an object; None if it may not have that key."""
    inner = schema.get("properties", {}).get(key, schema.get("additionalProperties", {}))
    return dict(inner) if isinstance(inner, dict) else None


def _meets(path: Steps, place: Steps) -> bool:
    """Whether a setting's path is that of a place; its ``*`` stands for any key."""
    return len(path) == len(place) and all(one in (other, "*") for one, other in zip(path, place, strict=True))


def _children(node: Any, key: str) -> list[Any]:
    if isinstance(node, str):
        return [node] if key == "name" else []  # a component by name
    if isinstance(node, dict):
        return [node[key]] if key in node else []
    index = index_of(key) if isinstance(node, list) else None
    return [node[index]] if index is not None and index < len(node) else []
