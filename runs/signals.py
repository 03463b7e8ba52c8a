"""Ctrl-C and SIGTERM: once asks the cells to write checkpoints and end, twice ends at once."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

#: How the names of threads begin that run a cell in this process.
CELL = "cell "


@dataclass
class Stop:
    """How often somebody asked to stop; ``say`` tells them what follows."""

    say: Callable[[str], None] = lambda text: None
    asked: int = 0

    def __call__(self, number: int = 0, frame: FrameType | None = None) -> None:
        self.asked += 1


@contextmanager
def stop_on_signals(stop: Stop) -> Iterator[None]:
    """Count SIGINT, SIGTERM and SIGHUP in ``stop`` until the block ends; does nothing outside the main thread."""
    names = ("SIGINT", "SIGTERM", "SIGHUP")
    before = {}
    if threading.current_thread() is threading.main_thread():
        for name in names:
            number = getattr(signal, name, None)
            if number is None or signal.getsignal(number) == signal.SIG_IGN:  # nohup means it
                continue
            with suppress(ValueError, OSError):
                before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
