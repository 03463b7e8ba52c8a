"""From a grid to its table: ``from taskloom.runs import Grid`` is the whole way in Python.

>>> from taskloom.runs import Grid
>>> Grid("quickstart", registry="results")
Grid('quickstart', registry='results')
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskloom.runs.api.grid import Grid as Grid
    from taskloom.runs.api.registry import Registry as Registry
    from taskloom.runs.api.selftest import selftest as selftest

__all__ = ["Grid", "Registry", "selftest"]


def __getattr__(name: str) -> Any:
    """Names are imported when they are used: a command that only prints its help should not wait for them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"taskloom.runs.api.{name.lower()}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
