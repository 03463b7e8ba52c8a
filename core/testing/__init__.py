"""The conformance kit: the laws that every component of a kind must keep, ready to run over yours.

    import taskloom_focal
    from taskloom.core.testing import check

    def test_it_keeps_every_law() -> None:
        check(taskloom_focal)

``check`` of a plugin's module holds every component that its hooks name, its trackers and its grids to the laws of
their kinds; ``check(Focal, gamma=1.0)`` holds one class to them, at the options given and at the edges of what each
option allows. What breaks is one ``AssertionError`` that names the component, the law and the input; laws that break
for one reason stand together. ``laws`` gives them one by one, for a test that is parametrized or leaves one out::

    @pytest.mark.parametrize("law", laws("loss"), ids=str)
    def test_focal(law: Law) -> None:
        law(Focal, gamma=1.0)
"""

from collections.abc import Callable, Iterator
from typing import Any

from taskloom.core.component import Component
from taskloom.core.errors import unknown
from taskloom.core.testing import (
    combiners,
    data,
    encoders,
    engines,
    general,
    grids,
    heads,
    losses,
    metrics,
    plugins,
    samplers,
    trackers,
)
from taskloom.core.testing.law import RAISED, Law, Plugin, Subject, Target, untouched_randomness
from taskloom.core.testing.running import Breach, breaches_of, report
from taskloom.core.testing.samples import completed

__all__ = ["KINDS", "Law", "broken_laws", "check", "laws", "untouched_randomness"]

_Laws = tuple[Callable[[Any], None], ...]
_OF_CLASSES: dict[str, _Laws] = {
    "combiner": combiners.LAWS,
    "data": data.LAWS,
    "encoder": encoders.LAWS,
    "engine": engines.LAWS,
    "head": heads.LAWS,
    "loss": losses.LAWS,
    "metric": metrics.LAWS,
    "sampler": samplers.LAWS,
}
_OF_MODULES: dict[str, _Laws] = {"grid": grids.LAWS, "plugin": plugins.LAWS, "tracker": trackers.LAWS}
#: The kinds that have laws of their own; any other component is held to the general ones.
KINDS = (*_OF_CLASSES, *_OF_MODULES)


def laws(kind: str) -> list[Law]:
    """The laws of a kind, those of every component first. Those of ``tracker``, ``grid`` and ``plugin`` take a module.

    >>> [law.name for law in laws("sampler")][-2:]
    ['its state is json', 'any state goes on exactly']
    """
    if kind not in KINDS:
        raise ValueError(unknown("kind", kind, KINDS))
    return [Law(kind, holds) for holds in (_OF_MODULES.get(kind) or (*general.LAWS, *_OF_CLASSES[kind]))]


def check(target: Target, /, **options: Any) -> None:
    """Hold a component class, or everything in a plugin's module, to the laws of its kind.

    For a class the options are its own: ``check(Focal, gamma=1.0)``. For a module they are the components' by name, one
    set or a list of sets: ``check(taskloom_mine, my_data={"dir": str(folder)}, focal=[{}, {"gamma": 0.5}])``. A
    component that is required and not given (``loss: Loss``) is replaced by a small one of the kit's.
    """
    breaches = _breaches(target, options)
    if breaches:
        raise AssertionError(report(breaches)) from breaches[0].error


def broken_laws(target: Target, /, **options: Any) -> list[str]:
    """The names of the laws that a component class (or anything in a module) breaks; none if all is well."""
    return list(dict.fromkeys(breach.law.name for breach in _breaches(target, options)))


def _breaches(target: Target, options: dict[str, Any]) -> list[Breach]:
    if isinstance(target, type) and issubclass(target, Component):
        found = laws(target.kind) if target.kind in _OF_CLASSES else [Law(target.kind, holds) for holds in general.LAWS]
        return breaches_of(found, Subject(target, completed(target, options)))
    if isinstance(target, type | str | list | tuple):
        raise TypeError(f"check takes a component class or a plugin's module. Found {target!r}.")
    return list(_of_module(Plugin(target), options))


def _of_module(plugin: Plugin, options: dict[str, Any]) -> Iterator[Breach]:
    """Breaches of the whole plugin; where its hooks are sound, also those of everything in it."""
    broken = breaches_of(laws("plugin"), plugin)
    yield from broken
    try:
        classes = plugins.classes_of(plugin)
    except RAISED:
        return
    classes = [one for one in classes if isinstance(one, type) and issubclass(one, Component)]
    names = {one.name for one in classes}
    for name in options:
        if name not in names:
            raise TypeError(unknown("component", name, names, where="in the plugin"))
    for one in dict.fromkeys(classes):
        for each in plugins.options_for(one, options):
            yield from _breaches(one, each)
    if trackers.tracks(plugin.module):
        yield from breaches_of(laws("tracker"), plugin)
    if hasattr(plugin.module, "taskloom_grids"):
        yield from breaches_of(laws("grid"), plugin)
