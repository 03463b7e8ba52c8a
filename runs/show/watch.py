"""``taskloom cells --watch``: look again and again until nothing runs or waits."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import TextIO

from taskloom.runs.analysis.cell_states import STATES, CellState, counted
from taskloom.runs.show.terminal import redraws

#: Seconds between two looks, and after which watching ends if nobody is at work.
LOOK, IDLE = 1.0, 30.0

Look = Callable[[], list[CellState]]
Write = Callable[[Sequence[CellState], int | None], str]
Say = Callable[[str], None]


def watch_cells(
    look: Look, write: Write, say: Say, stream: TextIO, *, plain: bool = False, every: float = LOOK
) -> None:
    """Show cells until none runs or waits, or nobody has been at work for a while; Ctrl-C ends it, too.

    ``write`` makes a listing of cells, for a terminal of some width or for any; ``say`` prints to ``stream``.
    On a terminal the listing is renewed in place and stays at the end. Anywhere else, and if ``plain`` (one JSON
    value per look), it is said whenever something has changed.
    """
    terminal = redraws(stream) and not plain
    states: list[CellState] = []
    shown: object = None
    busy = time.monotonic()
    with ExitStack() as stack:
        renew = _in_place(stack, write, stream) if terminal else None
        try:
            while True:
                states = look()
                if renew:
                    renew(states)
                elif (found := _essence(states)) != shown:
                    shown = found
                    say(write(states, None) if plain else f"{_head(states)}\n{write(states, None)}\n")
                if any(each.state == "running" for each in states):
                    busy = time.monotonic()
                if is_over(states) or time.monotonic() - busy > IDLE:
                    break
                time.sleep(every)
        except KeyboardInterrupt:
            pass
    if terminal:
        say(f"{write(states, None)}\n\n{counted(states)}")
    if not plain and not is_over(states):
        say("Nobody is at work on what is waiting." if time.monotonic() - busy > IDLE else "The cells go on.")


def is_over(states: Sequence[CellState]) -> bool:
    """Whether no cell runs or waits."""
    return not any(each.state in ("running", "planned") for each in states)


def _essence(states: Sequence[CellState]) -> object:
    """What has to change before a listing is said again; seconds always do."""
    return [(each.cell.id, each.state, each.cell.epochs, each.cell.attempts, each.worker) for each in states]


def _head(states: Sequence[CellState]) -> str:
    return f"{datetime.now():%Y-%m-%d %H:%M:%S}  {counted(states)}"


def _in_place(stack: ExitStack, write: Write, stream: TextIO) -> Callable[[Sequence[CellState]], None]:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    console = Console(file=stream)
    live = stack.enter_context(Live(console=console, auto_refresh=False, transient=True))

    def renew(states: Sequence[CellState]) -> None:
        shown, room = list(states), max(1, console.size.height - 7)
        if len(shown) > room:  # what happens now is worth more than what is done
            urgent = sorted(range(len(shown)), key=lambda place: STATES.index(shown[place].state))
            shown = [shown[place] for place in sorted(urgent[: room - 1])]
        more = f"\n… and {len(states) - len(shown)} more" if len(shown) < len(states) else ""
        rows = Text(write(shown, console.size.width) + more, no_wrap=True, overflow="ellipsis")
        live.update(Group(rows, Text(f"\n{_head(states)}")), refresh=True)

    return renew
