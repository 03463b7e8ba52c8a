"""Text of others on a terminal: what would steer it is shown instead."""

import re

#: C0 and C1 but tab and newline, DEL, other ends of a line, what turns the direction of writing, half characters.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    r"""The text with every character that steers a terminal as an escape; tabs and newlines stay.

    The escapes are JSON's, so that JSON text means the same afterwards.

    >>> print(visible("a\x1b[2Jb"))
    a\u001b[2Jb
    """
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: str) -> str:
    r"""The same on one line, every run of white space as one space.

    >>> print(one_line("a\n  b\x07"))
    a b\u0007
    """
    return visible(" ".join(text.split()))
