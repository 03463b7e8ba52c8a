"""Engines that break a law."""

import threading
from typing import Any

from mutants.base import mutant, then

from taskloom.core import Event
from taskloom.core.testing.engines import OUTLIVED
from taskloom.plugins.engines.inline import Inline

PLAIN = ("finished", "failed")


def polled(change: Any) -> Any:
    """A poll whose events are changed."""
    return then(Inline.poll, lambda self, events, _: change(self, events))


def each(change: Any) -> Any:
    """A poll of which each event is changed."""
    return polled(lambda self, events: [change(event) for event in events])


def close_when_idle(self: Any) -> None:
    if self.free:
        Inline.close(self)
    else:  # the job outlives its engine for as long as the kit looks, and not into other tests
        threading.Timer(OUTLIVED + 1, Inline.stop, [self], {"at_once": True}).start()


def last_first(self: Any, events: list[Event]) -> list[Event]:
    logs = [event for event in events if event.what == "log"]
    return [logs.pop() if event.what == "log" else event for event in events]


MUTANTS = {
    "every job ends with exactly one event": [
        mutant(
            Inline, "says every end twice", poll=polled(lambda self, e: [*e, *(one for one in e if one.what in PLAIN)])
        ),
        mutant(
            Inline,
            "says of a job that raised that it finished",
            poll=each(lambda e: Event("finished", e.cell, e.facts, e.attempt) if e.what == "failed" else e),
        ),
        mutant(
            Inline,
            "does not say why",
            poll=each(lambda e: Event(e.what, e.cell, {} if e.what == "failed" else e.facts, e.attempt)),
        ),
    ],
    "events of a job come in order and whole": [
        mutant(
            Inline,
            "drops every second log",
            poll=polled(lambda self, e: [one for one in e if one.what != "log" or one.facts["step"] % 2]),
        ),
        mutant(Inline, "passes on the newest log first", poll=polled(last_first)),
        mutant(
            Inline,
            "reports of a job that nobody submitted",
            poll=polled(lambda self, events: events or [Event("log", "nobody")]),
        ),
    ],
    "events carry the attempt of their job": [
        mutant(Inline, "loses the attempt", poll=each(lambda e: Event(e.what, e.cell, e.facts))),
    ],
    "free is how many more jobs it takes": [
        mutant(Inline, "is always free", free=property(lambda self: 1)),
        mutant(Inline, "is never free", free=property(lambda self: 0)),
    ],
    "a job that is stopped is interrupted or lost": [
        mutant(
            Inline,
            "ends a job at once",
            stop=lambda self, cell=None, at_once=False: Inline.stop(self, cell, at_once=True),
        ),
        mutant(Inline, "asks a job to stop", stop=lambda self, cell=None, at_once=False: Inline.stop(self, cell)),
    ],
    "closing ends what still runs": [
        mutant(Inline, "closes when there is nothing to end", close=close_when_idle),
    ],
}
