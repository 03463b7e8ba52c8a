"""The entry points that are installed, and which of them TASKLOOM_PLUGINS lets in."""

import os
import re
from collections.abc import Sequence
from importlib.metadata import Distribution, EntryPoint, distributions, entry_points

from taskloom.core.errors import unknown
from taskloom.registry.installed.failures import LIMIT, Failure, Plugin, last_line

Found = list[tuple[EntryPoint, str]]  # with its group


def installed(groups: Sequence[str]) -> tuple[Found, list[Failure]]:
    """Every entry point of these groups, and the distributions whose entry points cannot be read."""
    try:
        return [(entry, group) for group in groups for entry in entry_points(group=group)], []
    except Exception:  # one file that is damaged: ask each distribution by itself
        found: Found = []
        failed = []
        for distribution in _each_once():
            try:
                entries = distribution.entry_points
                found += [(entry, group) for group in groups for entry in entries.select(group=group)]
            except Exception as error:
                name, version = _identity(distribution)
                reason = f"its entry_points.txt cannot be read: {last_line(error)}"
                failed.append(Failure(name, name, version, reason))
        return found, failed


def choose(found: Found) -> tuple[Found, list[Plugin], list[Failure]]:
    """Built-ins first, then the third parties that TASKLOOM_PLUGINS allows, in an order that is always the same.

    Also those that it leaves out, and the names in it that nothing has.
    """
    order = sorted(found, key=lambda pair: (not describe(*pair).builtin, describe(*pair).key))
    limit = os.environ.get(LIMIT)
    if limit is None:
        return order, [], []
    wanted = {plain(name): name.strip() for name in limit.split(",") if name.strip()}
    chosen, met, names, hidden = [], set(), set(), []
    for entry, group in order:
        plugin = describe(entry, group)
        called = {plain(plugin.name), plain(plugin.distribution)}
        if plugin.builtin or called & wanted.keys():
            chosen.append((entry, group))
            met |= called
        else:
            hidden.append(plugin)
        if not plugin.builtin:
            names |= {plugin.name, plugin.distribution}
    absent = [name for key, name in wanted.items() if key not in met]
    reasons = [(name, f"{LIMIT}: {unknown('plugin', name, names, where='installed')}") for name in absent]
    return chosen, hidden, [Failure(name, "", "", reason) for name, reason in reasons]


def describe(entry: EntryPoint, group: str) -> Plugin:
    """The plugin that an entry point stands for, before it is imported."""
    name, version = _identity(entry.dist)
    return Plugin(entry.name, group, name, version)


def plain(name: str) -> str:
    """A distribution's name as installers compare it."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def _identity(distribution: Distribution | None) -> tuple[str, str]:
    if distribution is None:
        return "unknown", "unknown"
    return distribution.metadata["Name"] or "unknown", distribution.version or "unknown"


def _each_once() -> list[Distribution]:
    """The first distribution of each name on the path: the one that an import would find."""
    first: dict[str, Distribution] = {}
    for distribution in distributions():
        first.setdefault(plain(_identity(distribution)[0]), distribution)
    return list(first.values())
