"""The progress of ``taskloom run``: bars on a terminal, elsewhere lines with the time.

Both go to stderr, so that stdout holds only the table.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import datetime
from typing import TYPE_CHECKING, Any, TextIO

from taskloom.core.engine import ENDS, Event
from taskloom.registry.results.wording import duration, format_event, format_progress
from taskloom.runs.show.visible import one_line, visible

if TYPE_CHECKING:
    from rich.progress import TaskID

    from taskloom.runs.grid.plan import Plan

#: Seconds between two lines of progress in a log; starts, epochs and ends always get one.
QUIET = 30.0
#: Seconds between two lines about the whole run, unless it is over.
BETWEEN = 5.0
_COLORS = {"failed": "red", "oom": "red", "lost": "yellow", "interrupted": "yellow"}


def show_progress(plan: "Plan", stream: TextIO | None = None, *, lines: bool = False) -> closing["RunProgress"]:
    """Show a plan's progress until the block ends: with bars where the stream can redraw, otherwise line by line.

    With ``lines`` there is a line for every report of a cell, wherever it is shown.
    """
    stream = stream or sys.stderr
    if lines:
        return closing(RunProgress(plan, stream, quiet=0.0))
    return closing(LiveProgress(plan, stream) if can_redraw(stream) else RunProgress(plan, stream))


def can_redraw(stream: TextIO) -> bool:
    """Whether the stream is a terminal that can do more than append lines."""
    if not stream.isatty():
        return False
    from rich.console import Console

    return not Console(file=stream).is_dumb_terminal


class RunProgress:
    """How far a run is, written as lines. If the stream goes away, training continues in silence."""

    def __init__(
        self, plan: "Plan", stream: TextIO, clock: Callable[[], float] = time.monotonic, quiet: float = QUIET
    ) -> None:
        self.name, self.stream, self.clock, self.quiet = plan.grid.name, stream, clock, quiet
        self.cells = {cell.id: cell for cell in reversed(plan.chosen)}  # one with two labels runs under the first
        self.cached = {cell.id for cell in plan.chosen if cell.status == "finished" or cell.tried}
        self.work = len(self.cells) - len(self.cached)  # cells that were not finished before this run
        self.ended: dict[str, str] = {}  # cell → finished, failed, oom or interrupted
        self.running: dict[str, dict[str, Any]] = {}  # cell → the latest facts about it
        self.shares: dict[str, float] = {}  # running cell → how much of it is done, once it has reported that
        self._trained = 0.0  # cells' worth of work done by this run
        self._began = self._first_start = self._last_line = clock()
        self._last_total = float("-inf")
        self._silent = False

    def __call__(self, event: Event) -> None:
        """Record an event and show it. One that ends an attempt but not the cell has a fact ``again``."""
        self._track(event)
        self._unless_gone(self._show, event)

    def say(self, text: str) -> None:
        """Show a line that is not about a cell."""
        self._unless_gone(self._write, text)

    def close(self) -> None:
        """End the display; line by line there is nothing to do."""

    def _unless_gone(self, show: Callable[..., None], *arguments: object) -> None:
        if not self._silent:
            try:
                show(*arguments)
            except OSError:
                self._silent = True

    def _show(self, event: Event) -> None:
        now = self.clock()
        if event.what != "progress" or now - self._last_line >= self.quiet:
            self._write_event(event)
        if event.what in ENDS and (len(self.ended) == self.work or now - self._last_total >= BETWEEN):
            self._last_total = now
            self._write(self.summary())

    def _write_event(self, event: Event) -> None:
        facts = {**self.running.get(event.cell, {}), **event.facts} if event.what == "progress" else event.facts
        cell = self.cells[event.cell]
        text = format_event(Event(event.what, event.cell, facts), cell.spec)
        if text:
            style = "yellow" if event.facts.get("again") else _COLORS.get(event.what, "")
            self._write(f"{one_line(cell.label)}, seed {cell.seed}: {text}", style)

    def _write(self, text: str, style: str = "") -> None:
        self._last_line = self.clock()
        line = visible(" ".join(text.splitlines()))
        print(f"{datetime.now():%Y-%m-%d %H:%M:%S}  {line}", file=self.stream, flush=True)

    def _track(self, event: Event) -> None:
        cell, facts = event.cell, event.facts
        if event.what in ("started", "resumed"):
            if not self.running and not self._trained:
                self._first_start = self.clock()  # starting the workers may take long
            self.ended.pop(cell, None)
            self.running[cell] = {}
            if event.what == "started":
                self.shares[cell] = 0.0
        elif event.what in ENDS:
            share = self.shares.pop(cell, None)
            self.running.pop(cell, None)
            if event.what == "finished" and share is not None:
                self._trained += 1.0 - share
            if event.what != "lost" and not facts.get("again"):
                self.ended[cell] = event.what
        elif cell in self.running and event.what in ("progress", "epoch", "stage"):
            if event.what != "stage":
                known = {key: value for key, value in facts.items() if value not in ({}, None)}
                self.running[cell] |= {"steps": None, "rate": None, **known}
            before = self.shares.get(cell)
            self.shares[cell] = share = _share(event, self.cells[cell].spec)
            if before is not None and not facts.get("shared") and not facts.get("retold"):
                self._trained += max(0.0, share - before)  # others' work does not count for the pace

    @property
    def done(self) -> float:
        """The work that is done, in cells, out of ``work``."""
        return len(self.ended) + sum(self.shares.values())

    @property
    def seconds_left(self) -> float | None:
        """Seconds until every cell has ended, at the pace so far; ``None`` while there is no pace yet."""
        if self._trained <= 0:
            return None
        return max(0.0, self.work - self.done) * (self.clock() - self._first_start) / self._trained

    def totals(self) -> str:
        """Return how many cells are in which state, and the time left."""
        ended, left = Counter(self.ended.values()), self.seconds_left
        counts = {status: ended[status] for status in ("failed", "oom", "interrupted")}
        counts["running"] = len(self.running)
        counts["waiting"] = self.work - len(self.running) - len(self.ended)
        before = f" ({len(self.cached)} before)" if self.cached else ""
        parts = [f"{ended['finished'] + len(self.cached)} of {len(self.cells)} cells done{before}"]
        parts += [f"about {duration(left)} left"] if left else []
        parts += [f"{number} {status}" for status, number in counts.items() if number]
        return ", ".join(parts)

    def summary(self) -> str:
        """Return the state of the whole run as one line."""
        return f"{self.name}: {self.totals()}, {duration(self.clock() - self._began)} so far"


class LiveProgress(RunProgress):
    """Progress as bars, one for the run and one for each running cell; lines about ended cells stay above them."""

    def __init__(self, plan: "Plan", stream: TextIO) -> None:
        super().__init__(plan, stream)
        from rich.console import Console
        from rich.progress import BarColumn, Progress, Task, TextColumn
        from rich.table import Column
        from rich.text import Text

        class Cut(TextColumn):  # to the width of the terminal; a column that may not wrap would not be narrowed
            def render(self, task: Task) -> Text:
                text = super().render(task)
                text.no_wrap, text.overflow = True, "ellipsis"
                return text

        self.bars = Progress(
            Cut("{task.description}", "bold", markup=False, table_column=Column()),
            "{task.fields[seed]}",
            BarColumn(bar_width=12),
            Cut("{task.fields[state]}", markup=False, table_column=Column()),
            console=Console(file=stream),
            refresh_per_second=4,
            transient=True,
            redirect_stdout=False,  # stdout is the table's
        )
        self._whole = self.bars.add_task(self.name, total=max(1, self.work), seed="", state=self.totals())
        self._tasks: dict[str, TaskID] = {}
        self.bars.start()

    def close(self) -> None:
        """Remove the bars and print the summary."""
        self._unless_gone(self.bars.stop)
        self._trained = 0.0  # no time left is shown, even if cells are waiting
        self.say(self.summary())

    def _show(self, event: Event) -> None:
        cell = self.cells[event.cell]
        if event.what in ENDS or event.what == "log":
            self._write_event(event)
        if event.cell in self.running and event.cell not in self._tasks:
            label, seed = one_line(cell.label), f"seed {cell.seed}"
            self._tasks[event.cell] = self.bars.add_task(label, total=1.0, seed=seed, state="starting")
        elif event.cell not in self.running and event.cell in self._tasks:
            self.bars.remove_task(self._tasks.pop(event.cell))
        if facts := self.running.get(event.cell):
            short = {**facts, "losses": {}} if facts.get("scores") else facts  # scores say more, and a line is cut
            state = format_progress(short, cell.spec)
            self.bars.update(self._tasks[event.cell], completed=self.shares.get(event.cell, 0.0), state=state)
        self.bars.update(self._whole, completed=self.done, state=self.totals())

    def _write(self, text: str, style: str = "") -> None:
        from rich.text import Text

        self.bars.console.print(Text(visible(text), style=style))  # a label's brackets are not markup


def _share(event: Event, spec: Mapping[str, Any]) -> float:
    """Return the share of a cell that is done, 0 to 1."""
    facts, epochs = event.facts, [int(stage["epochs"]) for stage in spec["stages"]]
    if event.what == "stage":
        done: float = sum(epochs[: facts["index"] + 1])
    else:
        done = sum(epochs[: facts["stage"]]) + int(facts["epoch"])
        if event.what == "progress":  # within that epoch
            done += facts["step"] / max(1, facts["steps"]) - 1
    return min(1.0, done / max(1, sum(epochs)))
