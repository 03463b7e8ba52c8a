"""A driver of no-op cells, for tests with many processes on one registry; no torch.

``python drivers.py REGISTRY GRID`` says "ready", waits for a line, claims and finishes cells of the grid until all are
finished, by whomever, and prints the cells that it finished itself.
"""

import sys
import time

from taskloom.core.events import Event
from taskloom.registry.leases import Leases
from taskloom.registry.ledger import Ledger


def drive(registry: str, grid: str) -> list[str]:
    """Finish what can be claimed; the cells that this driver finished."""
    done = []
    with Ledger.open(registry, create=False) as ledger, Leases(ledger) as leases, leases.beating():
        waiting = [place.cell.id for place in ledger.grid(grid).cells]
        while waiting:
            for cell, fence in leases.claim_some(waiting).items():
                ledger.write(Event("started", cell, {"device": "none"}, fence))
                ledger.write(Event("finished", cell, {"scores": {"overall": 1.0}, "seconds": 0.0}, fence))
                leases.release(cell)
                done.append(cell)
                break
            else:
                time.sleep(0.01)  # others have the rest; should one of them die it comes to us
            waiting = leases.unfinished(waiting)
    return done


if __name__ == "__main__":
    print("ready", flush=True)
    sys.stdin.readline()
    print(*drive(*sys.argv[1:3]))
