"""A grid that takes minutes, and a way to know that it has begun."""

import time
from pathlib import Path
from typing import Any

import pytest

from taskloom.registry.results.ledger import Ledger

PATIENCE = 120.0
#: One cell that takes minutes, and reports after every epoch.
LONG: dict[str, Any] = {
    "base": {
        "encoder": {"name": "minbert", "layers": 1, "width": 16, "heads": 2, "vocabulary": 256},
        "tasks": {"sst": {"data": {"name": "generated", "task": "sentiment", "size": 32, "dev_size": 16}}},
        "stages": [{"epochs": 5000}],
    },
}


def until_begun(registry: Path) -> None:
    """Wait until a cell has reported an epoch."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if (ledger := Ledger.find(registry)) is not None:
            with ledger:
                if any(cell.epochs for cell in ledger.cells()):
                    return
        time.sleep(0.05)
    pytest.fail("no cell has begun")
