"""Dotted paths into a run specification: ``stages.0.combiner.reduction``, ``tasks.*.head.dropout``."""

from typing import Any

from taskloom.core.errors import unknown
from taskloom.registry.installed.words import show


class PathError(ValueError):
    """The path does not exist; the message says where it breaks off and what is there."""


def assign(run: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a path, in place; ``*`` sets it for every task or stage. After a ``PathError`` nothing is set.

    A path may end in any option of a component (the catalogue checks whether it exists) and in a new task.

    >>> run = {"stages": [{"combiner": {"name": "sum"}}], "tasks": {}}
    >>> assign(run, "stages.0.combiner", "pcgrad")
    >>> assign(run, "stages.*.combiner.reduction", "mean")
    >>> run["stages"]
    [{'combiner': {'name': 'pcgrad', 'reduction': 'mean'}}]
    """
    *before, last = path.split(".")
    if path.split(".")[0] == "seed":
        raise PathError('seeds should be listed under "seeds" in the grid')
    targets: list[tuple[Any, Any]] = []
    for node, parts in _nodes(run, before, as_objects=True):
        is_new_task = parts == ["tasks"] and isinstance(value, dict) and "data" in value
        is_open = isinstance(node, dict) and last not in ("", "*") and ("name" in node or is_new_task)
        targets += [(node, key) for key in ([last] if is_open else _keys(node, [*parts, last]))]
    for node, key in targets:
        node[key] = value


def _nodes(run: dict[str, Any], parts: list[str], *, as_objects: bool = False) -> list[tuple[Any, list[str]]]:
    """The nodes at a path, each with its own path; ``as_objects`` turns component names into objects with options."""
    nodes: list[tuple[Any, list[str]]] = [(run, [])]
    for part in parts:
        children = []
        for node, before in nodes:
            for key in _keys(node, [*before, part]):
                if as_objects and isinstance(node[key], str) and key != "name":
                    node[key] = {"name": node[key]}
                children.append((node[key], [*before, str(key)]))
        nodes = children
    return nodes


def _keys(node: Any, parts: list[str]) -> list[Any]:
    """The keys of a node that the last part of a path matches; ``PathError`` if there is none."""
    *outer, key = parts
    before = ".".join(outer) or "a run"
    if isinstance(node, dict):
        if key == "*" or key in node:
            return [name for name in node if name != "*"] if key == "*" else [key]
        raise PathError(f"the path leads nowhere: {unknown(f'entry in {before}', key, node, where='there')}")
    if not isinstance(node, list):
        raise PathError(f"the path leads nowhere: {before} is {show(node)} and has no {key!r}")
    if key == "*":
        return list(range(len(node)))
    if key.isascii() and key.isdecimal() and len(key) < 10 and int(key) < len(node):
        return [int(key)]
    last = len(node) - 1
    few = {-1: f"{before} is empty", 0: f"{before} has only {before}.0"}
    text = few.get(last, f"{before} goes from {before}.0 to {before}.{last}")
    raise PathError(f"the path leads nowhere: {text}. Found {'.'.join(parts)!r}.")


def values_at(run: dict[str, Any], path: str) -> list[Any] | None:
    """The values at a path, several where it has a ``*``; None for an option left at its default.

    >>> values_at({"stages": [{"epochs": 1}, {"epochs": 5}]}, "stages.*.epochs")
    [1, 5]
    """
    *before, last = path.split(".")
    nodes = _nodes(run, before)
    if last != "*" and any(isinstance(node, dict) and "name" in node and last not in node for node, _ in nodes):
        return None
    return [node[key] for node, parts in nodes for key in _keys(node, [*parts, last])]


def matches(run: dict[str, Any], path: str, wanted: Any) -> bool:
    """Whether the value at a path is the wanted one; a component may be wanted by its name alone.

    >>> matches({"combiner": {"name": "sum"}}, "combiner", "sum")
    True
    """
    try:
        values = values_at(run, path)
    except PathError:
        return False  # this run lacks the path, such as that of a second stage
    return values is not None and all(_same(value, wanted) for value in values)


def _same(setting: Any, wanted: Any) -> bool:
    if isinstance(setting, dict) and "name" in setting:
        wanted = {"name": wanted} if isinstance(wanted, str) else wanted
        return isinstance(wanted, dict) and all(
            key in setting and _same(setting[key], option) for key, option in wanted.items()
        )
    return bool(setting == wanted) and isinstance(setting, bool) == isinstance(wanted, bool)
