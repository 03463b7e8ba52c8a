"""What the tests of the drive loop have in common."""

from collections.abc import Callable
from typing import Any

from drivers import planned

from taskloom.core import Engine, Event, Job
from taskloom.plugins.engines.inline import Inline
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.locks import Claims, holder
from taskloom.runs.driver.loop import Loop, Outcome


def record(ledger: Ledger, jobs: list[Job]) -> list[Job]:
    """Record the cells of these jobs as a grid."""
    ledger.record_grid("grid", {}, [planned(job.cell, job.label, spec=job.spec) for job in jobs])
    return jobs


class Run:
    """A loop with what it has claimed, and everything that it reported; ``react`` is called with each event."""

    def __init__(self, ledger: Ledger, jobs: list[Job], engine: Engine | None = None, **options: Any) -> None:
        self.events: list[Event] = []
        self.react: Callable[[Event], None] = lambda event: None
        self.outcome, self.claims, self.folder = Outcome(), Claims(ledger.folder), ledger.folder
        self.engine = engine or Inline()
        options = {"outcome": self.outcome, "listen": self._listen, **options}
        self.loop = Loop(jobs, self.engine, ledger, self.claims, **options)

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

    def held(self, *cells: str) -> set[str]:
        """Those of these cells that are taken."""
        return {cell for cell in cells if holder(self.folder, cell) is not None}

    def reported(self, *what: str) -> list[str]:
        return [f"{event.cell} {event.what}" for event in self.events if event.what in what]
