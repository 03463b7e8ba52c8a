"""The guard around foreign code: whatever a plugin raises becomes one error that says what it was doing."""

from collections.abc import Iterator
from contextlib import contextmanager

from taskloom.core.errors import PluginError, TaskloomError
from taskloom.core.work import is_ctrl_c, reason_of

_MAX_LENGTH = 600


@contextmanager
def guard(doing: str = "") -> Iterator[None]:
    """Turn whatever is raised inside, ``SystemExit`` too, into a ``PluginError``; the user's Ctrl-C stays what it is.

    A ``TaskloomError`` is a message to the user already and passes through.

    >>> with guard("focal"):
    ...     raise SystemExit(3)
    Traceback (most recent call last):
    taskloom.core.errors.PluginError: focal: SystemExit: 3 (a component called sys.exit; it should raise an error)
    """
    try:
        yield
    except TaskloomError:
        raise
    except BaseException as error:
        if is_ctrl_c(error):
            raise
        raise PluginError(f"{doing}: {shorten(reason_of(error))}" if doing else shorten(reason_of(error))) from error


def shorten(text: str) -> str:
    """A string of a plugin's, such as a message or a ``repr``, no longer than one wants to read."""
    return text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}…"
