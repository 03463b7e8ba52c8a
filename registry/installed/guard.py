"""The guard around foreign code: whatever a plugin raises becomes one error that says what it was doing."""

from collections.abc import Iterator
from contextlib import contextmanager

from taskloom.core.errors import PluginError, TaskloomError
from taskloom.core.work import is_ctrl_c, reason_of

_MAX_LENGTH = 600


@contextmanager
def guard(doing: str = "") -> Iterator[None]:
    """Turn whatever is raised inside, ``SystemExit`` too, into a ``PluginError`` that says what was being done.

    The user's Ctrl-C passes through, and so do the other messages to the user, such as a ``DataError``.

    >>> with guard("focal"):
    ...     raise SystemExit(3)
    Traceback (most recent call last):
    taskloom.core.errors.PluginError: focal: SystemExit: 3 (a component called sys.exit; it should raise an error)
    """
    try:
        yield
    except BaseException as error:
        ours = isinstance(error, TaskloomError) and not isinstance(error, PluginError)
        if ours or is_ctrl_c(error):
            raise
        reason = reason_of(error)
        raise PluginError(f"{doing}: {reason}" if doing else reason) from error


def shorten(text: str) -> str:
    """A string of a plugin's, such as a message or a ``repr``, no longer than one wants to read."""
    return text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}…"
