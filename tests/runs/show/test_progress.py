"""What a person sees of a run: lines in a log, a display on a terminal, the time left, and the failures at the end."""

import io
import os
import pty
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import read_until
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from taskloom.core.events import Event
from taskloom.core.specs import GridSpec
from taskloom.core.units import memory
from taskloom.registry.results.records import CellRecord, GridCell, GridRecord
from taskloom.runs.cli.run import run
from taskloom.runs.grid.grid import Grid
from taskloom.runs.grid.plan import Plan, PlannedCell
from taskloom.runs.show.board import Board
from taskloom.runs.show.endings import failures_summary, retry_command
from taskloom.runs.show.forecast import AtWork, seconds_left
from taskloom.runs.show.live import display
from taskloom.runs.show.progress import QUIET, Lines, show_progress

SPEC: dict[str, Any] = {"tasks": {"sst": {}}, "stages": [{"epochs": 2}, {"epochs": 2}], "seed": 0}
MIB = 2**20


def planned(id: str, label: str, seed: int = 0, status: str = "new") -> PlannedCell:
    return PlannedCell(id=id, label=label, seed=seed, status=status, spec=SPEC, versions={}, stage_keys=())


def plan_of(*cells: PlannedCell) -> Plan:
    raw = {"base": "x"}
    return Plan(Grid("mine", Path("mine.json"), GridSpec.model_validate(raw), raw), cells, ())


PLAN = plan_of(planned("aa", "[b]um", 0), planned("bb", "sum", 1), planned("cc", "sum", 2, "finished"))


def progress(cell: str, epoch: int, step: int, steps: int = 10, **more: Any) -> Event:
    facts = {"stage": 0, "epoch": epoch, "step": step, "steps": steps, "rate": 12.5, "losses": {"sst": 1.6}}
    return Event("progress", cell, {**facts, **more})


def epoch(cell: str, number: int, stage: int = 0) -> Event:
    scores = {"sst": 0.25, "overall": 0.25}
    facts = {"stage": stage, "epoch": number, "losses": {"sst": 1.5}, "scores": scores, "memory": 412 * MIB}
    return Event("epoch", cell, facts)


def started(cell: str, worker: str = "cpu:0") -> Event:
    return Event("started", cell, {"device": "cpu", "worker": worker})


def finished(cell: str, seconds: float = 75.0) -> Event:
    return Event("finished", cell, {"seconds": seconds, "scores": {"sst": 0.5, "overall": 0.5}})


EVENTS = [
    started("aa"),
    progress("aa", 1, 5),
    epoch("aa", 1),
    Event("stage", "aa", {"index": 0, "key": "k", "shared": True, "seconds": 0.0}),
    Event("log", "aa", {"message": "a word"}),
    finished("aa"),
    Event("started", "bb", {"device": "cpu"}),
    Event("failed", "bb", {"reason": "too large"}),
]


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


# In a log


def said(events: list[Event], plan: Plan = PLAN) -> list[str]:
    stream = io.StringIO()
    with show_progress(plan, stream) as listen:
        for event in events:
            listen(event)
    lines = stream.getvalue().splitlines()
    assert all(line[4] == "-" and line[13] == ":" and line[19:21] == "  " for line in lines), "each has the time"
    return [line[21:] for line in lines]


def test_a_log_has_a_line_for_each_start_epoch_and_end() -> None:
    lines = said(EVENTS)
    assert lines[:5] == [
        "cpu:0  [b]um, seed 0: started on cpu",
        "cpu:0  [b]um, seed 0: stage 1/2  epoch 1/2  loss sst 1.500  dev sst 0.250 overall 0.250  412 MiB",
        "cpu:0  [b]um, seed 0: stage 1 taken over from another cell",
        "cpu:0  [b]um, seed 0: a word",
        "cpu:0  [b]um, seed 0: finished in 1 min 15 s, dev sst 0.500 overall 0.500",
    ]
    assert lines[5].startswith("mine: 2 of 3 cells done, 1 of them before, 1 waiting, ")
    assert lines[6:8] == ["sum, seed 1: started on cpu", "sum, seed 1: failed: too large"]
    assert lines[8].startswith("mine: 2 of 3 cells done, 1 of them before, 1 failed, "), "the end is always told"
    assert len(lines) == 9


def test_a_log_is_not_flooded() -> None:
    clock, stream = Clock(), io.StringIO()
    lines = Lines(Board.of(plan_of(*(planned(f"c{i}", "row", i) for i in range(8))), clock), stream)
    for place in range(8):
        lines(started(f"c{place}"))
    told = len(stream.getvalue().splitlines())
    for step in range(1, 601):  # five minutes of eight workers, two words a second each
        clock.now += 0.5
        for place in range(8):
            lines(progress(f"c{place}", 1, step, 600))
    assert len(stream.getvalue().splitlines()) - told == 300 / QUIET
    before = len(stream.getvalue().splitlines())
    for place in range(8):
        lines(finished(f"c{place}"))
    assert len(stream.getvalue().splitlines()) - before == 8 + 2, "the first and the last bring the totals"


def test_what_ends_an_attempt_is_told_with_what_follows() -> None:
    killed = {"reason": "worker cpu:1 was killed (signal 9)", "again": True, "attempt": 2, "attempts": 3}
    short = {"reason": "out of memory with 32 examples of task 'sst' at a time (batch 64)", "again": True}
    lines = said(
        [
            started("aa", "cpu:1"),
            Event("lost", "aa", killed),
            Event("started", "aa", {"device": "cpu", "worker": "cpu:2", "attempt": 2}),
            epoch("aa", 1),
            epoch("aa", 2),
            Event("lost", "aa", {**killed, "attempt": 3}),
            Event("resumed", "aa", {"device": "cpu", "attempt": 3}),
            Event("oom", "aa", {**short, "next_micro_batch": 16}),
            Event("resumed", "aa", {"device": "cpu"}),
            Event("interrupted", "aa", {}),
            started("bb"),
            Event("oom", "bb", {"reason": "out of memory with 1 example of task 'sst' at a time (batch 64)"}),
        ]
    )
    told = [line.split(": ", 1)[1] for line in lines if "seed" in line and "epoch " not in line.split(": ", 1)[1][:6]]
    told = [text for text in told if not text.startswith("stage 1/2")]
    assert told == [
        "started on cpu",
        "worker cpu:1 was killed (signal 9); begins again, attempt 2 of 3",
        "started on cpu, attempt 2",
        "worker cpu:1 was killed (signal 9); goes on from epoch 2, attempt 3 of 3",
        "resumed on cpu, attempt 3",
        "out of memory with 32 examples of task 'sst' at a time (batch 64); tried again with 16",
        "resumed on cpu",
        "interrupted; goes on when it is run again",
        "started on cpu",
        "out of memory with 1 example of task 'sst' at a time (batch 64)",
    ]
    assert "1 out of memory, 1 interrupted" in lines[-1]


def test_the_board_counts_every_cell_once() -> None:
    board = Board.of(PLAN)
    shares = []
    for event in EVENTS:
        board.hear(event)
        shares.append(board.done)
        assert sum(board.counts.values()) == 3
    # Two stages of two epochs: half an epoch, an epoch, a whole stage, the cell.
    assert shares == [0, 0.125, 0.25, 0.5, 0.5, 1, 1, 2]
    assert board.work == 2
    assert board.over
    board.hear(started("bb"))
    assert (board.counts["failed"], board.counts["running"]) == (0, 1), "a cell that is tried again has not failed"
    board.hear(Event("lost", "bb", {"again": True}))
    assert (board.counts["running"], board.counts["waiting"]) == (0, 1)


def test_a_cell_that_goes_on_is_shown_where_it_left_off() -> None:
    board = Board.of(PLAN)
    for event in (started("aa"), epoch("aa", 1), progress("aa", 2, 5), Event("lost", "aa", {"again": True})):
        board.hear(event)
    board.hear(Event("resumed", "aa", {}))
    assert (board.running["aa"].share, board.running["aa"].scores["sst"]) == (0.25, 0.25), "its last whole epoch"
    board.hear(started("aa"))
    assert board.running["aa"].share == 0, "unless it begins again"


# On a terminal


def test_progress_on_a_terminal_is_live() -> None:
    main, other = pty.openpty()
    with os.fdopen(other, "w") as stream:
        with show_progress(PLAN, stream) as listen:
            for event in EVENTS[:3]:
                listen(event)
            listen.listener._display.refresh()  # type: ignore[attr-defined]
            for event in EVENTS[3:]:
                listen(event)
        shown = read_until(main, "too large")
        shown += read_until(main, "1 failed") if "1 failed" not in shown.rpartition("too large")[2] else ""
    os.close(main)
    assert "[b]um, seed 0" in shown, "brackets in a label are no markup"
    assert "stage 1/2  epoch 1/2" in shown
    assert "412 MiB" in shown
    assert "dev" in shown
    assert "failed: too large" in shown


def board_of(labels: list[str], waiting: int = 3) -> Board:
    """A board with one worker per label at work."""
    cells = [planned(f"c{i}", label, i) for i, label in enumerate(labels)]
    board = Board.of(plan_of(*cells, *(planned(f"w{i}", "later", i) for i in range(waiting))))
    for place, cell in enumerate(cells):
        board.hear(started(cell.id, f"cpu:{place}"))
        board.hear(epoch(cell.id, 1))
        board.hear(progress(cell.id, 2, 5, memory=(400 + place) * MIB))
    return board


def shown(board: Board, width: int, height: int = 30) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=False)
    console.print(display(board, width, height))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


LABELS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=60)


@settings(max_examples=25)
@given(st.lists(LABELS, min_size=1, max_size=8), st.integers(60, 200))
def test_every_worker_has_one_line_that_fits(labels: list[str], width: int) -> None:
    lines = shown(board_of(labels), width)
    assert max(cell_len(line) for line in lines) <= width
    for place in range(len(labels)):
        (line,) = [line for line in lines if line.startswith(f"cpu:{place} ")]
        assert f"seed {place}" in line, "a label is cut, its seed is not"
        assert "epoch 2/2" in line
        assert "dev" in line
        if width >= 80:
            assert f"{400 + place} MiB" in line


def test_a_label_does_not_steer_the_terminal() -> None:
    lines = shown(board_of(["a\n\x1b]0;owned\x07\x1b[2J"]), 200)
    assert any("a \\u001b]0;owned\\u0007\\u001b[2J, seed 0" in line for line in lines)
    assert all(line.isprintable() for line in lines)


def test_totals_are_seen_however_many_workers_there_are() -> None:
    lines = shown(board_of(["row"] * 40), 80, 12)
    assert len(lines) <= 12
    assert any("… and 35 more" in line for line in lines)
    assert any("0 of 43 cells done, 40 running, 3 waiting" in line for line in lines)
    assert memory(sum(400 + i for i in range(40)) * MIB) in lines[-1], "the memory of all"


def test_short_labels_and_wide_terminals_show_every_figure() -> None:
    (line,) = [line for line in shown(board_of(["sum"]), 120) if line.startswith("cpu:0")]
    where, how = line.split("━")[0], line.rpartition("━")[2].strip("╸ ")
    assert where.split() == ["cpu:0", "sum,", "seed", "0"]
    assert how == "stage 1/2  epoch 2/2  12.5/s  400 MiB  dev sst 0.250 overall 0.250  loss sst 1.600"


# The time left


def timeline(cells: int, workers: int, seconds: float, tick: float) -> Iterator[tuple[float, Board]]:
    """Equal cells on some workers, each telling its share at every tick; the true time left, and the board then."""
    clock = Clock()
    board = Board.of(plan_of(*(planned(f"c{i}", "row", i) for i in range(cells))), clock)
    rounds = -(-cells // workers)
    for turn in range(rounds):
        running = [f"c{i}" for i in range(turn * workers, min(cells, (turn + 1) * workers))]
        for cell in running:
            board.hear(started(cell))
        passed = 0.0
        while passed < seconds:
            yield (rounds - turn) * seconds - passed, board
            passed = min(seconds, passed + tick)
            clock.now = 1000.0 + turn * seconds + passed
            share = passed / seconds * 4  # of two stages of two epochs
            stage, number, within = int(share // 2), int(share % 2), share % 1
            for cell in running:
                if share < 4:
                    board.hear(progress(cell, number + 1, round(within * 1e6), 10**6, stage=stage))
        for cell in running:
            board.hear(finished(cell, seconds))
    yield 0.0, board


@pytest.mark.parametrize(("cells", "workers"), [(1, 1), (5, 1), (8, 2), (7, 3), (3, 8)])
def test_the_time_left_is_exact_when_all_cells_are_equal(cells: int, workers: int) -> None:
    known = [(true, board.left) for true, board in timeline(cells, workers, 20.0, 1.0)]
    assert known[0][1] is None, "nobody knows anything yet"
    assert [left for _, left in known[1:]] == pytest.approx([true for true, _ in known[1:]], abs=1e-3)


def test_the_time_left_goes_down_between_two_words() -> None:
    moments = timeline(4, 2, 20.0, 5.0)
    next(moments)
    true, board = next(moments)
    assert isinstance(board.clock, Clock)
    before = [board.left]
    for _ in range(30):
        board.clock.now += 1.0
        before.append(board.left)
    assert before[:6] == pytest.approx([true - passed for passed in range(6)])
    assert before == sorted(before, reverse=True)
    assert before[-1] == pytest.approx(20.0), "the other two cells still have all of it before them"


def test_a_resumed_cell_is_not_thought_quick() -> None:
    clock = Clock()
    board = Board.of(plan_of(planned("aa", "row")), clock)
    board.hear(Event("resumed", "aa", {}))
    clock.now += 1.0
    board.hear(progress("aa", 1, 5, 10, stage=1))  # 2.5 of 4 epochs, most of them long ago
    assert board.left is None
    clock.now += 5.0
    board.hear(progress("aa", 2, 0, 10, stage=1))
    assert board.left == pytest.approx(10.0), "half an epoch in 5 s, one epoch is left"


TIMES = st.none() | st.floats(0, 1e6)
AT_WORK = st.builds(
    AtWork, TIMES, share=st.floats(0, 1), elapsed=st.floats(0, 1e6), since=st.floats(0, 1e6), before=st.floats(0, 1)
)


@given(st.lists(AT_WORK, max_size=8), st.lists(TIMES, max_size=20), st.integers(1, 8))
def test_the_time_left_is_never_negative_and_more_work_never_takes_less(
    running: list[AtWork], waiting: list[float | None], workers: int
) -> None:
    left = seconds_left(running, waiting, workers)
    if left is None:
        assert all(cell.whole is None for cell in running)
        assert not any(seconds is not None for seconds in waiting)
        return
    assert left >= 0
    if None not in waiting and all(cell.whole is not None for cell in running):
        longer = [seconds * 2 for seconds in waiting if seconds is not None]
        total = seconds_left(running, longer, 1)
        assert total is not None
        assert total >= left * (1 - 1e-9), "half the work on more workers is done no later"


def test_what_equal_cells_took_before_is_known_from_the_start() -> None:
    board = Board.of(plan_of(planned("aa", "row", 0), planned("bb", "row", 1)))
    board.durations.learn(SPEC, 30.0)
    board.workers = 2
    assert board.left == pytest.approx(30.0)


# The end


def cell(id: str, status: str, reason: str | None = None) -> CellRecord:
    return CellRecord(id, SPEC, status, reason, 1, "", None, None, None, None, "cpu", {}, None)


def grid(*rows: tuple[str, list[CellRecord]]) -> GridRecord:
    cells = [GridCell(label, seed, {}, one) for label, row in rows for seed, one in enumerate(row)]
    return GridRecord("mine", {}, "", "", tuple(cells))


@pytest.fixture(autouse=True)
def no_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TASKLOOM_REGISTRY", raising=False)


NAN = "loss of task 'sst' is not finite"
RECORD = grid(
    ("sum", [cell("a0", "failed", NAN), cell("a1", "failed", NAN)]),
    ("it's [b]*", [cell("b0", "finished"), cell("b1", "oom", "out of memory with 1 example of task 'sst' at a time")]),
    ("it's b!", [cell("c0", "finished"), cell("c1", "planned")]),
)


def test_failures_stand_together_with_logs_and_a_command(tmp_path: Path) -> None:
    (tmp_path / "cells" / "a1").mkdir(parents=True)
    (tmp_path / "cells" / "a1" / "log.txt").write_text("Traceback …")
    assert failures_summary(RECORD, ["my grid.json", "--only", "*s*", "--no-retry"], tmp_path).splitlines() == [
        "3 of 6 cells did not succeed:",
        "  sum, seeds 0, 1: failed: loss of task 'sst' is not finite",
        f"    log: {tmp_path}/cells/a1/log.txt",
        "  it's [b]*, seed 1: out of memory with 1 example of task 'sst' at a time",
        "This tries them again:",
        "  taskloom run 'my grid.json' --only sum --only 'it'\"'\"'s [[]b][*]'",
    ]
    assert failures_summary(RECORD, ["g"], tmp_path, cells={"b0", "c0", "c1"}) == "", "what was not chosen"
    alone = failures_summary(RECORD, ["g", "--only", "s*"], tmp_path, cells={"a0", "a1"})
    assert alone.splitlines()[-1] == "  taskloom run g --only 's*'", "if all failed, the same again"


def test_many_failures_do_not_fill_the_screen(tmp_path: Path) -> None:
    same = grid(*((f"row {i}", [cell(f"c{i}", "failed", NAN)]) for i in range(100)), ("fine", [cell("f", "finished")]))
    text = failures_summary(same, ["g"], tmp_path)
    assert "row 3, seed 0; and 96 more rows: failed" in text
    assert text.splitlines()[-1] == "  taskloom run g", "finished cells are not run again anyway"
    each = grid(*((f"row {i}", [cell(f"c{i}", "failed", f"at step {i}")]) for i in range(100)))
    assert len(failures_summary(each, ["g"], tmp_path).splitlines()) < 20


def test_a_registry_of_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKLOOM_REGISTRY", "my runs")
    assert retry_command(["g"]) == "taskloom run g --registry 'my runs'"
    assert retry_command(["g", "--registry=other"]) == "taskloom run g --registry=other"


@given(st.lists(LABELS, min_size=1, max_size=4, unique=True), LABELS.filter(lambda text: text[0] != "-"))
def test_the_command_means_the_same_to_a_shell(labels: list[str], name: str) -> None:
    command = retry_command([name, "--registry", "a b", "--only=x", "--set", "a.b=[1, 2]", "--smoke"], labels, labels)
    program, verb, *arguments = shlex.split(command)
    assert (program, verb) == ("taskloom", "run")
    context = run.make_context("run", list(arguments), resilient_parsing=True)
    assert context.params["grid"] == name
    assert context.params["registry"] == Path("a b")
    assert context.params["settings"] == (("a.b", [1, 2]),)
    assert context.params["smoke"]
    patterns = context.params["only"]
    assert len(patterns) == len(labels)
    from taskloom.runs.grid.overrides import _fits

    for label, pattern in zip(labels, patterns, strict=True):
        assert [other for other in labels if _fits(other, pattern)] == [label]
