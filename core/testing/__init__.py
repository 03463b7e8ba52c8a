"""The conformance kit: the laws that every component of a kind must keep, ready to run over yours.

    import taskloom_focal
    from taskloom.core.testing import check

    def test_it_keeps_every_law() -> None:
        check(taskloom_focal)

``check`` of a plugin's module holds every component that its hooks name and its grids to the laws of their kinds;
``check(Focal, gamma=1.0)`` holds one class to them, at the options given and at the edges of what each option allows.
What breaks is one ``AssertionError`` that names the component, the law and the input; laws that break for one reason
are reported together. ``laws`` gives them one by one, for a test that is parametrized or leaves one out::

    @pytest.mark.parametrize("law", laws("loss"), ids=str)
    def test_focal(law: Law) -> None:
        law(Focal, gamma=1.0)

What computes is also run on a GPU that is not there (:class:`taskloom.core.testing.device.PretendGPU`): a tensor that a
component makes or keeps on the host is found without one.
"""

from collections.abc import Iterator, Mapping
from inspect import isabstract
from typing import Any

from taskloom.core.component import Component
from taskloom.core.errors import unknown
from taskloom.core.testing import (  # noqa: F401 - each brings the laws of its kind
    combiners,
    data,
    encoders,
    engines,
    general,
    heads,
    losses,
    metrics,
    plugins,
    samplers,
    trackers,
)
from taskloom.core.testing.law import (
    LAWS,
    Breach,
    Law,
    Target,
    breaches_of,
    raise_if_any,
    subject_of,
    untouched_randomness,
)
from taskloom.core.testing.subjects import RAISED, Subject

__all__ = ["KINDS", "Law", "broken_laws", "check", "laws", "untouched_randomness"]

#: The kinds that have laws of their own; any other component is held to the general ones.
KINDS = tuple(sorted(LAWS.keys() - {"component"}))
#: The kinds whose laws take a module.
_OF_MODULES = ("grid", "plugin")


def laws(kind: str) -> list[Law]:
    """The laws of a kind, those of every component first. Those of ``grid`` and ``plugin`` take a module.

    >>> [law.name for law in laws("sampler")][-2:]
    ['it gives the same again and in a new process', 'its state survives saving']
    """
    if kind not in KINDS:
        raise ValueError(unknown("kind", kind, KINDS))
    return LAWS[kind] if kind in _OF_MODULES else [*LAWS["component"], *LAWS[kind]]


def check(target: Target, /, **options: Any) -> None:
    """Hold a component class, or everything in a plugin's module, to the laws of its kind.

    For a class the options are its own: ``check(Focal, gamma=1.0)``. For a module they are the components' by name, one
    set or a list of sets: ``check(taskloom_mine, my_data={"dir": str(folder)}, focal=[{}, {"gamma": 0.5}])``. Required
    options have to be given, components among them: ``check(Smooth, loss=CrossEntropy())``.
    """
    raise_if_any(_breaches(target, options))


def broken_laws(target: Target, /, **options: Any) -> list[str]:
    """The names of the laws that a component class (or anything in a module) breaks; none if all is well."""
    return list(dict.fromkeys(breach.law.name for breach in _breaches(target, options)))


def _breaches(target: Target, options: dict[str, Any]) -> Iterator[Breach]:
    subject = subject_of(target, options)
    if isinstance(subject, Subject):
        kind = subject.component.kind
        yield from breaches_of(laws(kind) if kind in KINDS else LAWS["component"], subject)
    else:
        yield from _of_module(target, options)


def _of_module(module: Any, options: dict[str, Any]) -> Iterator[Breach]:
    """Breaches of the whole plugin; where its hooks are sound, also those of everything in it."""
    yield from breaches_of(laws("plugin"), module)
    try:
        named = plugins.classes_of(module)
    except RAISED:
        return
    named = [one for one in dict.fromkeys(named) if isinstance(one, type) and issubclass(one, Component)]
    classes = [one for one in named if not isabstract(one)]
    for name in options:
        if name not in (names := {one.name for one in classes}):
            raise TypeError(unknown("component", name, names, where="in the plugin"))
    for one in classes:
        given_options = options.get(one.name, {})
        for each in [given_options] if isinstance(given_options, Mapping) else given_options:
            yield from _breaches(one, dict(each))
    if hasattr(module, "taskloom_grids"):
        yield from breaches_of(laws("grid"), module)
