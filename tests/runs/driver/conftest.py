from collections.abc import Iterator
from pathlib import Path

import pytest

from taskloom.registry.results.ledger import Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path, create=True) as opened:
        yield opened
