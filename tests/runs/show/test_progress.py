"""What a person sees of a run: lines in a log, bars on a terminal, the time left, and the failures at the end."""

import io
import os
import pty
import re
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import read_until
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from taskloom.core.engine import Event
from taskloom.core.specs import GridSpec
from taskloom.registry.results.records import CellRecord, GridCell, GridRecord
from taskloom.runs.grid.grid import GridFile
from taskloom.runs.grid.plan import Plan
from taskloom.runs.grid.planned import PlannedCell
from taskloom.runs.show.progress import QUIET, LiveProgress, RunProgress, show_progress
from taskloom.runs.show.render import failures_summary

SPEC: dict[str, Any] = {"tasks": {"sst": {}}, "stages": [{"epochs": 2}, {"epochs": 2}], "seed": 0}
MIB = 2**20


def planned(id: str, label: str, seed: int = 0, status: str = "new") -> PlannedCell:
    return PlannedCell(id=id, label=label, seed=seed, status=status, spec=SPEC, versions={}, stage_keys=())


def plan_of(*cells: PlannedCell) -> Plan:
    raw = {"base": "x"}
    return Plan(GridFile("mine", Path("mine.json"), GridSpec.model_validate(raw), raw), cells, ())


PLAN = plan_of(planned("aa", "[b]um", 0), planned("bb", "sum", 1), planned("cc", "sum", 2, "finished"))


def progress(cell: str, epoch: int, step: int, steps: int = 10, **more: Any) -> Event:
    facts = {"stage": 0, "epoch": epoch, "step": step, "steps": steps, "rate": 12.5, "losses": {"sst": 1.6}}
    return Event("progress", cell, {**facts, **more})


def epoch(cell: str, number: int, **more: Any) -> Event:
    scores = {"sst": 0.25, "overall": 0.5}
    facts = {"stage": 0, "epoch": number, "losses": {"sst": 1.5}, "scores": scores, "memory": 412 * MIB}
    return Event("epoch", cell, {**facts, **more})


def started(cell: str) -> Event:
    return Event("started", cell, {"device": "cpu", "worker": "cpu:0"})


def finished(cell: str) -> Event:
    return Event("finished", cell, {"seconds": 75.0, "scores": {"sst": 0.5, "overall": 0.5}, "best_epoch": 2})


EVENTS = [
    started("aa"),
    progress("aa", 1, 5),
    epoch("aa", 1),
    Event("stage", "aa", {"index": 0, "key": "k", "shared": True, "seconds": 0.0}),
    Event("log", "aa", {"message": "a message"}),
    finished("aa"),
    Event("started", "bb", {"device": "cpu"}),
    Event("failed", "bb", {"reason": "too large"}),
]


class Clock:
    """Time that passes when a test says so."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


# In a log


def lines_of(events: list[Event], plan: Plan = PLAN) -> list[str]:
    stream = io.StringIO()
    with show_progress(plan, stream) as listen:
        for event in events:
            listen(event)
    lines = stream.getvalue().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ", line) for line in lines), "each has the time"
    return [line[21:] for line in lines]


def test_a_log_has_a_line_for_each_start_epoch_and_end() -> None:
    lines = lines_of(EVENTS)
    assert lines[:5] == [
        "[b]um, seed 0: started on cpu, worker cpu:0",
        "[b]um, seed 0: stage 1/2 epoch 1/2  loss sst 1.500  dev overall 0.500 sst 0.250  412 MiB",
        "[b]um, seed 0: stage 1 of 2 taken over from another cell",
        "[b]um, seed 0: a message",
        "[b]um, seed 0: finished in 1 min 15 s, best epoch 2, dev overall 0.500 sst 0.500",
    ]
    assert lines[5].startswith("mine: 2 of 3 cells done (1 before), about ")
    assert lines[6:8] == ["sum, seed 1: started on cpu", "sum, seed 1: failed: too large"]
    assert lines[8].startswith("mine: 2 of 3 cells done (1 before), 1 failed, "), "the end always has a line"
    assert len(lines) == 9


def test_a_log_is_not_flooded() -> None:
    clock, stream = Clock(), io.StringIO()
    listen = RunProgress(plan_of(*(planned(f"c{i}", "row", i) for i in range(8))), stream, clock)

    def lines(events: Iterator[Event]) -> int:
        before = stream.getvalue().count("\n")
        for event in events:
            listen(event)
        return stream.getvalue().count("\n") - before

    def five_minutes() -> Iterator[Event]:
        for step in range(1, 601):
            clock.now += 0.5
            yield from (progress(f"c{index}", 1, step, 600) for index in range(8))

    assert lines(started(f"c{index}") for index in range(8)) == 8
    assert lines(five_minutes()) == 300 / QUIET
    assert lines(finished(f"c{index}") for index in range(8)) == 8 + 2, "the first and the last bring the totals"


def test_the_end_of_an_attempt_says_what_follows() -> None:
    killed = {"reason": "worker cpu:1 was killed (signal 9)", "again": True, "attempt": 2, "attempts": 3}
    short = {"reason": "out of memory with 32 examples of task 'sst' at a time (batch 64)", "again": True}
    lines = lines_of(
        [
            started("aa"),
            Event("lost", "aa", killed),
            Event("resumed", "aa", {"device": "cpu", "attempt": 2}),
            Event("oom", "aa", {**short, "next_micro_batch": 16}),
            Event("resumed", "aa", {"device": "cpu", "micro_batch": 16}),
            Event("interrupted", "aa", {}),
            started("bb"),
            Event("oom", "bb", {"reason": "out of memory with 1 example of task 'sst' at a time (batch 64)"}),
        ]
    )
    assert [line.split(": ", 1)[1] for line in lines if "seed" in line] == [
        "started on cpu, worker cpu:0",
        "worker cpu:1 was killed (signal 9); trying again, attempt 2 of 3",
        "resumed on cpu, attempt 2",
        "out of memory with 32 examples of task 'sst' at a time (batch 64); trying again with 16 examples at a time",
        "resumed on cpu, micro-batch 16",
        "interrupted; continues when it is run again",
        "started on cpu, worker cpu:0",
        "out of memory with 1 example of task 'sst' at a time (batch 64)",
    ]
    assert "1 oom, 1 interrupted" in lines[-1]


def test_every_cell_is_counted_once() -> None:
    run = RunProgress(PLAN, io.StringIO())
    shares = []
    for event in EVENTS:
        run(event)
        shares.append(run.done)
    # Two stages of two epochs: half an epoch, an epoch, a whole stage, the cell.
    assert shares == [0, 0.125, 0.25, 0.5, 0.5, 1, 1, 2]
    assert run.work == 2
    run(started("bb"))
    assert run.totals().endswith(", 1 running"), "a cell that is tried again has not failed"
    run(Event("lost", "bb", {"again": True}))
    assert run.totals().endswith(", 1 waiting")


# On a terminal


def frame(labels: list[str], width: int, height: int = 30) -> list[str]:
    """What a terminal of this size shows with one running cell per label."""
    cells = [planned(f"c{i}", label, i) for i, label in enumerate(labels)]
    live = LiveProgress(plan_of(*cells), io.StringIO())
    for cell in cells:
        for event in (started(cell.id), epoch(cell.id, 1), progress(cell.id, 2, 5, memory=400 * MIB)):
            live(event)
    console = Console(file=io.StringIO(), width=width, height=height)
    console.print(live.bars.get_renderable())
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_bars_on_a_terminal_and_lines_that_stay() -> None:
    main, other = pty.openpty()
    termios.tcsetwinsize(other, (24, 120))
    with os.fdopen(other, "w") as stream:
        with show_progress(PLAN, stream) as listen:
            assert isinstance(listen, LiveProgress)
            for event in EVENTS[:3]:
                listen(event)
            listen.bars.refresh()
            for event in EVENTS[3:]:
                listen(event)
        shown = read_until(main, "so far")
    os.close(main)
    text = re.sub(r"\x1b\[[0-9;?]*\w", "", shown)
    assert re.search(r"\[b\]um +seed 0 +\S+ +stage 1/2 epoch 1/2  dev overall 0.500", text), "brackets are not markup"
    assert "[b]um, seed 0: finished in" in text
    assert "sum, seed 1: failed: too large" in text
    assert "mine: 2 of 3 cells done (1 before), 1 failed" in text


LABELS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=60)


@settings(max_examples=25)
@given(st.lists(LABELS, min_size=1, max_size=8), st.integers(60, 200))
def test_every_running_cell_has_one_line_that_fits(labels: list[str], width: int) -> None:
    lines = frame(labels, width)
    assert len(lines) == 1 + len(labels)
    assert max(cell_len(line) for line in lines) <= width
    for seed, line in enumerate(lines[1:]):
        assert f" seed {seed} " in line, "a label is cut, its seed is not"
        assert "stage 1/2" in line


def test_a_wide_terminal_shows_every_figure() -> None:
    whole, cell = frame(["sum"], 140)
    assert whole.split("━")[-1].split(maxsplit=1)[1].startswith("0 of 1 cells done, about ")
    assert cell.endswith("stage 1/2 epoch 2/2 step 5/10  dev overall 0.500 sst 0.250  12.5 steps/s  400 MiB")


def test_a_label_does_not_steer_the_terminal() -> None:
    lines = frame(["a\n\x1b]0;owned\x07\x1b[2J"], 200)
    assert lines[1].startswith("a \\u001b]0;owned\\u0007\\u001b[2J seed 0")
    assert all(line.isprintable() for line in lines)


# The time left


@pytest.mark.parametrize(("cells", "workers"), [(1, 1), (5, 1), (8, 2), (8, 4)])
def test_the_time_left_is_exact_when_all_cells_are_equal(cells: int, workers: int) -> None:
    clock, rounds = Clock(), cells // workers
    run = RunProgress(plan_of(*(planned(f"c{i}", "row", i) for i in range(cells))), io.StringIO(), clock)
    assert run.seconds_left is None, "nobody knows anything yet"
    clock.now += 9.0  # the workers start
    for turn in range(rounds):
        running = [f"c{i}" for i in range(turn * workers, (turn + 1) * workers)]
        for cell in running:
            run(started(cell))
        for passed in range(1, 20):  # of 20 seconds per cell, two stages of two epochs
            clock.now += 1.0
            stage, within = divmod(passed, 10)
            for cell in running:
                run(progress(cell, within // 5 + 1, within % 5, 5, stage=stage))
            assert run.seconds_left == pytest.approx((rounds - turn) * 20 - passed)
        clock.now += 1.0
        for cell in running:
            run(finished(cell))
    assert run.seconds_left == 0


@pytest.mark.parametrize("first", [progress("aa", 1, 5, stage=1), epoch("aa", 1, retold=True)])
def test_a_resumed_cell_is_not_thought_quick(first: Event) -> None:
    clock = Clock()
    run = RunProgress(plan_of(planned("aa", "row")), io.StringIO(), clock)
    run(Event("resumed", "aa", {}))
    clock.now += 1.0
    run(first)
    assert run.seconds_left is None, "that was done long ago"
    run(progress("aa", 1, 5, stage=1))
    clock.now += 4.0
    before = run.done
    run(progress("aa", 2, 0, stage=1))
    assert run.done > before
    assert run.seconds_left is not None
    assert run.seconds_left > 0


# The end


def record_of(*rows: tuple[str, list[str]]) -> GridRecord:
    """A grid whose cells ended so: "" is finished, anything else the reason of a failure."""
    cells = []
    for label, reasons in rows:
        for seed, reason in enumerate(reasons):
            status = "failed" if reason else "finished"
            cells.append(GridCell(label, seed, {}, CellRecord(f"{label}{seed}", SPEC, status, reason)))
    return GridRecord("mine", {}, "", "", tuple(cells))


def test_failures_are_listed_with_reasons_and_logs(tmp_path: Path) -> None:
    record = record_of(("sum", ["NaN", "NaN"]), ("lr=1, pcgrad", ["", "too large"]))
    (tmp_path / "cells" / "sum1").mkdir(parents=True)
    (tmp_path / "cells" / "sum1" / "log.txt").write_text("Traceback …")
    every = {grid_cell.cell.id for grid_cell in record.cells}
    assert failures_summary(record, tmp_path, every).splitlines()[:-1] == [
        "3 of 4 cells did not succeed:",
        "  sum: failed: NaN",
        "  'lr=1, pcgrad', seed 1: failed: too large",
        f"  log: {tmp_path}/cells/sum1/log.txt",
    ]
    assert failures_summary(record, tmp_path, {"lr=1, pcgrad0"}) == "", "what was not chosen"


def test_many_failures_do_not_fill_the_screen(tmp_path: Path) -> None:
    for reasons in (["NaN"] * 100, [f"at step {step}" for step in range(100)]):
        record = record_of(*((f"row {i}", [reason]) for i, reason in enumerate(reasons)), ("fine", [""]))
        text = failures_summary(record, tmp_path, {grid_cell.cell.id for grid_cell in record.cells})
        assert "100 of 101 cells" in text
        assert len(text.splitlines()) < 20
