"""Dotted paths into a run specification: ``stages.0.combiner.reduction``, ``tasks.*.head.dropout``."""

from typing import Any

from taskloom.core.errors import unknown
from taskloom.core.words import show


class PathError(ValueError):
    """The path leads nowhere; the message says where it breaks off and what there is."""


def assign(run: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a path, in place; ``*`` sets it for every task or stage.

    A path may end in any option of a component (whether it exists is the catalogue's to say) and in a new task.

    >>> run = {"stages": [{"combiner": {"name": "sum"}}], "tasks": {}}
    >>> assign(run, "stages.0.combiner", "pcgrad")
    >>> assign(run, "stages.*.combiner.reduction", "mean")
    >>> run["stages"]
    [{'combiner': {'name': 'pcgrad', 'reduction': 'mean'}}]
    """
    parts = path.split(".")
    _assign(run, parts, 0, value)


def _assign(node: Any, parts: list[str], place: int, value: Any) -> None:
    key, last = parts[place], place == len(parts) - 1
    if key == "*" and isinstance(node, dict | list):
        for each in [key for key in node if key != "*"] if isinstance(node, dict) else range(len(node)):
            _assign(node, [*parts[:place], str(each), *parts[place + 1 :]], place, value)
        return
    found = _key(node, parts, place, may_be_new=last and _open(node, parts, place, value))
    if last:
        node[found] = value
        return
    if isinstance(node[found], str) and found != "name":
        node[found] = {"name": node[found]}  # a component by name is about to get an option
    _assign(node[found], parts, place + 1, value)


def _open(node: Any, parts: list[str], place: int, value: Any) -> bool:
    """Whether a key that is not there yet may be set: an option of a component, or a whole new task."""
    if not isinstance(node, dict):
        return False
    return "name" in node or (parts[:place] == ["tasks"] and isinstance(value, dict) and "data" in value)


def _key(node: Any, parts: list[str], place: int, *, may_be_new: bool) -> Any:
    key, before = parts[place], ".".join(parts[:place]) or "a run"
    if isinstance(node, dict):
        if key in node or (may_be_new and key):
            return key
        raise PathError(f"the path leads nowhere: {unknown(f'entry in {before}', key, node, where='there')}")
    if isinstance(node, list):
        index = int(key) if key.isascii() and key.isdecimal() and len(key) < 10 else len(node)
        if index < len(node):
            return index
        last = len(node) - 1
        span = {-1: f"{before} is empty", 0: f"{before} has only {before}.0"}
        text = span.get(last, f"{before} goes from {before}.0 to {before}.{last}")
        raise PathError(f"the path leads nowhere: {text}. Found {'.'.join(parts[: place + 1])!r}.")
    raise PathError(f"the path leads nowhere: {before} is {show(node)} and has no {key!r}")


def parts_of(run: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """The tasks or the stages of a run; one that is not valid gives those it has.

    >>> parts_of({"stages": [{"epochs": 1}, "slip"]}, "stages"), parts_of({"tasks": 3}, "tasks")
    ([{'epochs': 1}], [])
    """
    found = run.get(key)
    parts = found.values() if isinstance(found, dict) else found if isinstance(found, list | tuple) else ()
    return [part for part in parts if isinstance(part, dict)]


def component_of(given: Any) -> dict[str, Any] | None:
    """A component as an object, a copy; None for what cannot be one.

    >>> component_of("sum"), component_of(3)
    ({'name': 'sum'}, None)
    """
    if isinstance(given, str):
        return {"name": given}
    return dict(given) if isinstance(given, dict) and isinstance(given.get("name"), str) else None


def matches(run: dict[str, Any], path: str, wanted: Any) -> bool:
    """Whether the value at a path is the wanted one; a component may be wanted by its name alone.

    >>> matches({"combiner": {"name": "sum"}}, "combiner", "sum")
    True
    """
    found = values_at(run, path)
    return found is not None and all(_same(value, wanted) for value in found)


def values_at(run: dict[str, Any], path: str) -> list[Any] | None:
    """The values at a path, several where it has a ``*``; None for an option left at its default.

    >>> values_at({"stages": [{"epochs": 1}, {"epochs": 5}]}, "stages.*.epochs")
    [1, 5]
    """
    nodes: list[Any] = [run]
    parts = path.split(".")
    for place, key in enumerate(parts):
        if key == "*":
            for node in nodes:
                if not isinstance(node, dict | list):
                    raise PathError(
                        f"the path leads nowhere: {'.'.join(parts[:place])} is {show(node)} and has no parts"
                    )
            nodes = [each for node in nodes for each in (node.values() if isinstance(node, dict) else node)]
            continue
        component = all(isinstance(node, dict) and "name" in node for node in nodes)
        if component and not all(key in node for node in nodes):
            return None
        nodes = [node[_key(node, parts, place, may_be_new=False)] for node in nodes]
    return nodes


def _same(found: Any, wanted: Any) -> bool:
    if isinstance(found, dict) and "name" in found:
        wanted = {"name": wanted} if isinstance(wanted, str) else wanted
        return isinstance(wanted, dict) and all(
            key in found and _same(found[key], item) for key, item in wanted.items()
        )
    return (type(found) is type(wanted) and bool(found == wanted)) or _numbers_equal(found, wanted)


def _numbers_equal(found: Any, wanted: Any) -> bool:
    numbers = isinstance(found, int | float) and isinstance(wanted, int | float)
    return numbers and not isinstance(found, bool) and not isinstance(wanted, bool) and found == wanted
