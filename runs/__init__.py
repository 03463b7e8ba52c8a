"""From a grid to its table: ``from taskloom.runs import Grid`` is the whole way in Python.

>>> from taskloom.runs import Grid
>>> Grid("quickstart", registry="results")
Grid('quickstart', registry='results')
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskloom.runs.api.grid import Grid as Grid

__all__ = ["Grid"]


def __getattr__(name: str) -> Any:
    """``Grid`` is imported when it is asked for: a command that only prints its help should not wait for it."""
    if name != "Grid":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from taskloom.runs.api.grid import Grid

    return Grid


def __dir__() -> list[str]:
    return [*globals(), *__all__]
