"""What can be done with the terminal that a stream leads to."""

from typing import TextIO


def redraws(stream: TextIO) -> bool:
    """Whether lines on that stream can be drawn anew: a terminal, and not one that only appends (``TERM=dumb``)."""
    if not stream.isatty():
        return False
    from rich.console import Console

    console = Console(file=stream)
    return console.is_terminal and not console.is_dumb_terminal
