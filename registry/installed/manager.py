"""Which plugins are installed: one way in for built-ins and third parties, and no way for one to stop the others.

A plugin is an entry point. The group ``taskloom`` holds modules with components, which may import torch; the group
``taskloom.grids`` holds light modules that only name packaged grids. Whatever goes wrong with a plugin – at import, in
a hook's name or signature, in a call – becomes a :class:`Failure` that names it.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path
from time import perf_counter
from typing import Any

import pluggy

from taskloom.core import hookspecs
from taskloom.core.work import is_ctrl_c
from taskloom.registry.installed.failures import (
    BUILTIN,
    LIMIT,
    Failure,
    PackagedGrid,
    Plugin,
    conflict,
    cut,
    last_line,
    taken,
)
from taskloom.registry.installed.packages import choose, describe, installed
from taskloom.registry.installed.quiet import Tell, to_stderr
from taskloom.registry.installed.quiet import quiet as silence
from taskloom.registry.installed.rules import COMPONENTS, GRIDS, broken_rules


class Plugins:
    """Every plugin that was found: ``loaded``, ``failed``, packaged ``grids``, and pluggy's manager over them.

    ``hidden`` are those that TASKLOOM_PLUGINS leaves out; ``tell`` hears what plugins print.
    """

    def __init__(self) -> None:
        self.manager = pluggy.PluginManager(hookspecs.PROJECT)
        self.manager.add_hookspecs(hookspecs)
        self.loaded: list[Plugin] = []
        self.failed: list[Failure] = []
        self.hidden: list[Plugin] = []
        self.grids: dict[str, PackagedGrid] = {}
        self.tell: Tell = to_stderr
        self._raised: dict[str, dict[str, Failure]] = {}  # hook → plugin → the first error

    @property
    def hook(self) -> pluggy.HookRelay:
        """pluggy's callers; a hook called here raises what an implementation raises, :meth:`results` does not."""
        return self.manager.hook

    def hooks_of(self, plugin: Plugin) -> list[str]:
        """The hooks that a loaded plugin implements."""
        callers = self.manager.get_hookcallers(self.manager.get_plugin(plugin.key)) or []
        return sorted(caller.name for caller in callers)

    def summary_of(self, plugin: Plugin) -> str:
        """The first line of a loaded plugin's own docstring."""
        doc = getattr(self.manager.get_plugin(plugin.key), "__doc__", None)
        return doc.strip().partition("\n")[0] if isinstance(doc, str) else ""

    def results(self, hook: str, **arguments: Any) -> list[tuple[Plugin, Any]]:
        """What each plugin answers to a hook, in order of loading.

        One that raises is noted in ``failed``, once for each hook. Each gets copies of the arguments.
        """
        known = {plugin.key: plugin for plugin in self.loaded}
        places = {key: place for place, key in enumerate(known)}
        found: list[tuple[Plugin, Any]] = []
        callers = getattr(self.hook, hook).get_hookimpls()
        for implementation in sorted(callers, key=lambda one: places[one.plugin_name]):
            plugin = known[implementation.plugin_name]
            raised = self._raised.setdefault(hook, {})
            try:
                with self.quiet(plugin):
                    call: Callable[..., Any] = implementation.function
                    answer = call(*(deepcopy(arguments[name]) for name in implementation.argnames))
            except BaseException as error:  # SystemExit too: a plugin may not end the program
                if is_ctrl_c(error):
                    raise
                if plugin.key not in raised:
                    raised[plugin.key] = Failure.of(plugin, f"{hook}() raised {last_line(error)}")
                    self.failed.append(raised[plugin.key])
            else:
                found.append((plugin, answer))
        return found

    def raised(self, hooks: Sequence[str]) -> list[Failure]:
        """The first error of each plugin in each of these hooks, as far as they were called."""
        return [failure for hook in hooks for failure in self._raised.get(hook, {}).values()]

    @contextmanager
    def _isolated(self, plugin: Plugin) -> Iterator[None]:
        """Turn whatever is raised into a failure; what is printed must not end up in a command's output."""
        try:
            with self.quiet(plugin):
                yield
        except BaseException as error:  # SystemExit too
            if is_ctrl_c(error):
                raise
            self.failed.append(Failure.of(plugin, last_line(error)))

    @contextmanager
    def quiet(self, plugin: Plugin) -> Iterator[None]:
        """Keep what is printed while a plugin is at work out of stdout, and say whose it is."""
        with nullcontext() if plugin.builtin else silence(f"plugin {plugin.name!r}", self._say):
            yield

    def _say(self, line: str) -> None:
        self.tell(line)  # whoever that is now

    def load(self, entry: EntryPoint, group: str) -> None:
        """Import an entry point's module and add it."""
        plugin = describe(entry, group)
        start = perf_counter()
        with self._isolated(plugin):
            with chdir("."):
                module = entry.load()
            self.add(module, replace(plugin, seconds=perf_counter() - start))

    def add(self, module: object, plugin: Plugin) -> None:
        """Register a module if it keeps the rules; note in ``failed`` which ones it breaks if not."""
        with self._isolated(plugin):
            broken = broken_rules(module, plugin) or self._refused(module, plugin)
            if broken:
                self.failed += [Failure.of(plugin, reason) for reason in broken]
            else:
                self.manager.register(module, plugin.key)
                self.loaded.append(plugin)

    def _refused(self, module: object, plugin: Plugin) -> list[str]:
        """What pluggy has against a module, found on a manager of its own so that nothing stays half registered."""
        if self.manager.is_registered(module):
            first = next(one for one in self.loaded if one.key == self.manager.get_name(module))
            return [f"its module is already loaded as {first}"]
        trial = Plugins()
        try:
            trial.manager.register(module, plugin.key)
        except pluggy.PluginValidationError as error:
            return ["wrong signature: " + " ".join(str(error).split())]
        return []

    def _collect_grids(self) -> None:
        for plugin, paths in self.results("taskloom_grids"):
            with self._isolated(plugin):
                if not isinstance(paths, Sequence) or not all(isinstance(path, Path) for path in paths):
                    reason = cut(f"taskloom_grids() should return a list of paths. Found {paths!r}.")
                    self.failed.append(Failure.of(plugin, reason))
                    continue
                for path in paths:
                    self._add_grid(plugin, path)

    def _add_grid(self, plugin: Plugin, path: Path) -> None:
        if path.suffix != ".json" or not path.is_file():
            self.failed.append(Failure.of(plugin, f"a packaged grid should be a JSON file. Found {str(path)!r}."))
            return
        new = PackagedGrid(path.stem, path, plugin.name, plugin.distribution, plugin.version)
        old = self.grids.setdefault(new.name, new)
        if old is new:
            return
        message = taken(f"grid {new.name!r}")
        if old.distribution != BUILTIN:
            first = f"plugin {old.plugin!r} of {old.distribution} {old.version}"
            message = conflict(f"grid {new.name!r}", [first, str(plugin)])
            self.grids[new.name] = replace(old, conflict=message)
        self.failed.append(Failure.of(plugin, message))


def load_plugins() -> Plugins:
    """Import every plugin of both groups."""
    return _load_groups((COMPONENTS, GRIDS))


def packaged_grids() -> dict[str, PackagedGrid]:
    """The packaged grids by name; imports only the light modules that name them, no torch."""
    return dict(grid_plugins().grids)


def grid_plugins() -> Plugins:
    """The plugins of the light group alone."""
    return _grids(os.environ.get(LIMIT), tuple(sys.path))


@cache
def _grids(limit: str | None, path: tuple[str, ...]) -> Plugins:
    """Looked up once for what it hangs on: a plugin that is broken or noisy should be heard once."""
    return _load_groups((GRIDS,))


def _load_groups(groups: Sequence[str]) -> Plugins:
    plugins = Plugins()
    found, unreadable = installed(groups)
    chosen, plugins.hidden, absent = choose(found)
    plugins.failed += unreadable
    for entry, group in chosen:
        plugins.load(entry, group)
    if COMPONENTS in groups:  # else a plugin without grids would count as absent
        plugins.failed += absent
    plugins._collect_grids()
    return plugins
