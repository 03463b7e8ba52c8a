"""``taskloom cells``: where every cell stands, from any terminal, while others write."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from faults import read_until

from taskloom.core.engine import Event
from taskloom.registry.results.ledger import Ledger
from taskloom.registry.results.locks import Claims
from taskloom.runs.analysis.cell_states import CellState, counted, states_of
from taskloom.runs.cli import cli
from taskloom.runs.grid.planned import PlannedCell
from taskloom.runs.show.cells import watch_cells

SPEC: dict[str, Any] = {
    "encoder": {"name": "minbert", "layers": 1, "weights": None},
    "tasks": {"sst": {"data": {"name": "generated", "size": 32}, "head": "linear", "loss": "cross_entropy"}},
    "stages": [{"epochs": 3, "tasks": ["sst"], "combiner": {"name": "sum"}, "optimizer": {"lr": 0.001}}],
    "seed": 0,
}
NAMES = ("a1planned", "b1running", "b2running", "c1orphan", "d1failed", "e1oom", "f1stopped", "g1done")
COMMAND = [sys.executable, "-c", "from taskloom.runs.cli import main; main()", "cells"]

Invoke = Callable[..., Result]


def planned(id: str, label: str, seed: int = 0) -> PlannedCell:
    return PlannedCell(id=id, label=label, seed=seed, status="new", spec=SPEC, versions={}, stage_keys=())


def epoch(cell: str, number: int, score: float) -> Event:
    facts = {"stage": 0, "epoch": number, "losses": {"sst": 1.5}, "scores": {"sst": score, "overall": score}}
    return Event("epoch", cell, {**facts, "seconds": 2.0 * number})


@pytest.fixture
def living(tmp_path: Path) -> Iterator[Claims]:
    """A registry with a cell in every state; gives the driver that runs two of them, and lives."""
    with Ledger.open(tmp_path / "registry", create=True) as ledger, Claims(ledger.folder) as claims:
        ledger.record_grid("mine", {}, [planned(name, name[2:], seed) for seed, name in enumerate(NAMES)])
        ledger.record_grid("b1", {}, [planned("g1done", "done again")])
        for name in ("b1running", "b2running"):
            assert claims.claim(name)
            ledger.write(Event("started", name, {"device": "cpu", "worker": "cpu:1"}))
            ledger.write(epoch(name, 1, 0.25))
            ledger.write(epoch(name, 2, 0.5))
        ledger.write(Event("started", "c1orphan", {"worker": "cpu:0"}))  # by a driver that is gone
        ledger.write(epoch("c1orphan", 1, 0.125))
        ends = {
            "d1failed": Event("failed", "d1failed", {"reason": "loss of task 'sst' is not finite"}),
            "e1oom": Event("oom", "e1oom", {"reason": "out of memory with 1 example of task 'sst' at a time"}),
            "f1stopped": Event("interrupted", "f1stopped", {}),
            "g1done": Event("finished", "g1done", {"scores": {"sst": 0.75, "overall": 0.75}, "seconds": 9.0}),
        }
        for name, end in ends.items():
            ledger.write(Event("started", name, {"device": "cpu", "versions": {"torch": "2.9"}}))
            ledger.write(end)
        yield claims


@pytest.fixture
def registry(living: Claims, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TASKLOOM_REGISTRY", str(tmp_path / "registry"))
    return tmp_path / "registry"


@pytest.fixture
def cells(registry: Path) -> Invoke:
    return lambda *arguments: CliRunner().invoke(cli, ["cells", *arguments])


def listed(result: Result) -> dict[str, dict[str, Any]]:
    assert result.exit_code == 0, result.stderr
    return {cell["id"]: cell for cell in json.loads(result.stdout)["cells"]}


def test_every_state_is_told_with_who_and_how_far(cells: Invoke) -> None:
    by_id = listed(cells("mine", "--json"))
    states = ["planned", "running", "running", "interrupted", "failed", "oom", "interrupted", "finished"]
    assert [cell["status"] for cell in by_id.values()] == states
    running = by_id["b1running"]
    assert (running["epochs"], running["score"], running["worker"]) == (2, 0.5, "cpu:1")
    assert running["driver"] == {"pid": os.getpid()}
    assert running["seconds"] > 0
    orphan = by_id["c1orphan"]
    assert (orphan["reason"], orphan["driver"], orphan["worker"]) == ("its driver is gone", None, None)
    assert (orphan["score"], orphan["seconds"]) == (0.125, 2.0), "what it had reached"
    assert (by_id["g1done"]["score"], by_id["g1done"]["seconds"]) == (0.75, 9.0)
    assert by_id["d1failed"]["attempts"] == 1


def test_epochs_that_another_cell_trained_are_not_missing(cells: Invoke, registry: Path) -> None:
    spec = {**SPEC, "stages": [{**SPEC["stages"][0], "epochs": 4}, *SPEC["stages"], {"epochs": 0}]}
    shared = {"index": 0, "key": "k", "shared": True, "seconds": 0.0}
    with Ledger.open(registry, create=False) as ledger:
        ledger.record_grid("two", {}, [replace(planned("h1shared", "shared"), spec=spec)])
        for event in (Event("started", "h1shared"), Event("stage", "h1shared", shared), epoch("h1shared", 1, 0.5)):
            ledger.write(event)
        assert " 1/3 + 4 shared " in cells("two").stdout
        for number in (2, 3, 0):  # the last is the score of a stage that trains nothing
            ledger.write(epoch("h1shared", number, 0.5))
        ledger.write(Event("finished", "h1shared", {"scores": {"overall": 0.5}}))
    assert " 3/3 + 4 shared " in cells("two").stdout
    assert "finished, 3 of 3 epochs done (and 4 shared with another cell)" in cells("h1").stdout
    assert listed(cells("two", "--json"))["h1shared"]["shared_epochs"] == 4


def test_only_some_states(cells: Invoke) -> None:
    assert list(listed(cells("--json", "--state", "failed", "--state", "oom"))) == ["d1failed", "e1oom"]
    assert list(listed(cells("mine", "--json", "--state", "running"))) == ["b1running", "b2running"]
    assert cells("--state", "broken").exit_code == 2


def test_a_cell_is_held_no_longer_once_its_driver_lets_go(cells: Invoke, living: Claims) -> None:
    living.release("b1running")
    assert [listed(cells("mine", "--json"))[name]["status"] for name in NAMES[1:3]] == ["interrupted", "running"]
    living.claim("a1planned")
    planned_cell = listed(cells("mine", "--json"))["a1planned"]
    assert planned_cell["status"] == "running", "claimed, though it has said nothing yet"


# One cell


def test_one_cell_from_near(cells: Invoke, registry: Path) -> None:
    folder = registry / "cells" / "b1running"
    (folder / "log.txt").write_text("".join(f"line {i}\n" for i in range(500)) + "10%\r100% \x1b[2J done\n")
    text = cells("b1r").stdout
    assert "b1running" in text.splitlines()[0]
    for part in (
        "mine: running, seed 1",
        "minbert (layers 1)",
        "generated (size 32), linear, cross_entropy",
        "epochs 3, tasks sst, combiner sum, optimizer (lr 0.001)",
        f"on worker cpu:1, driver process {os.getpid()}",
        "overall 0.500 sst 0.500",
        "running",
        f"the end of {folder / 'log.txt'}:",
        "line 499",
    ):
        assert part in text, part
    assert "line 100\n" not in text, "only the end of the log"
    assert "\x1b" not in text, "a log cannot move the terminal"
    assert "10%\r" not in text
    cell = json.loads(cells("b1r", "--json").stdout)
    assert [epoch["scores"]["overall"] for epoch in cell["epochs"]] == [0.25, 0.5]
    assert [(attempt["number"], attempt["how"], attempt["worker"]) for attempt in cell["attempts"]] == [
        (1, None, "cpu:1")
    ]
    assert cell["grids"] == [{"grid": "mine", "label": "running", "seed": 1}]
    assert [row["grid"] for row in json.loads(cells("g1", "--json").stdout)["grids"]] == ["b1", "mine"]


def test_attempts_stand_with_their_reasons(cells: Invoke, registry: Path) -> None:
    with Ledger.open(registry, create=False) as ledger:
        ledger.write(Event("started", "d1failed", {"worker": "cpu:0"}))
        ledger.write(Event("lost", "d1failed", {"reason": "worker cpu:0 was killed (signal 9)"}))
    lines = cells("d1failed").stdout.splitlines()
    attempts = [line for line in lines if line.split()[:1] in (["1"], ["2"])]
    assert "failed" in attempts[0]
    assert "loss of task 'sst' is not finite" in attempts[0]
    assert "worker cpu:0 was killed (signal 9)" in attempts[1]
    assert any("interrupted, 0 of 3 epochs done" in line for line in lines)
    (orphan,) = [line for line in cells("c1").stdout.splitlines() if line.startswith("1   ") and "cpu:0" in line]
    assert "broken off" in orphan


def test_a_grid_goes_before_a_cell_and_neither_is_an_error(cells: Invoke) -> None:
    assert list(listed(cells("b1", "--json"))) == ["g1done"], "the grid b1, not the cell b1running"
    facts = {"b": "b1running, b2running", "mein": "'mine'", "zz": "zz", "quickstart": "taskloom run"}
    for wrong, fact in facts.items():
        refused = cells(wrong)
        assert (refused.exit_code, refused.stdout, fact in refused.stderr) == (2, "", True), refused.stderr


# Watching


def test_watching_ends_when_nothing_runs_or_waits(registry: Path, living: Claims) -> None:
    outputs: list[str] = []
    looked = threading.Event()
    with Ledger.open(registry, create=False) as ledger:

        def look() -> list[CellState]:
            states = states_of(ledger, [ledger.grid("mine")])
            looked.set()
            return states

        watcher = threading.Thread(
            target=watch_cells, args=(look, counted, outputs.append, sys.stdout), kwargs={"every": 0.01}
        )
        watcher.start()
        assert looked.wait(60)
        with Ledger.open(registry, create=False) as driver:
            for name in ("a1planned", "b1running", "b2running"):
                assert watcher.is_alive(), "something still runs or waits"
                driver.write(Event("failed", name, {"reason": "enough"}))
                living.release(name)  # only then, as the driver does it
        watcher.join(60)
        assert not watcher.is_alive()
    assert "2 running" in outputs[0]
    assert outputs[-1].splitlines()[0].endswith("4 failed, 1 oom, 2 interrupted, 1 finished")
    assert len(outputs) == len(set(outputs)), "printed when something changed, and only then"


def test_watching_on_a_terminal_until_ctrl_c(registry: Path) -> None:
    main, other = pty.openpty()
    termios.tcsetwinsize(other, (24, 80))
    command = [*COMMAND, "mine", "--watch", "--registry", str(registry)]
    with subprocess.Popen(command, stdout=other, stderr=other, stdin=other, start_new_session=True) as process:
        os.close(other)
        shown = read_until(main, "0.750")  # of the last line: what is finished
        live = re.sub(r"\x1b\[[0-9;?]*\w", "", shown).splitlines()
        process.send_signal(signal.SIGINT)
        try:
            while part := os.read(main, 4096):
                shown += part.decode(errors="replace")
        except OSError:
            pass  # the terminal's other side is closed
        assert process.wait(60) == 0
    os.close(main)
    assert "Traceback" not in shown
    assert "\x1b[?25h" in shown, "the cursor is back"
    (head,) = {line for line in live if " status " in line}
    assert head.split() == ["label", "seed", "status", "epochs", "overall", "worker", "reason"]
    assert any(line.split() == ["running", "1", "running", "2/3", "0.500", "cpu:1"] for line in live)


def test_showing_one_cell_reads_no_other(registry: Path, cells: Invoke) -> None:
    with Ledger.open(registry, create=False) as ledger, ledger.transaction() as db:
        db.execute("UPDATE cells SET spec = '{' WHERE id != 'd1failed'")  # reading one of these is refused
    assert cells().exit_code == 2
    assert "loss of task 'sst' is not finite" in cells("d1").stdout
    assert cells("d2").exit_code == 2


def test_a_cell_that_ends_while_one_looks_is_never_interrupted(registry: Path, living: Claims) -> None:
    with Ledger.open(registry, create=False) as ledger:
        before = ledger.grid("mine")
        ledger.write(Event("failed", "b1running", {"reason": "enough"}))
        living.release("b1running")
        states = {state.cell.id: state.state for state in states_of(ledger, [before])}
    assert states["b1running"] == "failed"
