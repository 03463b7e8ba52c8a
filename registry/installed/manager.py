"""Which plugins are installed: built-ins and third parties enter the same way, and none can stop the others.

A plugin is an entry point. The group ``taskloom`` holds modules with components, which may import torch; the group
``taskloom.grids`` holds light modules that only name packaged grids. Whatever goes wrong with a plugin – at import, in
a hook's name or signature, in a call – becomes a :class:`Failure` that names it.
"""

import inspect
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import chdir, contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint, distributions
from pathlib import Path
from time import perf_counter
from typing import Any

import pluggy

from taskloom.core import hookspecs
from taskloom.core.errors import PluginError, TaskloomError, unknown
from taskloom.core.guard import guard
from taskloom.registry.installed.failures import BUILTIN, LIMIT, Failure, PackagedGrid, Plugin, conflict, taken

#: Entry-point groups: modules with components or trackers, and light modules that only name packaged grids.
COMPONENTS, GRIDS = "taskloom", "taskloom.grids"
_HOOKS = {name for name in vars(hookspecs) if name.startswith(f"{hookspecs.PROJECT}_")}
_HOOKS_OF = {GRIDS: {"taskloom_grids"}, COMPONENTS: _HOOKS - {"taskloom_grids"}}


class _Manager(pluggy.PluginManager):
    """pluggy's manager, which does not overlook a hook because its mark is missing."""

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        options = super().parse_hookimpl_opts(plugin, name)
        if options is None and name.startswith("taskloom_") and inspect.isroutine(getattr(plugin, name)):
            raise PluginError(f"{name}() should be marked with @hookimpl")
        return options


class Plugins:
    """Every plugin that was found: ``loaded``, ``failed``, packaged ``grids``, and those that are ``hidden``.

    Hidden are those that TASKLOOM_PLUGINS leaves out.
    """

    def __init__(self) -> None:
        self.manager = _Manager(hookspecs.PROJECT)
        self.manager.add_hookspecs(hookspecs)
        self.loaded: list[Plugin] = []
        self.failed: list[Failure] = []
        self.hidden: list[Plugin] = []
        self.grids: dict[str, PackagedGrid] = {}
        self._raised: dict[tuple[str, str], Failure] = {}  # hook and plugin → the first error

    def hooks_of(self, plugin: Plugin) -> list[str]:
        """The hooks that a plugin implements."""
        callers = self.manager.get_hookcallers(self.manager.get_plugin(plugin.key)) or []
        return sorted(caller.name for caller in callers)

    def summary_of(self, plugin: Plugin) -> str:
        """The first line of a loaded plugin's own docstring."""
        doc = getattr(self.manager.get_plugin(plugin.key), "__doc__", None)
        return doc.strip().partition("\n")[0] if isinstance(doc, str) else ""

    def results(self, hook: str, **arguments: Any) -> list[tuple[Plugin, Any]]:
        """What each plugin returns from a hook, in order of loading; each gets copies of the arguments.

        One that raises is noted in ``failed``, once for each hook.
        """
        implementations = {one.plugin_name: one for one in getattr(self.manager.hook, hook).get_hookimpls()}
        found: list[tuple[Plugin, Any]] = []
        for plugin in self.loaded:
            implementation = implementations.get(plugin.key)
            if implementation is None:
                continue
            try:
                with guard(f"{hook}()"):
                    copies = [deepcopy(arguments[name]) for name in implementation.argnames]
                    found.append((plugin, implementation.function(*copies)))
            except TaskloomError as error:
                failure = Failure.of(plugin, str(error))
                if self._raised.setdefault((hook, plugin.key), failure) is failure:
                    self.failed.append(failure)
        return found

    def raised(self, hooks: Sequence[str]) -> list[Failure]:
        """The first error of each plugin in each of these hooks, as far as they were called."""
        return [failure for (hook, _), failure in self._raised.items() if hook in hooks]

    @contextmanager
    def isolated(self, plugin: Plugin, doing: str = "") -> Iterator[None]:
        """Run a plugin's code: what it raises is noted in ``failed``, and everybody else goes on."""
        try:
            with guard(doing):
                yield
        except TaskloomError as error:
            self.failed.append(Failure.of(plugin, str(error)))

    def load(self, plugin: Plugin, entry: EntryPoint) -> None:
        """Import an entry point's module and add it."""
        start = perf_counter()
        with self.isolated(plugin):
            with chdir("."):
                module = entry.load()
            self.add(module, replace(plugin, seconds=perf_counter() - start))

    def add(self, module: object, plugin: Plugin) -> None:
        """Register a module; note in ``failed`` what is wrong with its hooks."""
        with self.isolated(plugin):
            if self.manager.is_registered(module):
                raise PluginError(f"its module is loaded already, as {self.manager.get_name(module)}")
            try:
                self.manager.register(module, plugin.key)
            except pluggy.PluginValidationError as error:
                raise PluginError("wrong signature: " + " ".join(str(error).split())) from error
            allowed = _HOOKS_OF[plugin.group]
            stray = [_stray(hook, plugin.group, allowed) for hook in self.hooks_of(plugin) if hook not in allowed]
            if stray:
                raise PluginError("; ".join(stray))
            self.loaded.append(plugin)

    def collect_grids(self) -> None:
        """Ask every plugin for its packaged grids."""
        for plugin, paths in self.results("taskloom_grids"):
            with self.isolated(plugin, "taskloom_grids()"):
                if not isinstance(paths, Sequence) or not all(isinstance(path, Path) for path in paths):
                    raise PluginError(f"should return a list of paths. Found {paths!r}.")
                for path in paths:
                    self._add_grid(plugin, path)

    def _add_grid(self, plugin: Plugin, path: Path) -> None:
        with self.isolated(plugin):
            if path.suffix != ".json" or not path.is_file():
                raise PluginError(f"a packaged grid should be a JSON file. Found {str(path)!r}.")
            new = PackagedGrid(path.stem, path, plugin.name, plugin.distribution, plugin.version)
            old = self.grids.setdefault(new.name, new)
            if old.distribution == BUILTIN and not plugin.builtin:
                raise PluginError(taken(f"grid {new.name!r}"))
            if old is not new:
                first = f"plugin {old.plugin!r} of {old.distribution} {old.version}"
                message = conflict(f"grid {new.name!r}", [first, str(plugin)])
                self.grids[new.name] = replace(old, conflict=message)
                raise PluginError(message)


def _stray(hook: str, group: str, allowed: Iterable[str]) -> str:
    """The message for a hook that does not exist, or that exists in the other entry-point group."""
    for home, hooks in _HOOKS_OF.items():
        if hook in hooks:
            return f"{hook}() belongs in a module of the entry-point group {home!r}. Found it in {group!r}."
    return unknown("hook", hook, allowed, where="hooks")


def load_plugins() -> Plugins:
    """Import every plugin of both groups."""
    return _load((COMPONENTS, GRIDS))


def packaged_grids() -> dict[str, PackagedGrid]:
    """The packaged grids by name; imports only the light modules that name them, no torch."""
    return dict(grid_plugins().grids)


def grid_plugins() -> Plugins:
    """The plugins of the light group alone."""
    return _grids(os.environ.get(LIMIT), tuple(sys.path))


@cache
def _grids(limit: str | None, path: tuple[str, ...]) -> Plugins:
    """Loaded once for what it depends on, so that a broken plugin is reported once."""
    return _load((GRIDS,))


def _load(groups: Sequence[str]) -> Plugins:
    """The built-ins first, then the third parties that TASKLOOM_PLUGINS allows, always in the same order."""
    plugins = Plugins()
    found, plugins.failed = installed(groups)
    limit = os.environ.get(LIMIT)
    wanted = {normalized(name): name.strip() for name in (limit or "").split(",") if name.strip()}
    known: set[str] = set()
    for plugin, entry in sorted(found, key=lambda pair: (not pair[0].builtin, pair[0].key)):
        names = {plugin.name, plugin.distribution}
        if plugin.builtin or limit is None or {normalized(name) for name in names} & wanted.keys():
            plugins.load(plugin, entry)
        else:
            plugins.hidden.append(plugin)
        known |= set() if plugin.builtin else names
    if COMPONENTS in groups:  # else a plugin without grids would count as absent
        for key in wanted.keys() - {normalized(name) for name in known}:
            reason = f"{LIMIT}: {unknown('plugin', wanted[key], known, where='installed')}"
            plugins.failed.append(Failure(wanted[key], "", "", reason))
    plugins.collect_grids()
    return plugins


def installed(groups: Sequence[str]) -> tuple[list[tuple[Plugin, EntryPoint]], list[Failure]]:
    """Every plugin of these groups, not imported yet, and the distributions whose entry points cannot be read."""
    found: dict[str, list[tuple[Plugin, EntryPoint]]] = {}  # of several copies, the first on the path is imported
    failed: list[Failure] = []
    for distribution in distributions():
        try:
            with guard("its entry_points.txt cannot be read"):
                entries = [entry for entry in distribution.entry_points if entry.group in groups]
        except PluginError as error:
            failed.append(Failure(distribution.name, distribution.name, distribution.version, str(error)))
            continue
        if entries:
            name, version = distribution.name, distribution.version
            mine = [(Plugin(entry.name, entry.group, name, version), entry) for entry in entries]
            found.setdefault(normalized(name), mine)
    return [pair for mine in found.values() for pair in mine], failed


def normalized(name: str) -> str:
    """A distribution's name as installers compare it."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()
