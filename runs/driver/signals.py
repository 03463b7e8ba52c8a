"""Ctrl-C, SIGTERM, SIGHUP: the cells write checkpoints and end. Ctrl-C twice ends them at once, thrice everything."""

import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

#: Exit code of a command that was interrupted.
INTERRUPTED = 130
#: Supervisors and terminals may send these several times and mean one request; SIGKILL is for those in a hurry.
PATIENT = (signal.SIGTERM, signal.SIGHUP)


def _end_now() -> None:
    """End this process and its workers at once."""
    with suppress(OSError, ValueError):
        if os.isatty(2) and select.select([], [2], [], 0)[1]:
            os.write(2, b"\x1b[?25h\n")  # the cursor, which a live display hides
    os._exit(INTERRUPTED)


@dataclass
class Stop:
    """The number of requests to stop; ``say`` tells the user what follows, ``end`` is called by a third Ctrl-C."""

    say: Callable[[str], None] = lambda text: None
    asked: int = 0
    end: Callable[[], None] = _end_now

    def __call__(self, number: int = 0, frame: FrameType | None = None) -> None:
        self.asked = max(1, self.asked) if number in PATIENT else self.asked + 1
        if number == signal.SIGINT and self.asked > 2:
            self.end()  # the loop is blocked, perhaps by a stream that nobody reads


@contextmanager
def stop_on_signals(stop: Stop) -> Iterator[None]:
    """Count SIGINT, SIGTERM and SIGHUP in ``stop`` until the block ends; does nothing outside the main thread."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, *PATIENT):
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup means it
                before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
