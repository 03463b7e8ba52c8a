"""Finds and loads plugins: built-ins are registered as third parties are, and no plugin can break the others.

A plugin is an entry point. The group ``taskloom`` holds modules with components, which may import torch; the group
``taskloom.grids`` holds light modules that only name packaged grids. Whatever goes wrong with a plugin – at import, in
a hook's name or signature, in a call – becomes a :class:`Failure` that names it.
"""

import inspect
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from time import perf_counter
from typing import Any

import pluggy

from taskloom.core import hookspecs
from taskloom.core.errors import PluginError, TaskloomError, unknown
from taskloom.core.work import is_ctrl_c, reason_of

#: The variable that limits third-party plugins: names separated by commas, or empty to leave out all of them.
LIMIT = "TASKLOOM_PLUGINS"
BUILTIN = "taskloom"
#: Entry-point groups: modules with components, and light modules that only name packaged grids.
COMPONENTS, GRIDS = "taskloom", "taskloom.grids"
_HOOKS = {name for name in vars(hookspecs) if name.startswith(f"{hookspecs.PROJECT}_")}
_HOOKS_OF = {GRIDS: {"taskloom_grids"}, COMPONENTS: _HOOKS - {"taskloom_grids"}}


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
        return self.distribution == BUILTIN

    @property
    def key(self) -> str:
        """The name under which pluggy knows it; no other plugin has it."""
        return f"{self.distribution}:{self.group}:{self.name}"

    def __str__(self) -> str:
        origin = f" of {self.distribution} {self.version}" if self.distribution else ""
        return f"plugin {self.name!r}{origin}"


@dataclass(frozen=True)
class Failure:
    """A plugin, or a part of one, that cannot be used, and why."""

    plugin: Plugin
    reason: str

    def __str__(self) -> str:
        return f"{self.plugin}: {self.reason}"

    @property
    def removal(self) -> str:
        """The command that ends the failure: removes the distribution, or repairs ours."""
        if not self.plugin.distribution:
            return f"unset {LIMIT}"
        if self.plugin.builtin:
            return f"pip install --force-reinstall {BUILTIN}"
        return f"pip uninstall {self.plugin.distribution}"


@dataclass(frozen=True)
class PackagedGrid:
    """A grid that a plugin brings."""

    name: str
    path: Path
    plugin: Plugin


def name_conflict(subject: str, owner: Plugin) -> str:
    """The message for a component or a grid whose name another plugin has already."""
    return f"{subject} is that of {owner}, which keeps the name; this plugin should choose another"


@contextmanager
def guard(doing: str = "") -> Iterator[None]:
    """Turn whatever is raised inside, ``SystemExit`` too, into a ``PluginError`` that says what was being done.

    The user's Ctrl-C passes through, and so do the other messages to the user, such as a ``DataError``.

    >>> with guard("focal"):
    ...     raise SystemExit(3)
    Traceback (most recent call last):
    taskloom.core.errors.PluginError: focal: SystemExit: 3 (a component called sys.exit; it should raise an error)
    """
    try:
        yield
    except BaseException as error:
        ours = isinstance(error, TaskloomError) and not isinstance(error, PluginError)
        if ours or is_ctrl_c(error):
            raise
        reason = reason_of(error)
        raise PluginError(f"{doing}: {reason}" if doing else reason) from error


class _Manager(pluggy.PluginManager):
    """pluggy's manager, which refuses a hook that is not marked instead of ignoring it."""

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        options = super().parse_hookimpl_opts(plugin, name)
        if options is None and name.startswith("taskloom_") and inspect.isroutine(getattr(plugin, name)):
            raise PluginError(f"{name}() should be marked with @hookimpl")
        return options


class Plugins:
    """Every installed plugin: ``loaded``, ``failed``, packaged ``grids``, and ``hidden``.

    Hidden plugins are those that TASKLOOM_PLUGINS leaves out.
    """

    def __init__(self) -> None:
        self.manager = _Manager(hookspecs.PROJECT)
        self.manager.add_hookspecs(hookspecs)
        self.loaded: list[Plugin] = []
        self.failed: list[Failure] = []
        self.hidden: list[Plugin] = []
        self.grids: dict[str, PackagedGrid] = {}

    def hooks_of(self, plugin: Plugin) -> list[str]:
        """The hooks that a plugin implements."""
        callers = self.manager.get_hookcallers(self.manager.get_plugin(plugin.key)) or []
        return sorted(caller.name for caller in callers)

    def summary_of(self, plugin: Plugin) -> str:
        """The first line of a loaded plugin's own docstring."""
        doc = getattr(self.manager.get_plugin(plugin.key), "__doc__", None)
        return doc.strip().partition("\n")[0] if isinstance(doc, str) else ""

    def results(self, hook: str) -> list[tuple[Plugin, Any]]:
        """What each plugin returns from a hook, in loading order; a plugin that raises is added to ``failed``."""
        implementations = {
            hookimpl.plugin_name: hookimpl for hookimpl in getattr(self.manager.hook, hook).get_hookimpls()
        }
        returned: list[tuple[Plugin, Any]] = []
        for plugin in self.loaded:
            implementation = implementations.get(plugin.key)
            if implementation is not None:
                with self.isolated(plugin, hook):
                    returned.append((plugin, implementation.function()))
        return returned

    @contextmanager
    def isolated(self, plugin: Plugin, hook: str = "") -> Iterator[None]:
        """Run a plugin's code; whatever it raises is added to ``failed``."""
        try:
            with guard(f"{hook}()" if hook else ""):
                yield
        except TaskloomError as error:
            self.failed.append(Failure(plugin, str(error)))

    @property
    def hidden_note(self) -> str:
        """What to add to "no such component" while TASKLOOM_PLUGINS leaves plugins out; empty if it does not."""
        names = sorted({plugin.distribution for plugin in self.hidden})
        limit = os.environ.get(LIMIT, "")
        return f"{LIMIT}={limit!r} leaves out {', '.join(names)}, which may have it" if names else ""

    def load(self, plugin: Plugin, entry: EntryPoint) -> None:
        """Import an entry point's module and add it."""
        start = perf_counter()
        with self.isolated(plugin), chdir("."):
            module = entry.load()
            self.add(module, replace(plugin, seconds=perf_counter() - start))

    def add(self, module: object, plugin: Plugin) -> None:
        """Register a module; problems with its hooks are added to ``failed``."""
        with self.isolated(plugin):
            try:
                self.manager.register(module, plugin.key)
            except pluggy.PluginValidationError as error:
                raise PluginError("wrong signature: " + " ".join(str(error).split())) from error
            where, allowed = f"hooks of the entry-point group {plugin.group!r}", _HOOKS_OF[plugin.group]
            stray = [hook for hook in self.hooks_of(plugin) if hook not in allowed]
            if stray:
                raise PluginError("; ".join(unknown("hook", hook, allowed, where=where) for hook in stray))
            self.loaded.append(plugin)

    def collect_grids(self) -> None:
        """Ask every plugin for its packaged grids."""
        for plugin, paths in self.results("taskloom_grids"):
            with self.isolated(plugin, "taskloom_grids"):
                for path in paths:
                    with self.isolated(plugin):
                        if not isinstance(path, Path) or path.suffix != ".json" or not path.is_file():
                            raise PluginError(f"a packaged grid should be the path of a JSON file. Found {path!r}.")
                        new = PackagedGrid(path.stem, path, plugin)
                        old = self.grids.setdefault(new.name, new)
                        if old != new:
                            raise PluginError(name_conflict(f"grid {new.name!r}", old.plugin))


@cache
def grid_plugins() -> Plugins:
    """The plugins of the group ``taskloom.grids`` only, loaded once per process."""
    return load_plugins((GRIDS,))


def packaged_grids() -> dict[str, PackagedGrid]:
    """The packaged grids by name; imports only the light modules that name them, no torch."""
    return grid_plugins().grids


def load_plugins(groups: Sequence[str] = (COMPONENTS, GRIDS)) -> Plugins:
    """Import every plugin of these groups, always in the same order.

    The built-ins come first, then the third parties that TASKLOOM_PLUGINS allows.
    """
    plugins = Plugins()
    limit = os.environ.get(LIMIT)
    wanted = {normalized(name): name.strip() for name in (limit or "").split(",") if name.strip()}
    known: set[str] = set()
    for plugin, entry in sorted(installed(groups), key=lambda pair: (not pair[0].builtin, pair[0].key)):
        names = {plugin.name, plugin.distribution}
        if plugin.builtin or limit is None or {normalized(name) for name in names} & wanted.keys():
            plugins.load(plugin, entry)
        else:
            plugins.hidden.append(plugin)
        known |= set() if plugin.builtin else names
    if COMPONENTS in groups:  # else a plugin without grids would count as absent
        for key in wanted.keys() - {normalized(name) for name in known}:
            reason = f"{LIMIT}: {unknown('plugin', wanted[key], known, where='installed')}"
            plugins.failed.append(Failure(Plugin(wanted[key], "", "", ""), reason))
    plugins.collect_grids()
    return plugins


def installed(groups: Sequence[str]) -> list[tuple[Plugin, EntryPoint]]:
    """Every plugin of these groups, not imported yet; of several copies, the first on the path."""
    entries = [entry for group in groups for entry in entry_points(group=group)]
    origins = [(entry.dist.name, entry.dist.version) if entry.dist else ("", "") for entry in entries]
    return [(Plugin(entry.name, entry.group, *origin), entry) for entry, origin in zip(entries, origins, strict=True)]


def normalized(name: str) -> str:
    """A distribution's name as installers compare it."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()
