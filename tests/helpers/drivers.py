"""Drivers of no-op cells, for tests with many processes on one registry.

``python drivers.py REGISTRY GRID`` prints "ready", waits for a line, claims and finishes cells of the grid until all
are finished, by whomever, and prints the cells that it finished itself. ``python drivers.py REGISTRY GRID loop`` does
so with the loop of ``taskloom run``; without it nothing here imports torch.
"""

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from taskloom.core.engine import Emit, Event, Job
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.locks import Claims

FINISHED = {"scores": {"overall": 1.0}, "seconds": 0.0}


def planned(id: str, label: str = "sum", seed: int = 0, **more: Any) -> SimpleNamespace:
    """A planned cell."""
    parts = {"id": id, "label": label, "seed": seed, "identity": ""}
    return SimpleNamespace(**{**parts, "spec": {}, "reported": {}, "facts": {}, "locations": {}, **more})


def drive(registry: str, grid: str) -> list[str]:
    """Finish what can be claimed; the cells that this driver finished."""
    done = []
    with Ledger.open(registry, create=False) as ledger, Claims(ledger.folder) as claims:
        claims.share()
        waiting = [place.cell.id for place in ledger.grid(grid).cells]
        while waiting:
            cell = next((cell for cell in waiting if claims.claim(cell)), None)
            if cell is None:
                time.sleep(0.01)  # others have the rest; should one of them die it comes to us
            elif ledger.cell(cell).status != "finished":
                ledger.write(Event("started", cell, {"device": "none"}))
                ledger.write(Event("finished", cell, FINISHED))
                done.append(cell)
            if cell is not None:
                claims.release(cell)
            states = ledger.states()
            waiting = [cell for cell in waiting if states.get(cell) != "finished"]
    return done


def nothing(job: Job, emit: Emit) -> None:
    """A cell that has nothing to do."""
    emit(Event("started", job.cell))
    with (Path(job.folder) / "cells" / job.cell / "ran").open("a") as file:
        file.write("ran\n")
    emit(Event("finished", job.cell, FINISHED))


def loop(registry: str, grid: str) -> list[str]:
    """The same with the loop of ``taskloom run`` and its inline engine."""
    from taskloom.plugins.engines.inline import Inline
    from taskloom.runs.driver.loop import Loop, Outcome

    said: list[Event] = []
    engine, outcome = Inline(), Outcome()
    with Ledger.open(registry, create=False) as ledger, Claims(ledger.folder) as claims:
        claims.share()
        places = ledger.grid(grid).cells
        jobs = [Job(place.cell.id, place.label, place.seed, place.cell.spec, registry) for place in places]
        engine.open("drivers:nothing", Path(registry))
        try:
            Loop(jobs, engine, ledger, claims, outcome=outcome, listen=said.append).run()
        finally:
            engine.close()
    done = [event.cell for event in said if event.what == "finished" and event.attempt]  # others' ends have none
    assert (outcome.finished, outcome.finished + outcome.elsewhere) == (len(done), len(jobs)), outcome
    return done


if __name__ == "__main__":
    print("ready", flush=True)
    sys.stdin.readline()
    print(*(loop if sys.argv[3:] == ["loop"] else drive)(*sys.argv[1:3]))
