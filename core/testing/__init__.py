"""The conformance kit: the laws that every component of a kind must keep, ready to run over yours.

    from taskloom.core.testing import check
    from taskloom_focal import Focal

    def test_focal_keeps_the_laws_of_losses() -> None:
        check(Focal, gamma=1.0)

``check`` makes the component with the options given and runs every law of its kind; what breaks is one
``AssertionError`` that names the component, the law and the input. ``laws`` gives them one by one, for a test that
is parametrized or leaves one out::

    @pytest.mark.parametrize("law", laws("loss"), ids=str)
    def test_focal(law: Law) -> None:
        law(Focal, gamma=1.0)
"""

from typing import Any

from taskloom.core.component import Component
from taskloom.core.errors import unknown
from taskloom.core.testing import combiners, data, encoders, general, heads, losses, metrics, samplers
from taskloom.core.testing.law import Law, untouched_randomness

__all__ = ["KINDS", "Law", "check", "laws", "untouched_randomness"]

_OF_KIND = {
    "combiner": combiners.LAWS,
    "data": data.LAWS,
    "encoder": encoders.LAWS,
    "head": heads.LAWS,
    "loss": losses.LAWS,
    "metric": metrics.LAWS,
    "sampler": samplers.LAWS,
}
#: The kinds that have laws of their own; any other component is held to the general ones.
KINDS = tuple(_OF_KIND)


def laws(kind: str) -> list[Law]:
    """The laws of a kind, those of every component first."""
    if kind not in KINDS:
        raise ValueError(unknown("kind", kind, KINDS))
    return [Law(kind, holds) for holds in (*general.LAWS, *_OF_KIND[kind])]


def check(component: type[Component], **options: Any) -> None:
    """Hold a component class to the laws of its kind; every broken one is in the error."""
    kind = component.kind
    found = laws(kind) if kind in KINDS else [Law(kind, holds) for holds in general.LAWS]
    broken: list[str] = []
    cause: AssertionError | None = None
    for law in found:
        try:
            law(component, **options)
        except AssertionError as error:
            broken.append(str(error))
            cause = cause or error
    if broken:
        raise AssertionError("\n".join(broken)) from cause
