"""Which plugins are installed: one way in for built-ins and third parties, and no way for one to stop the others.

A plugin is an entry point. The group ``taskloom`` holds modules with components, which may import torch; the group
``taskloom.grids`` holds light modules that only name packaged grids. Whatever goes wrong with a plugin – at import, in
a hook's name or signature, in a call – becomes a :class:`Failure` that names it.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from time import perf_counter
from typing import Any

import pluggy

from taskloom.core import hookspecs
from taskloom.core.errors import unknown
from taskloom.registry.rules import COMPONENTS, GRIDS, broken_rule

LIMIT = "TASKLOOM_PLUGINS"
_BUILTIN = "taskloom"


@dataclass(frozen=True)
class Plugin:
    """One entry point: its name and group, the distribution that brings it, and how long its import took."""

    name: str
    group: str
    distribution: str
    version: str
    seconds: float = 0.0

    @property
    def builtin(self) -> bool:
        """Whether it came with taskloom itself."""
        return self.distribution == _BUILTIN

    def __str__(self) -> str:
        return f"plugin {self.name!r} of {self.distribution} {self.version}"


@dataclass(frozen=True)
class Failure:
    """A plugin, or a part of one, that cannot be used, and why."""

    plugin: str
    distribution: str
    version: str
    reason: str

    @classmethod
    def of(cls, plugin: Plugin, reason: str) -> "Failure":
        return cls(plugin.name, plugin.distribution, plugin.version, reason)

    def __str__(self) -> str:
        origin = f" of {self.distribution} {self.version}" if self.distribution else ""
        return f"plugin {self.plugin!r}{origin}: {self.reason}"


@dataclass(frozen=True)
class PackagedGrid:
    """A grid that a plugin brings. ``conflict`` is the message to give if several plugins claim its name."""

    name: str
    path: Path
    plugin: str
    distribution: str
    version: str
    conflict: str = ""


class Plugins:
    """Every plugin that was found: ``loaded``, ``failed``, packaged ``grids``, and pluggy's manager over them."""

    def __init__(self) -> None:
        self.manager = pluggy.PluginManager(hookspecs.PROJECT)
        self.manager.add_hookspecs(hookspecs)
        self.loaded: list[Plugin] = []
        self.failed: list[Failure] = []
        self.grids: dict[str, PackagedGrid] = {}

    @property
    def hook(self) -> pluggy.HookRelay:
        """pluggy's callers; a hook called here raises what an implementation raises, :meth:`results` does not."""
        return self.manager.hook

    def results(self, hook: str, **arguments: Any) -> list[tuple[Plugin, Any]]:
        """What each plugin answers to a hook, in order of loading; one that raises is noted in ``failed``."""
        known = {_key(plugin): plugin for plugin in self.loaded}
        places = {key: place for place, key in enumerate(known)}
        found: list[tuple[Plugin, Any]] = []
        callers = getattr(self.hook, hook).get_hookimpls()
        for implementation in sorted(callers, key=lambda one: places[one.plugin_name]):
            plugin = known[implementation.plugin_name]
            with self._isolated(plugin, f"{hook}() raised "):
                call: Callable[..., Any] = implementation.function
                found.append((plugin, call(*(arguments[name] for name in implementation.argnames))))
        return found

    @contextmanager
    def _isolated(self, plugin: Plugin, what: str = "") -> Iterator[None]:
        """Turn whatever is raised into a failure; what is printed must not end up in a command's output."""
        try:
            with redirect_stdout(sys.stderr):
                yield
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit too: a plugin may not end the program
            self.failed.append(Failure.of(plugin, what + last_line(error)))

    def load(self, entry: EntryPoint, group: str) -> None:
        """Import an entry point's module and add it."""
        plugin = _describe(entry, group)
        start = perf_counter()
        with self._isolated(plugin):
            module = entry.load()
            self.add(module, replace(plugin, seconds=perf_counter() - start))

    def add(self, module: object, plugin: Plugin) -> None:
        """Register a module if it keeps the rules; note in ``failed`` which one it breaks if not."""
        broken = broken_rule(module, plugin.group) or self._refused(module, plugin)
        if broken:
            self.failed.append(Failure.of(plugin, broken))
        else:
            self.manager.register(module, _key(plugin))
            self.loaded.append(plugin)

    def _refused(self, module: object, plugin: Plugin) -> str:
        """What pluggy has against a module, found on a manager of its own so that nothing stays half registered."""
        if self.manager.is_registered(module):
            first = next(one for one in self.loaded if _key(one) == self.manager.get_name(module))
            return f"its module is already loaded as {first}"
        trial = Plugins()
        try:
            trial.manager.register(module, _key(plugin))
        except pluggy.PluginValidationError as error:
            return "wrong signature: " + " ".join(str(error).split())
        return ""

    def _collect_grids(self) -> None:
        for plugin, paths in self.results("taskloom_grids"):
            if not isinstance(paths, Sequence) or not all(isinstance(path, Path) for path in paths):
                self.failed.append(
                    Failure.of(plugin, f"taskloom_grids() should return a list of paths. Found {paths!r}.")
                )
                continue
            for path in paths:
                self._add_grid(plugin, path)

    def _add_grid(self, plugin: Plugin, path: Path) -> None:
        if path.suffix != ".json" or not path.is_file():
            self.failed.append(Failure.of(plugin, f"a packaged grid should be a JSON file. Found {str(path)!r}."))
            return
        new = PackagedGrid(path.stem, path, plugin.name, plugin.distribution, plugin.version)
        old = self.grids.setdefault(new.name, new)
        if old is not new:
            first = f"plugin {old.plugin!r} of {old.distribution} {old.version}"
            message = conflict(f"grid {new.name!r}", [first, str(plugin)])
            self.grids[new.name] = replace(old, conflict=message)
            self.failed.append(Failure.of(plugin, message))


def load_plugins() -> Plugins:
    """Import every plugin of both groups."""
    return _load_groups((COMPONENTS, GRIDS))


def packaged_grids() -> dict[str, PackagedGrid]:
    """The packaged grids by name; imports only the light modules that name them, no torch."""
    return _load_groups((GRIDS,)).grids


def conflict(subject: str, claimants: Iterable[str]) -> str:
    """The message for a name that several plugins claim."""
    return f"{subject} is claimed by {' and by '.join(claimants)}; uninstall one, or leave it out of {LIMIT}"


def last_line(error: BaseException) -> str:
    """The last line of an error's traceback, on one line even if its message has several."""
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")


def _load_groups(groups: Sequence[str]) -> Plugins:
    plugins = Plugins()
    found = [(entry, group) for group in groups for entry in entry_points(group=group)]
    chosen, absent = _choose(found)
    for entry, group in chosen:
        plugins.load(entry, group)
    if COMPONENTS in groups:  # else a plugin without grids would count as absent
        plugins.failed += absent
    plugins._collect_grids()
    return plugins


def _choose(found: list[tuple[EntryPoint, str]]) -> tuple[list[tuple[EntryPoint, str]], list[Failure]]:
    """Built-ins first, then the third parties that TASKLOOM_PLUGINS allows, in an order that is always the same."""
    order = sorted(found, key=lambda pair: (not _describe(*pair).builtin, _key(_describe(*pair))))
    limit = os.environ.get(LIMIT)
    if limit is None:
        return order, []
    wanted = {_plain(name): name.strip() for name in limit.split(",") if name.strip()}
    chosen, met, names = [], set(), set()
    for entry, group in order:
        plugin = _describe(entry, group)
        called = {_plain(plugin.name), _plain(plugin.distribution)}
        if plugin.builtin or called & wanted.keys():
            chosen.append((entry, group))
            met |= called
        if not plugin.builtin:
            names |= {plugin.name, plugin.distribution}
    absent = [name for key, name in wanted.items() if key not in met]
    return chosen, [
        Failure(name, "", "", f"{LIMIT}: {unknown('plugin', name, names, where='installed')}") for name in absent
    ]


def _describe(entry: EntryPoint, group: str) -> Plugin:
    distribution = entry.dist
    name = (distribution.metadata["Name"] if distribution else None) or "unknown"
    return Plugin(entry.name, group, name, (distribution.version if distribution else None) or "unknown")


def _key(plugin: Plugin) -> str:
    return f"{plugin.distribution}:{plugin.group}:{plugin.name}"


def _plain(name: str) -> str:
    """A distribution's name as installers compare it."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()
