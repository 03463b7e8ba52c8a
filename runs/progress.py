"""What ``taskloom run`` shows while it runs: a live display on a terminal, lines with the time in a log.

Both go to stderr, so that stdout holds nothing but the table.
"""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from taskloom.core.events import Event

if TYPE_CHECKING:
    from taskloom.runs.plan import Plan

#: Seconds between two lines of progress in a log; epochs are always told.
QUIET = 30.0


class Listener(Protocol):
    """Hears every event of a run."""

    def __call__(self, event: Event) -> None: ...
    def say(self, text: str) -> None: ...


@contextmanager
def show_progress(plan: "Plan", stream: TextIO | None = None) -> Iterator[Listener]:
    """Show a plan's progress until the block ends; on a terminal live, otherwise line by line."""
    stream = stream or sys.stderr
    board = Board.of(plan)
    if stream.isatty():
        from taskloom.runs.live import Live

        with Live(board, stream) as live:
            yield live
    else:
        yield Lines(board, stream)


@dataclass
class Running:
    """One cell at work."""

    title: str
    epochs: list[int]  # of each stage
    stage: int = 0
    epoch: int = 0  # finished in this stage
    step: int = 0
    steps: int = 0
    rate: float = 0.0
    losses: Mapping[str, float] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """How much of the cell is done, 0 to 1."""
        done = sum(self.epochs[: self.stage]) + self.epoch + (self.step / self.steps if self.steps else 0.0)
        return min(1.0, done / max(1, sum(self.epochs)))

    def hear(self, event: Event) -> None:
        facts = event.facts
        match event.what:
            case "progress":
                self.stage, self.epoch = facts["stage"], facts["epoch"] - 1
                self.step, self.steps, self.rate = facts["step"], facts["steps"], facts["rate"]
                self.losses = facts["losses"]
            case "epoch":
                self.stage, self.epoch, self.step = facts["stage"], facts["epoch"], 0
                self.losses, self.scores = facts["losses"], facts["scores"]
            case "stage":
                self.stage, self.epoch, self.step = facts["index"] + 1, 0, 0

    def line(self) -> str:
        """Epoch, step, rate, losses and scores; what is not known yet is left out."""
        stage = min(self.stage, len(self.epochs) - 1)
        current = min(self.epoch + (self.step > 0), self.epochs[stage])
        parts = [f"epoch {current}/{self.epochs[stage]}"]
        if len(self.epochs) > 1:
            parts.insert(0, f"stage {stage + 1}/{len(self.epochs)}")
        if self.step:
            parts += [f"step {self.step}/{self.steps}", f"{self.rate:.1f} steps/s"]
        parts += [f"loss {figures(self.losses)}"] if self.losses else []
        parts += [f"dev {figures(self.scores)}"] if self.scores else []
        return "  ".join(parts)


@dataclass
class Board:
    """Where the whole plan stands."""

    name: str
    titles: dict[str, str]
    specs: dict[str, dict[str, Any]]
    cached: int
    running: dict[str, Running] = field(default_factory=dict)
    finished: int = 0
    failed: int = 0
    began: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, plan: "Plan") -> "Board":
        # A cell may stand under two labels; it runs once, under the first.
        cells = {cell.id: cell for cell in reversed(plan.chosen)}
        return cls(
            name=plan.grid.name,
            titles={cell.id: f"{cell.label}, seed {cell.seed}" for cell in cells.values()},
            specs={cell.id: cell.spec for cell in cells.values()},
            cached=sum(cell.status == "finished" for cell in cells.values()),
        )

    def hear(self, event: Event) -> None:
        if event.what in ("started", "resumed"):
            epochs = [stage["epochs"] for stage in self.specs[event.cell]["stages"]]
            self.running[event.cell] = Running(self.titles[event.cell], epochs)
        elif event.what in ("finished", "failed"):
            self.running.pop(event.cell, None)
            self.finished += event.what == "finished"
            self.failed += event.what == "failed"
        elif event.cell in self.running:
            self.running[event.cell].hear(event)

    @property
    def work(self) -> int:
        """Cells that were not there already."""
        return len(self.titles) - self.cached

    @property
    def done(self) -> float:
        """Cells' worth of work done since the beginning."""
        return self.finished + self.failed + sum(cell.share for cell in self.running.values())

    def line(self) -> str:
        """The whole plan in a line."""
        elapsed = time.monotonic() - self.began
        parts = [f"{self.name}: {self.finished + self.cached} of {len(self.titles)} cells done"]
        parts += [f"{self.cached} of them before"] if self.cached else []
        parts += [f"{self.failed} failed"] if self.failed else []
        parts.append(f"{duration(elapsed)} so far")
        if 0 < self.done < self.work:
            parts.append(f"about {duration(elapsed * (self.work - self.done) / self.done)} left")
        return ", ".join(parts)

    def tell(self, event: Event) -> str | None:
        """An event worth a line of its own, as that line."""
        facts, title = event.facts, self.titles[event.cell]
        match event.what:
            case "started" | "resumed":
                return f"{title}: {event.what} on {facts.get('device', 'an unknown device')}"
            case "epoch":
                return f"{title}: {self.running[event.cell].line()}" if event.cell in self.running else None
            case "stage" if facts.get("shared"):
                return f"{title}: stage {facts['index'] + 1} taken over from another cell"
            case "log":
                return f"{title}: {facts['message']}"
            case "finished":
                return f"{title}: finished in {duration(facts['seconds'])}, dev {figures(facts['scores'])}"
            case "failed":
                return f"{title}: failed: {facts['reason']}"
        return None


class Lines:
    """Progress for a log."""

    def __init__(self, board: Board, stream: TextIO) -> None:
        self.board, self.stream = board, stream
        self._told = time.monotonic()

    def __call__(self, event: Event) -> None:
        self.board.hear(event)
        text = self.board.tell(event)
        if event.what == "progress" and time.monotonic() - self._told > QUIET:
            text = f"{self.board.titles[event.cell]}: {self.board.running[event.cell].line()}"
        if text:
            self.say(text)
        if event.what in ("finished", "failed"):
            self.say(self.board.line())

    def say(self, text: str) -> None:
        self._told = time.monotonic()
        print(f"{datetime.now():%Y-%m-%d %H:%M:%S}  {text}", file=self.stream, flush=True)


def figures(values: Mapping[str, float]) -> str:
    """Names with their figures.

    >>> figures({"sst": 0.41249, "overall": 0.5})
    'sst 0.412 overall 0.500'
    """
    return " ".join(f"{name} {value:.3f}" for name, value in values.items()) or "nothing"


def duration(seconds: float) -> str:
    """Seconds as a person says them.

    >>> duration(8.31), duration(75), duration(3 * 3600 + 120)
    ('8.3 s', '1 min 15 s', '3 h 2 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
