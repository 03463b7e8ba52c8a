"""What ``taskloom run`` shows while it runs: a live display on a terminal, elsewhere lines with the time.

Both go to stderr, so that stdout holds nothing but the table.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Protocol, TextIO

from taskloom.core.events import ENDS, Event
from taskloom.core.visible import visible
from taskloom.runs.show.board import Board
from taskloom.runs.show.terminal import redraws

if TYPE_CHECKING:
    from taskloom.registry.results.ledger import Ledger
    from taskloom.runs.grid.plan import Plan

#: Seconds between two lines of progress in a log; starts, epochs and ends are always told.
QUIET = 30.0
#: Seconds between two lines about the whole run, unless it has come to its end.
BETWEEN = 5.0


class Listener(Protocol):
    """Hears every event of a run. ``board`` is where the run stands."""

    board: Board

    def __call__(self, event: Event) -> None: ...
    def say(self, text: str) -> None: ...


@contextmanager
def show_progress(
    plan: "Plan", stream: TextIO | None = None, *, workers: int = 1, ledger: "Ledger | None" = None
) -> Iterator[Listener]:
    """Show a plan's progress until the block ends; on a terminal live, otherwise line by line.

    ``workers`` is how many cells run at once, and from the ``ledger`` it is learnt how long such cells took before.
    """
    stream = stream or sys.stderr
    board = Board.of(plan)
    board.workers = max(1, workers)
    for record in ledger.cells() if ledger is not None else ():
        if record.status == "finished":
            board.durations.learn(record.spec, record.seconds)
    if redraws(stream):
        from taskloom.runs.show.live import Live

        with Live(board, stream) as live:
            yield Unshaken(live)
    else:
        yield Unshaken(Lines(board, stream))


class Unshaken:
    """A listener whose stream may go away, with its terminal or its reader: the training goes on in silence."""

    def __init__(self, listener: Listener) -> None:
        self.board = listener.board
        self.listener: Listener | None = listener

    def __call__(self, event: Event) -> None:
        self._try(lambda listener: listener(event))

    def say(self, text: str) -> None:
        self._try(lambda listener: listener.say(text))

    def _try(self, tell: Callable[[Listener], None]) -> None:
        if self.listener is not None:
            try:
                tell(self.listener)
            except OSError:
                self.listener = None


class Lines:
    """Progress for a log: a line for each start, epoch and end, and now and then one for how far a cell is."""

    def __init__(self, board: Board, stream: TextIO) -> None:
        self.board, self.stream = board, stream
        self._told = board.clock()
        self._totalled = float("-inf")

    def __call__(self, event: Event) -> None:
        ends = event.what in ENDS
        text = self.board.tell(event) if ends else None  # while it is known who worked on it
        self.board.hear(event)
        if not ends and (event.what != "progress" or self.board.clock() - self._told >= QUIET):
            text = self.board.tell(event)
        if text:
            self.say(text)
        if ends and (self.board.over or self.board.clock() - self._totalled >= BETWEEN):
            self._totalled = self.board.clock()
            self.say(self.board.line())

    def say(self, text: str) -> None:
        self._told = self.board.clock()
        line = visible(" ".join(text.splitlines()))
        print(f"{datetime.now():%Y-%m-%d %H:%M:%S}  {line}", file=self.stream, flush=True)
