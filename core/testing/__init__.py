"""The conformance kit: the laws that every component of a kind must keep, ready to run over yours.

    import taskloom_focal
    from taskloom.core.testing import check

    def test_it_keeps_every_law() -> None:
        check(taskloom_focal)

``check`` of a plugin's module holds its components and grids to the laws of their kinds; ``check(Focal, gamma=1.0)``
holds one class to them, with these options and at the edges of each option's range. Violations are one
``AssertionError`` that names component, law and input, grouped by cause. ``laws`` lists the laws, for a test that is
parametrized or leaves one out::

    @pytest.mark.parametrize("law", laws("loss"), ids=str)
    def test_focal(law: Law) -> None:
        law(Focal, gamma=1.0)

Components that compute also run on an emulated GPU (:class:`taskloom.core.testing.device.PretendGPU`), so that a tensor
left on the host is found without a real one.
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
    Law,
    Target,
    Violation,
    raise_if_any,
    specimen_of,
    untouched_randomness,
    violations_of,
)
from taskloom.core.testing.specimens import RAISED, Specimen

__all__ = ["KINDS_WITH_LAWS", "Law", "broken_laws", "check", "laws", "untouched_randomness"]

#: The kinds that have laws of their own; any other component is held to the general ones.
KINDS_WITH_LAWS = tuple(sorted(LAWS.keys() - {"component"}))
#: The kinds whose laws take a module.
_OF_MODULES = ("grid", "plugin")


def laws(kind: str) -> list[Law]:
    """The laws of a kind, those of every component first. Those of ``grid`` and ``plugin`` take a module.

    >>> [law.name for law in laws("sampler")][-2:]
    ['it gives the same again and in a new process', 'its state survives saving']
    """
    if kind not in KINDS_WITH_LAWS:
        raise ValueError(unknown("kind", kind, KINDS_WITH_LAWS))
    return LAWS[kind] if kind in _OF_MODULES else [*LAWS["component"], *LAWS[kind]]


def check(target: Target, /, **options: Any) -> None:
    """Hold a component class, or everything in a plugin's module, to the laws of its kind.

    For a class the options are its own: ``check(Focal, gamma=1.0)``. For a module they are the components' by name, one
    set or a list of sets: ``check(taskloom_mine, my_data={"dir": str(folder)}, focal=[{}, {"gamma": 0.5}])``. Required
    options have to be given, components among them: ``check(Smooth, loss=CrossEntropy())``.
    """
    raise_if_any(_violations(target, options))


def broken_laws(target: Target, /, **options: Any) -> list[str]:
    """The names of the laws that a component class (or anything in a module) breaks."""
    return list(dict.fromkeys(violation.law.name for violation in _violations(target, options)))


def _violations(target: Target, options: dict[str, Any]) -> Iterator[Violation]:
    specimen = specimen_of(target, options)
    if isinstance(specimen, Specimen):
        kind = specimen.component.kind
        yield from violations_of(laws(kind) if kind in KINDS_WITH_LAWS else LAWS["component"], specimen)
    else:
        yield from _of_module(target, options)


def _of_module(module: Any, options: dict[str, Any]) -> Iterator[Violation]:
    """Violations by the plugin and, where its hooks are sound, by its components and grids."""
    yield from violations_of(laws("plugin"), module)
    try:
        listed = plugins.classes_of(module)
    except RAISED:
        return
    components = [cls for cls in dict.fromkeys(listed) if isinstance(cls, type) and issubclass(cls, Component)]
    components = [cls for cls in components if not isabstract(cls)]
    for name in options:
        if name not in (names := {cls.name for cls in components}):
            raise TypeError(unknown("component", name, names, where="in the plugin"))
    for cls in components:
        option_sets = options.get(cls.name, {})
        for option_set in [option_sets] if isinstance(option_sets, Mapping) else option_sets:
            yield from _violations(cls, dict(option_set))
    if hasattr(module, "taskloom_grids"):
        yield from violations_of(laws("grid"), module)
