"""Where a whole plan stands: hears every event, and says in a line what a person wants to know."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from taskloom.core.events import ENDS, Event, Job
from taskloom.core.units import duration, memory
from taskloom.core.visible import one_line
from taskloom.runs.driver.schedule import Durations
from taskloom.runs.driver.story import told_news
from taskloom.runs.show.forecast import seconds_left
from taskloom.runs.show.running import Running

if TYPE_CHECKING:
    from taskloom.runs.grid.plan import Plan

#: Ends of a cell that leave a hole.
_ENDS = ("failed", "oom", "interrupted")


@dataclass
class Board:
    """The cells of a plan: how many are done, running, waiting or failed, the rate, and the time left."""

    name: str
    jobs: dict[str, Job]
    cached: frozenset[str] = frozenset()  # cells that were there already
    running: dict[str, Running] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)  # cell → finished, failed, oom or interrupted
    workers: int = 1  # cells at once; at least as many as were seen
    durations: Durations = field(default_factory=Durations)
    clock: Callable[[], float] = time.monotonic
    began: float = 0.0
    _left_off: dict[str, Running] = field(default_factory=dict)  # where attempts ended

    def __post_init__(self) -> None:
        self.began = self.clock()

    @classmethod
    def of(cls, plan: "Plan", clock: Callable[[], float] = time.monotonic) -> "Board":
        # A cell may stand under two labels; it runs once, under the first.
        cells = {cell.id: cell for cell in reversed(plan.chosen)}
        return cls(
            name=plan.grid.name,
            jobs={cell.id: Job(cell.id, cell.label, cell.seed, cell.spec, "") for cell in cells.values()},
            cached=frozenset(cell.id for cell in cells.values() if cell.status == "finished"),
            clock=clock,
        )

    def title(self, cell: str) -> str:
        """A cell's row and seed."""
        job = self.jobs[cell]
        return f"{one_line(job.label)}, seed {job.seed}"

    def hear(self, event: Event) -> None:
        """Take an event in. One that ends an attempt but not the cell has a fact ``again``."""
        now, cell = self.clock(), event.cell
        if event.what in ("started", "resumed"):
            self.ended.pop(cell, None)
            self.running[cell] = Running(
                self.title(cell),
                [stage["epochs"] for stage in self.jobs[cell].spec["stages"]],
                began=now,
                heard=now,
                worker=str(event.facts.get("worker") or ""),
                before=None if event.what == "resumed" else 0.0,
            )
            if event.what == "resumed" and cell in self._left_off:
                self.running[cell].take_over(self._left_off[cell])
            self.workers = max(self.workers, len(self.running))
        elif event.what in ENDS:
            if gone := self.running.pop(cell, None):
                self._left_off[cell] = gone
            if event.what != "lost" and not event.facts.get("again"):
                self.ended[cell] = event.what
            if event.what == "finished":
                self.durations.learn(self.jobs[cell].spec, event.facts.get("seconds"))
        elif cell in self.running:
            self.running[cell].hear(event, now)

    @property
    def counts(self) -> dict[str, int]:
        """How many cells are ``done`` (now), ``cached`` (before), ``running``, ``waiting``, and ended otherwise."""
        ended = Counter(self.ended.values())
        counts = {"done": ended.pop("finished", 0), "cached": len(self.cached), "running": len(self.running)}
        counts["waiting"] = self.work - len(self.running) - len(self.ended)
        return {**counts, **{how: ended[how] for how in _ENDS}}

    @property
    def work(self) -> int:
        """Cells that were not there already."""
        return len(self.jobs) - len(self.cached)

    @property
    def over(self) -> bool:
        """Whether every cell has ended."""
        return len(self.ended) == self.work

    @property
    def done(self) -> float:
        """Cells' worth of work done since the beginning."""
        return len(self.ended) + sum(cell.share for cell in self.running.values())

    @property
    def elapsed(self) -> float:
        return self.clock() - self.began

    @property
    def per_minute(self) -> float | None:
        """Cells that end in a minute; None before the first did."""
        return 60.0 * len(self.ended) / self.elapsed if self.ended and self.elapsed > 0 else None

    @property
    def memory(self) -> int:
        """Bytes that the running cells take together, as far as they say."""
        return sum(cell.memory for cell in self.running.values())

    @property
    def left(self) -> float | None:
        """Seconds until all is done, if that can be told."""
        now = self.clock()
        expected, ready = self.durations.expected, self.cached | self.ended.keys() | self.running.keys()
        at_work = [cell.at_work(expected(self.jobs[id]), now) for id, cell in self.running.items()]
        waiting = [expected(job) for id, job in self.jobs.items() if id not in ready]
        return seconds_left(at_work, waiting, self.workers)

    def totals(self) -> str:
        """How many cells are where."""
        counts = self.counts
        parts = [f"{counts['done'] + counts['cached']} of {len(self.jobs)} cells done"]
        parts += [f"{len(self.cached)} of them before"] if self.cached else []
        words = {"oom": "out of memory"}
        named = ("running", "waiting", *_ENDS)
        parts += [f"{counts[how]} {words.get(how, how)}" for how in named if counts[how]]
        return ", ".join(parts)

    def pace(self) -> str:
        """Cells per minute, the time so far and the time left, and the memory of all."""
        rate, left = self.per_minute, self.left
        parts = [f"{rate:.1f} cells/min"] if rate is not None else []
        parts.append(f"{duration(self.elapsed)} so far")
        parts += [f"about {duration(left)} left"] if left else []
        parts += [memory(self.memory)] if self.memory else []
        return ", ".join(parts)

    def line(self) -> str:
        """The whole plan in a line."""
        return f"{self.name}: {self.totals()}, {self.pace()}"

    def tell(self, event: Event) -> str | None:
        """An event worth a line of its own, as that line; of an end, before it is heard (then its worker is known)."""
        running = self.running.get(event.cell)
        text = self._text(event, running)
        if text is None:
            return None
        worker = str(event.facts.get("worker") or (running.worker if running else ""))
        return f"{worker}  {self.title(event.cell)}: {text}" if worker else f"{self.title(event.cell)}: {text}"

    def _text(self, event: Event, running: Running | None) -> str | None:
        facts = event.facts
        match event.what:
            case "started" | "resumed":
                attempt = facts.get("attempt", 1)
                again = f", attempt {attempt}" if attempt > 1 else ""
                return f"{event.what} on {facts.get('device', 'an unknown device')}{again}"
            case "epoch" | "progress":
                return running.line() if running else None
        return told_news(event, sum(running.epochs[: running.stage]) + running.epoch if running else None)
