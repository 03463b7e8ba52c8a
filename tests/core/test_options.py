"""Options written once: a constructor with ``**options`` also has those of the next one."""

from typing import Any

import pytest

from taskloom.core import Metric, PluginError
from taskloom.core.options import options_of


class Base(Metric):
    """Has two options.

    Options:
        scale: what it is multiplied with
        steps: how often
    """

    name = "base"

    def __init__(self, *, scale: float = 1.0, steps: int = 3) -> None:
        self.scale, self.steps = scale, steps

    def __call__(self, predicted: Any, expected: Any) -> float:
        return self.scale * self.steps


class Mixin:
    """Defines no constructor."""


class Own(Mixin, Base):
    """Has one more, and another default.

    Options:
        order: what comes first
        steps: how often here
    """

    name = "own"

    def __init__(self, *, order: list[str] | None = None, steps: int = 5, **options: Any) -> None:
        super().__init__(steps=steps, **options)
        self.order = order


class Texts(Own):
    """Has the options of ``Own``.

    Options:
        scale: another text
    """

    name = "texts"


class Closed(Own):
    """Does not pass anything on."""

    name = "closed"

    def __init__(self, *, only: int = 1) -> None:
        super().__init__()


def test_options_and_texts_come_from_the_nearest_class() -> None:
    found = {name: (option.default, option.text) for name, option in options_of(Own).items()}
    assert found == {
        "order": (None, "what comes first"),
        "steps": (5, "how often here"),
        "scale": (1.0, "what it is multiplied with"),
    }
    assert {name: option.text for name, option in options_of(Texts).items()} == {
        "order": "what comes first",
        "steps": "how often here",
        "scale": "another text",
    }
    assert list(options_of(Closed)) == ["only"]
    assert Own(scale=2.0)(None, None) == 10.0


def test_nobody_takes_what_the_last_constructor_passes_on() -> None:
    class Open(Metric):
        name = "open"

        def __init__(self, **options: Any) -> None: ...

        def __call__(self, predicted: Any, expected: Any) -> float:
            return 0.0

    with pytest.raises(PluginError, match=r"\*\*options"):
        options_of(Open)
