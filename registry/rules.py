"""The rules that a plugin module must keep, checked before pluggy sees it."""

import inspect
from collections.abc import Callable
from typing import Any

from taskloom.core import hookspecs
from taskloom.core.errors import unknown

#: Entry-point groups: modules with components, and light modules that only name packaged grids.
COMPONENTS, GRIDS = "taskloom", "taskloom.grids"
_HOOKS = [name for name in vars(hookspecs) if name.startswith(f"{hookspecs.PROJECT}_")]
_GROUP_OF = {name: GRIDS if name == "taskloom_grids" else COMPONENTS for name in _HOOKS}
_MARK = f"{hookspecs.PROJECT}_impl"


def broken_rule(module: object, group: str) -> str:
    """The first rule a plugin breaks, or nothing."""
    asked = getattr(module, "TASKLOOM_INTERFACE", hookspecs.INTERFACE)
    if asked != hookspecs.INTERFACE:
        return (
            f"is written for plugin interface {asked!r}; this taskloom has interface {hookspecs.INTERFACE}. "
            "Install versions that fit together."
        )
    for name in dir(module):
        value = getattr(module, name, None)
        broken = inspect.isroutine(value) and _broken_hook(name, value, group)
        if broken:
            return broken
    return ""


def _broken_hook(name: str, function: Callable[..., Any], group: str) -> str:
    options = getattr(function, _MARK, None)
    marked = isinstance(options, dict)
    if not marked and (not name.startswith("taskloom_") or function is getattr(hookspecs, name, None)):
        return ""
    hook = (options.get("specname") if isinstance(options, dict) else None) or name
    if hook not in _GROUP_OF:
        return unknown("hook", hook, _HOOKS, where="hooks")
    if not marked:
        return f"{hook}() should be marked with @hookimpl"
    if options and (options.get("wrapper") or options.get("hookwrapper")):
        return f"{hook}() should not be a wrapper: a plugin may not change what others return"
    if _GROUP_OF[hook] != group:
        return f"{hook}() belongs in a module of the entry-point group {_GROUP_OF[hook]!r}. Found it in {group!r}."
    return ""
