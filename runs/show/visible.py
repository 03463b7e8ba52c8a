"""Text from outside, made safe for a terminal: control characters are shown as escapes."""

import re

from taskloom.core.errors import shortened

#: The most characters of one text, such as a note that names many rows; longer ones are cut.
LONGEST_TEXT = 10_000
#: C0 and C1 except tab and newline, DEL, other line separators, changes of writing direction, surrogates.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    r"""Escape every control character in a text, except tabs and newlines.

    The escapes are JSON's, so that JSON text keeps its meaning.

    >>> print(visible("a\x1b[2Jb"))
    a\u001b[2Jb
    """
    return _STEERING.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def one_line(text: str) -> str:
    r"""Escape a text like :func:`visible`, with white space collapsed to single spaces, and cut it if it is very long.

    >>> print(one_line("a\n  b\x07"))
    a b\u0007
    """
    return visible(shortened(" ".join(text.split()), LONGEST_TEXT))
