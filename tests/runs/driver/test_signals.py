"""Which signals ask a run to stop, and that they mean afterwards what they meant before."""

import signal
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from taskloom.runs.driver.signals import Stop, stop_on_signals

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def nobody(number: int, frame: FrameType | None) -> None:
    """Whom the signals go to otherwise."""


@pytest.fixture(autouse=True)
def before() -> Iterator[dict[signal.Signals, object]]:
    """What the signals mean before: nothing that would end the tests."""
    kept = {number: signal.signal(number, nobody) for number in NUMBERS}
    yield dict.fromkeys(NUMBERS, nobody)
    for number, handler in kept.items():
        signal.signal(number, handler)


def meant() -> dict[signal.Signals, object]:
    return {number: signal.getsignal(number) for number in NUMBERS}


@pytest.mark.parametrize("number", NUMBERS)
def test_each_signal_asks_to_stop(number: signal.Signals, before: dict[signal.Signals, object]) -> None:
    stop = Stop()
    with stop_on_signals(stop):
        signal.raise_signal(number)
    assert stop.asked == 1
    assert meant() == before


def test_an_error_leaves_the_signals_as_they_were(before: dict[signal.Signals, object]) -> None:
    with pytest.raises(ZeroDivisionError), stop_on_signals(Stop()):
        raise ZeroDivisionError
    assert meant() == before


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_that_is_ignored_stays_so(number: signal.Signals) -> None:
    """``nohup taskloom run …`` goes on when its terminal is closed."""
    signal.signal(number, signal.SIG_IGN)
    stop = Stop()
    with stop_on_signals(stop):
        signal.raise_signal(number)
        assert meant()[number] == signal.SIG_IGN
    assert (stop.asked, meant()[number]) == (0, signal.SIG_IGN)


def test_outside_the_main_thread_signals_are_left_alone(before: dict[signal.Signals, object]) -> None:
    found = []

    def look() -> None:
        with stop_on_signals(Stop()):
            found.append(meant())

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [before]
