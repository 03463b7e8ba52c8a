"""What the tests of the drive loop have in common."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from taskloom.core import Engine, Event, Job
from taskloom.plugins.engines.inline import Inline
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.locks import Claims
from taskloom.runs.driver.loop import Loop, Outcome


def record(ledger: Ledger, jobs: list[Job]) -> list[Job]:
    """Record the cells of these jobs as a grid."""
    facts: dict[str, Any] = {"seed": 0, "reported": {}, "facts": {}}
    cells = [SimpleNamespace(id=job.cell, label=job.label, spec=job.spec, **facts) for job in jobs]
    ledger.record_grid("grid", {}, cells)
    return jobs


class Run:
    """A loop with what it has claimed, and everything that it reported; ``react`` is called with each event."""

    def __init__(self, ledger: Ledger, jobs: list[Job], engine: Engine | None = None, **options: Any) -> None:
        self.events: list[Event] = []
        self.react: Callable[[Event], None] = lambda event: None
        self.outcome, self.claims, self.folder = Outcome(), Claims(ledger.folder), ledger.folder
        self.engine = engine or Inline()
        options = {"outcome": self.outcome, "listen": self._listen, **options}
        self.loop = Loop(jobs, self.engine, ledger, load_catalogue().plugins, self.claims, **options)

    def _listen(self, event: Event) -> None:
        self.events.append(event)
        self.react(event)

    def __call__(self) -> Outcome:
        self.engine.check()
        self.engine.open("faulty_work:work", self.folder)
        with self.claims:
            try:
                self.loop.run()
            finally:
                self.engine.close()
        return self.outcome

    def reported(self, *what: str) -> list[str]:
        return [f"{event.cell} {event.what}" for event in self.events if event.what in what]
