"""Stages that several drivers share: one of them computes each, and the others wait."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from taskloom.registry.results.leases import Leases
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.presence import Machine


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path, create=True) as opened:
        cells = [SimpleNamespace(id=id, label=id, seed=0, spec={}, reported={}, facts={}) for id in "abcd"]
        opened.record_grid("grid", {}, cells)
        yield opened


def test_two_drivers_never_compute_a_stage_at_once(ledger: Ledger) -> None:
    with Ledger.open(ledger.folder, create=False) as second:
        ours, theirs = Leases(ledger), Leases(second)
        assert ours.claim("a", ["k", "l"])
        assert theirs.claim("b", ["k", "m"]) is None
        assert theirs.claim("b", ["l"]) is None
        assert set(theirs.holders()) == {"a"}, "what waits for a stage holds nothing"
        assert theirs.claim("b", ["m", "l"]), "only the first that it lacks is waited for"
        assert ours.claim("c", ["m"]) is None
        assert ours.claim("c", ["l"]), "whoever holds a stage may give it to another cell of its own"
        ours.release("a")
        assert theirs.claim("d", ["l"]) is None
        assert theirs.claim("d", ["k"]), "the stages of a cell are given back with it"
        ours.close()
        theirs.release("d")
        assert theirs.claim("d", ["l"])
        theirs.close()
        with ledger.snapshot() as db:
            assert db.execute("SELECT count(*) FROM stage_leases").fetchone()[0] == 0


def test_the_stages_of_a_driver_that_died_are_free(ledger: Ledger) -> None:
    dead = Machine()
    dead.pid = 2**22 + 1  # no process can have that number
    with Ledger.open(ledger.folder, create=False) as second, Leases(ledger) as leases:
        assert Leases(second, machine=dead).claim("a", ["k"])
        assert leases.claim("b", ["k"])
