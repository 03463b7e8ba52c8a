"""Laws of whole plugins, and what is in one: every component, trackers and grids."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import pluggy

from taskloom.core import hookspecs
from taskloom.core.combiner import GradientCombiner
from taskloom.core.component import Component
from taskloom.core.data import DataSet
from taskloom.core.encoder import Encoder
from taskloom.core.engine import Engine
from taskloom.core.errors import unknown
from taskloom.core.head import Head
from taskloom.core.loss import Loss
from taskloom.core.metric import Metric
from taskloom.core.sampler import Sampler
from taskloom.core.testing.law import Plugin, given, require

INTERFACES: tuple[type[Component], ...] = (
    Encoder,
    Head,
    Loss,
    Sampler,
    GradientCombiner,
    DataSet,
    Metric,
    Engine,
)
_HOOKS = tuple(name for name in vars(hookspecs) if name.startswith("taskloom_"))


def classes_of(plugin: Plugin) -> list[Any]:
    """Every class that the plugin adds."""
    function = getattr(plugin.module, "taskloom_components", None)
    if function is None:
        return []
    with given("taskloom_components()"):
        found = function()
        form = isinstance(found, Sequence) and not isinstance(found, str)
        require(form, f"it should return a list of classes. Found {found!r}.")
    return list(found)


def its_hooks_are_those_of_taskloom(plugin: Plugin) -> None:
    """Spelt as they are, marked with ``@hookimpl``, and with arguments that exist; and there is at least one."""
    own = [name for name in dir(plugin.module) if name.startswith("taskloom_")]
    for name in own:
        require(name in _HOOKS, unknown("hook", name, _HOOKS, where="hooks"))
        marked = getattr(getattr(plugin.module, name), "taskloom_impl", None)
        require(marked is not None, f"{name} should be marked with @hookimpl")
    require(bool(own), "the module has no hook; a function such as taskloom_components() says what it adds")
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(plugin.module)
    manager.check_pending()


def its_components_are_whole_classes_of_a_kind(plugin: Plugin) -> None:
    for one in classes_of(plugin):
        with given("taskloom_components()"):
            names = ", ".join(interface.__name__ for interface in INTERFACES)
            fits = isinstance(one, type) and issubclass(one, INTERFACES)
            require(fits, f"it should return subclasses of {names}. Found {one!r}.")
            missing = sorted(getattr(one, "__abstractmethods__", ()))
            require(not inspect.isabstract(one), f"{one.__name__} does not define {', '.join(missing)}")


def no_two_components_of_a_kind_have_one_name(plugin: Plugin) -> None:
    known: dict[tuple[str, str], Any] = {}
    for one in classes_of(plugin):
        other = known.setdefault((one.kind, one.name), one)
        require(other is one, f"the {one.kind}s {other.__name__} and {one.__name__} are both called {one.name!r}")


def options_for(one: type[Component], options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The options under which a component of a plugin is checked: those given for its name, one set or several."""
    given_options = options.get(one.name, {})
    return [dict(given_options)] if isinstance(given_options, Mapping) else [dict(each) for each in given_options]


LAWS = (
    its_hooks_are_those_of_taskloom,
    its_components_are_whole_classes_of_a_kind,
    no_two_components_of_a_kind_have_one_name,
)
