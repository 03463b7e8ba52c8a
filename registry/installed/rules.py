"""The rules that a plugin module must keep, checked before pluggy sees it."""

import inspect
import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from taskloom.core import hookspecs
from taskloom.registry.installed.failures import BUILTIN, Plugin, cut, last_line

#: Entry-point groups: modules with components, and light modules that only name packaged grids.
COMPONENTS, GRIDS = "taskloom", "taskloom.grids"
_HOOKS = [name for name in vars(hookspecs) if name.startswith(f"{hookspecs.PROJECT}_")]
_GROUP_OF = {name: GRIDS if name == "taskloom_grids" else COMPONENTS for name in _HOOKS}
_MARK = f"{hookspecs.PROJECT}_impl"
_NEEDS = "TASKLOOM_INTERFACE"
_BOUND = re.compile(r"\s*(>=|<=|==|!=|>|<)?\s*(\d+)\s*")
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    ">=": int.__ge__,
    "<=": int.__le__,
    "==": int.__eq__,
    "!=": int.__ne__,
    ">": int.__gt__,
    "<": int.__lt__,
}


def broken_rules(module: object, plugin: Plugin) -> list[str]:
    """The rules a plugin breaks. A plugin for another interface is judged by nothing else."""
    unfit = unfit_interface(getattr(module, _NEEDS, None), plugin.distribution)
    if unfit:
        return [unfit]
    broken: list[str] = []
    unknown: list[str] = []
    for name in dir(module):
        try:
            value = getattr(module, name)
        except AttributeError:
            continue
        except Exception as error:
            broken.append(f"looking at its {name!r} raised {last_line(error)}")
            continue
        if inspect.isroutine(value):
            _check_hook(name, value, plugin.group, broken, unknown)
    return broken + _misspelt(unknown)


def unfit_interface(asked: object, distribution: str, have: int = hookspecs.INTERFACE) -> str:
    """What is wrong with the interface that a plugin asks for – a number, a range, or None for any; empty if nothing.

    >>> unfit_interface(">=1,<3", "taskloom-focal", have=2)
    ''
    >>> print(*unfit_interface(3, "taskloom-focal", have=2).split(". "), sep="\\n")
    is written for plugin interface 3; this taskloom has interface 2
    `pip install --upgrade taskloom` brings a newer taskloom; or uninstall the plugin.
    """
    if asked is None:
        return ""
    bounds = _bounds(asked)
    if bounds is None:
        found = cut(repr(asked))
        return f"{_NEEDS} should be a whole number or a range such as '>=1,<3'. Found {found}."
    missed = [(sign, number) for sign, number in bounds if not _COMPARE[sign](have, number)]
    if not missed:
        return ""
    newer = any(sign in (">=", ">", "==") and number >= have for sign, number in missed)
    which = BUILTIN if newer else distribution
    cure = f"`pip install --upgrade {which}` brings a newer {which}; or uninstall the plugin"
    return f"is written for plugin interface {asked}; this taskloom has interface {have}. {cure}."


def _bounds(asked: object) -> list[tuple[str, int]] | None:
    if isinstance(asked, int) and not isinstance(asked, bool):
        return [("==", asked)]
    if not isinstance(asked, str):
        return None
    parts = [_BOUND.fullmatch(part) for part in asked.split(",")]
    return None if None in parts else [(part[1] or "==", int(part[2])) for part in parts if part]


def _check_hook(name: str, function: Callable[..., Any], group: str, broken: list[str], unknown: list[str]) -> None:
    """Note what is wrong with a function that is a hook or looks like one."""
    options = getattr(function, _MARK, None)
    marked = isinstance(options, dict)
    if not marked and (not name.startswith("taskloom_") or function is getattr(hookspecs, name, None)):
        return
    hook = (options.get("specname") if isinstance(options, dict) else None) or name
    if hook not in _GROUP_OF:
        unknown.append(hook)
    elif not marked:
        broken.append(f"{hook}() should be marked with @hookimpl")
    elif options and (options.get("wrapper") or options.get("hookwrapper")):
        broken.append(f"{hook}() should not be a wrapper: a plugin may not change what others return")
    elif inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        broken.append(f"{hook}() should be a plain function, as nobody awaits it. Found 'async def'.")
    elif inspect.isgeneratorfunction(function):
        broken.append(f"{hook}() should be a plain function, as nobody iterates over it. Found a 'yield' in it.")
    elif _GROUP_OF[hook] != group:
        home = f"belongs in a module of the entry-point group {_GROUP_OF[hook]!r}. Found it in {group!r}."
        broken.append(f"{hook}() {home}")


def _misspelt(names: list[str]) -> list[str]:
    """Each hook that does not exist, with the nearest that does; all that do exist once, at the end."""
    messages = []
    for name in dict.fromkeys(names):
        near = get_close_matches(name, _HOOKS, n=1, cutoff=0.6)
        messages.append(f"no hook {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    if messages:
        messages[-1] += f" (hooks: {', '.join(sorted(_HOOKS))})"
    return messages
