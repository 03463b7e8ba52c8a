"""The ledger on real SQLite files: what is written is read back, whole or not at all, by any number of processes."""

import json
import math
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from drivers import planned
from hypothesis import given
from hypothesis import strategies as st

from taskloom.core import Event, RegistryError
from taskloom.registry.results.artifacts import Artifacts, write_text
from taskloom.registry.results.file import FILE
from taskloom.registry.results.ledger import Ledger

CELLS = [planned("aa01"), planned("aa02", seed=1), planned("bb01", "pcgrad", reported={"sst": 0.5})]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "registry", create=True) as opened:
        opened.record_grid("grid", {"base": {}}, CELLS)
        yield opened


def epoch(cell: str, number: int, score: float, *, stage: int = 0) -> Event:
    facts = {
        "stage": stage,
        "epoch": number,
        "step": 10 * number,
        "seconds": 1.5,
        "losses": {"sst": 1.0 / number},
        "scores": {"sst": score, "overall": score},
        "metrics": {"sst": {"macro_f1": score / 2}},
    }
    return Event("epoch", cell, facts)


def finish(ledger: Ledger, cell: str, **scores: float) -> None:
    ledger.write(Event("started", cell, {"versions": {"torch": "2"}, "device": "cpu"}))
    facts = {"scores": scores, "best_epoch": 2, "seconds": 3.25, "peak_memory": 2**40}
    ledger.write(Event("finished", cell, facts))


def test_a_grid_is_read_back_as_it_was_recorded(ledger: Ledger) -> None:
    record = ledger.grid("grid")
    assert record.spec == {"base": {}}
    assert [(c.label, c.seed, c.cell.id, c.reported) for c in record.cells] == [
        ("sum", 0, "aa01", {}),
        ("sum", 1, "aa02", {}),
        ("pcgrad", 0, "bb01", {"sst": 0.5}),
    ]
    assert {c.cell.status for c in record.cells} == {"planned"}
    assert record.created == record.updated


def test_a_cell_from_start_to_finish(ledger: Ledger) -> None:
    versions = {"torch": "2.13", "taskloom": "0.1.0"}
    ledger.write(Event("started", "aa01", {"versions": versions, "device": "cpu"}))
    running = ledger.cell("aa01")
    assert (running.status, running.attempts, running.device, running.versions) == ("running", 1, "cpu", versions)
    ledger.write(epoch("aa01", 1, 0.25))
    ledger.write(epoch("aa01", 2, 0.5))
    ledger.write(Event("stage", "aa01", {"index": 0, "key": "cafe", "shared": True, "seconds": 3.0}))
    for passing in ("log", "progress"):
        ledger.write(Event(passing, "aa01", {"message": "a line"}))
    scores = {"sst": 0.1 + 0.2, "overall": 1 / 3}
    ledger.write(Event("finished", "aa01", {"scores": scores, "best_epoch": 2, "seconds": 7.5, "peak_memory": 2**33}))

    cell = ledger.cell("aa01")
    assert cell.scores == scores, "to the last bit"
    assert (cell.status, cell.best_epoch, cell.seconds, cell.peak_memory) == ("finished", 2, 7.5, 2**33)
    assert cell.epochs == 2
    assert cell.started is not None
    assert cell.finished is not None
    assert cell.created <= cell.started <= cell.finished
    first, second = ledger.epochs("aa01")
    assert (first.epoch, first.step, first.losses, first.seconds) == (1, 10, {"sst": 1.0}, 1.5)
    assert (second.scores, second.metrics) == ({"sst": 0.5, "overall": 0.5}, {"sst": {"macro_f1": 0.25}})
    assert [(s.index, s.key, s.shared, s.seconds) for s in ledger.stages("aa01")] == [(0, "cafe", True, 3.0)]


def test_a_score_that_is_not_a_number_stays_one(ledger: Ledger) -> None:
    finish(ledger, "aa01", sst=math.nan, overall=math.inf)
    scores = ledger.cell("aa01").scores
    assert math.isnan(scores["sst"])
    assert scores["overall"] == math.inf


def test_every_attempt_is_kept_with_how_and_why_it_ended(ledger: Ledger) -> None:
    ledger.write(Event("lost", "aa01", {"reason": "worker 7 died while it loaded"}))  # before its first event
    ledger.write(Event("started", "aa01", {"worker": "gpu0", "versions": {"torch": "2"}}))
    ledger.write(Event("oom", "aa01", {"reason": "sst: 16 examples", "task": "sst", "micro_batch": 16}))
    assert (ledger.cell("aa01").status, ledger.cell("aa01").reason) == ("oom", "sst: 16 examples")
    ledger.write(Event("resumed", "aa01", {"micro_batch": 8}))
    ledger.write(Event("interrupted", "aa01", {}))
    assert ledger.states() == {"aa01": "interrupted"}
    ledger.write(Event("resumed", "aa01", {"micro_batch": 8}))  # and its driver was killed
    ledger.write(Event("resumed", "aa01", {"micro_batch": 8}))
    ledger.write(Event("lost", "aa01", {"reason": "no sign of life for 60 s"}))
    assert (ledger.cell("aa01").status, ledger.cell("aa01").reason) == ("interrupted", "no sign of life for 60 s")
    ledger.write(Event("resumed", "aa01", {"versions": {"torch": "3"}}))
    assert ledger.attempts("aa01")[-1].ended is None
    ledger.write(Event("finished", "aa01", {"scores": {"sst": 0.5}}))
    kept = [(a.number, a.how, a.reason, a.micro_batch, a.worker) for a in ledger.attempts("aa01")]
    assert kept == [
        (1, "lost", "worker 7 died while it loaded", None, None),
        (2, "oom", "sst: 16 examples", 16, "gpu0"),
        (3, "interrupted", None, 8, None),
        (4, "lost", "its driver or worker was gone before it had ended", 8, None),
        (5, "lost", "no sign of life for 60 s", 8, None),
        (6, "finished", None, None, None),
    ]
    cell = ledger.cell("aa01")
    assert (cell.attempts, cell.status, cell.reason, cell.versions) == (6, "finished", None, {"torch": "3"})
    assert [a.versions.get("torch") for a in ledger.attempts("aa01")] == [None, "2", None, None, None, "3"]
    assert all(a.driver == os.getpid() and a.ended for a in ledger.attempts("aa01"))


def test_growing_a_grid_keeps_what_its_cells_have(ledger: Ledger) -> None:
    finish(ledger, "aa01", sst=0.5, overall=0.5)
    ledger.record_grid("grid", {"base": {}, "seeds": [0]}, [planned("cc01", "new"), CELLS[0]])
    record = ledger.grid("grid")
    assert [(c.label, c.cell.status) for c in record.cells] == [("new", "planned"), ("sum", "finished")]
    assert record.spec["seeds"] == [0]
    assert len(ledger.cells()) == 4, "cells that left the grid are still known"
    ledger.record_grid("twice", {}, [planned("aa01", "one"), planned("aa01", "two")])
    assert [c.cell.scores["sst"] for c in ledger.grid("twice").cells] == [0.5] * 2, "one cell under two labels"
    assert [grid.name for grid in ledger.grids()] == ["grid", "twice"]


def test_cells_are_found_by_a_prefix_that_is_theirs_alone(ledger: Ledger) -> None:
    assert ledger.cell("b").id == "bb01"
    with pytest.raises(RegistryError, match=r"'aa' could be aa01, aa02; give more"):
        ledger.cell("aa")
    for nothing in ("zz", "", "%", "aa01x"):
        with pytest.raises(RegistryError, match="no cell"):
            ledger.cell(nothing)
    with pytest.raises(RegistryError, match=r"no grid 'gird'; did you mean 'grid'\?"):
        ledger.grid("gird")


def test_events_that_make_no_sense_are_refused(ledger: Ledger) -> None:
    with pytest.raises(sqlite3.IntegrityError):  # no recorded grid has that cell
        ledger.write(Event("started", "zz99", {}))
    with pytest.raises(ValueError, match="did you mean 'started'"):
        ledger.write(Event("startet", "aa01", {}))


def test_an_event_is_written_whole_or_not_at_all(ledger: Ledger) -> None:
    ledger.write(Event("started", "aa01", {}))
    with pytest.raises(sqlite3.Error):
        ledger.write(Event("finished", "aa01", {"scores": {"sst": 0.5, "para": object()}, "seconds": 1.0}))
    cell = ledger.cell("aa01")
    assert (cell.status, cell.scores, cell.seconds) == ("running", {}, None)


def test_plain_sql_answers_questions(ledger: Ledger) -> None:
    finish(ledger, "aa01", sst=0.25)
    finish(ledger, "aa02", sst=0.75)
    with sqlite3.connect(ledger.folder / FILE) as database:
        query = "SELECT label, avg(value) FROM grid_cells JOIN scores USING (cell) WHERE task = 'sst' GROUP BY label"
        assert database.execute(query).fetchall() == [("sum", 0.5)]
    database.close()


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["started", "resumed", "epoch", "stage", "finished", "failed", "oom", "interrupted", "lost"]),
        st.sampled_from(["aa01", "aa02"]),
        st.integers(1, 3),
        st.floats(0, 1),
    ),
    max_size=25,
)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    """A ledger that does not wait for the disk, for a law with many examples."""
    with Ledger.open(tmp_path_factory.mktemp("law"), create=True) as opened:
        opened._database.execute("PRAGMA synchronous = OFF")
        yield opened


@given(EVENTS)
def test_any_history_reads_as_its_last_events(quick: Ledger, events: list[tuple[str, str, int, float]]) -> None:
    """The ledger against a dictionary that is given the same."""
    status = dict.fromkeys(["aa01", "aa02"], "planned")
    epochs: dict[str, dict[int, float]] = {"aa01": {}, "aa02": {}}
    stages: dict[str, set[int]] = {"aa01": set(), "aa02": set()}
    with quick.transaction() as db:
        db.execute("DELETE FROM grid_cells")
        db.execute("DELETE FROM cells")
    quick.record_grid("grid", {}, CELLS)
    for what, cell, number, score in events:
        if what == "epoch":
            quick.write(epoch(cell, number, score))
            epochs[cell][number] = score
        elif what == "stage":
            quick.write(Event("stage", cell, {"index": number, "key": "cafe"}))
            stages[cell].add(number)
        else:
            quick.write(Event(what, cell, {"scores": {"sst": score}, "reason": "why"}))
            status[cell] = {"started": "running", "resumed": "running", "lost": "interrupted"}.get(what, what)
        if what == "started":  # anew: what an earlier attempt reported no longer counts
            epochs[cell], stages[cell] = {}, set()
            assert (quick.cell(cell).reason, quick.cell(cell).finished, quick.cell(cell).scores) == (None, None, {})
    for cell in status:
        assert quick.cell(cell).status == status[cell]
        assert {e.epoch: e.scores["sst"] for e in quick.epochs(cell)} == epochs[cell]
        assert {s.index for s in quick.stages(cell)} == stages[cell]
        attempts = quick.attempts(cell)
        assert [a.number for a in attempts] == list(range(1, quick.cell(cell).attempts + 1))
        assert [a.ended is None for a in attempts[:-1]] == [False] * len(attempts[:-1]), "only the last may go on"
        assert (quick.cell(cell).status == "running") == any(a.ended is None for a in attempts)
        assert quick.status(cell) == (status[cell], len(attempts))


# Several processes


WRITER = """
import sys
from taskloom.core import Event
from taskloom.registry.results.ledger import Ledger

with Ledger.open(sys.argv[1], create=True) as ledger:
    class Cell:
        id, label, seed, spec, reported, facts, identity, locations = *[sys.argv[2]] * 2, 0, {}, {}, {}, "", {}
    ledger.record_grid(sys.argv[2], {}, [Cell])
    ledger.write(Event("started", sys.argv[2], {}))
    for number in range(1, 41):
        scores = {f"task{i}": number for i in range(20)}
        ledger.write(Event("epoch", sys.argv[2], {"stage": 0, "epoch": number, "scores": scores}))
"""


def test_processes_that_begin_and_write_at_once_lose_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "registry"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(folder), f"cell{i}"]) for i in range(3)]
    assert [process.wait(60) for process in writers] == [0] * 3
    with Ledger.open(folder, create=False) as ledger:
        for epochs in [ledger.epochs(f"cell{i}") for i in range(3)]:
            assert [set(e.scores.values()) for e in epochs] == [{number} for number in range(1, 41)]


def test_a_row_that_returns_to_a_former_cell_has_it_last(tmp_path: Path) -> None:
    with Ledger.open(tmp_path, create=True) as ledger:
        for id in ("aa", "bb", "aa"):
            ledger.record_grid("grid", {}, [planned(id)])
        assert ledger.history_of("grid") == {("sum", 0): ["bb", "aa"]}
        assert ledger.history_of("other") == {}


def test_what_the_ledger_cannot_keep_is_refused_and_nothing_is_half_written(ledger: Ledger) -> None:
    before = ledger.grid("grid")
    with pytest.raises(RegistryError, match=r"UTF-8, which cannot represent 'half \\ud83d'"):
        ledger.record_grid("grid", {"other": 1}, [planned("cc01"), planned("cc02", label="half \ud83d")])
    with pytest.raises(RegistryError, match=r"'\\udcff'"):
        ledger.cell("\udcff")
    assert ledger.grid("grid") == before
    assert len(ledger.cells()) == len(CELLS)


# Files beside the ledger


def test_a_registry_whose_place_is_taken(tmp_path: Path) -> None:
    (tmp_path / "cells").write_text("")
    with pytest.raises(RegistryError, match="cannot be made"):
        Artifacts(tmp_path).cell("0a1b")


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    write_text(path, '{"epoch": 1}')
    with patch("os.fsync", side_effect=OSError("no room")), pytest.raises(OSError, match="no room"):
        write_text(path, '{"epoch": 2}')
    assert json.loads(path.read_text()) == {"epoch": 1}
    write_text(tmp_path / "log.txt", "one\r\ntwö\n")
    assert (tmp_path / "log.txt").read_bytes() == "one\r\ntwö\n".encode()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["log.txt", "state.json"], "no part is left"


def test_what_was_run_keeps_its_options_and_takes_todays_locations(tmp_path: Path) -> None:
    """A default may change under one revision; what was trained with stays on record."""
    before = {"power": 2.0, "data": {"name": "table", "dir": "here"}}
    today = {"power": 9.0, "data": {"name": "table", "dir": "there"}}
    with Ledger.open(tmp_path, create=True) as ledger:
        ledger.record_grid("grid", {}, [planned("aa", spec=before), planned("bb", spec=before)])
        ledger.write(Event("started", "aa", {}))
        where = {"data": {"dir": "there"}}
        ledger.record_grid("grid", {}, [planned(id, spec=today, locations=where) for id in ("aa", "bb")])
        assert ledger.cell("aa").spec == {"power": 2.0, "data": {"name": "table", "dir": "there"}}
        assert ledger.cell("bb").spec == today, "which never ran"


def test_a_cell_that_cannot_be_planned_today_is_identified_later(tmp_path: Path) -> None:
    with Ledger.open(tmp_path, create=True) as ledger:
        ledger.record_grid("grid", {}, [planned("aa"), planned("bb", identity="today")])
        for id in ("aa", "bb"):
            ledger.write(Event("started", id, {}))
        ledger.record_grid("grid", {}, [planned("aa"), planned("bb")])
        assert [cell.id for cell in ledger.unidentified()] == ["aa"]
        assert ledger.identities() == {"today": "bb"}
