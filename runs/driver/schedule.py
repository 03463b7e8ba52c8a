"""Chooses the next cell: the longest first once durations are known; cells wait for a stage that others compute."""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from taskloom.core.engine import Job
from taskloom.runs.grid.identity import digest


class Durations:
    """How long cells take, learnt from finished ones.

    A cell is expected to take what its other seeds took; failing that, what cells took whose data, encoder and
    number of epochs are the same; failing that, nothing is known.
    """

    def __init__(self) -> None:
        self._seen: dict[str, list[float]] = {}
        self._keys: dict[str, tuple[str, str]] = {}

    def learn(self, spec: Mapping[str, Any], seconds: float | None) -> None:
        """Add the duration of a cell with this spec."""
        if seconds:
            for key in _likeness(spec):
                total = self._seen.setdefault(key, [0.0, 0])
                total[0], total[1] = total[0] + seconds, total[1] + 1

    def expected(self, cell: str, spec: Mapping[str, Any]) -> float | None:
        """Seconds that a cell of this spec should take, or ``None`` if nothing is known."""
        if cell not in self._keys:
            self._keys[cell] = _likeness(spec)
        for key in self._keys[cell]:
            if key in self._seen:
                total, count = self._seen[key]
                return total / count
        return None


class Order:
    """The pending jobs, the longest first.

    Every cell that ends improves the estimates of others, so the jobs are sorted again; with more than ``MANY`` jobs
    only after one end per ``MANY`` of them, so that the cost per cell does not grow with the grid.
    """

    MANY = 250

    def __init__(self, jobs: Iterable[Job], durations: Durations) -> None:
        self.pending = {job.cell: job for job in jobs}
        self._durations, self._sorted, self._ends = durations, False, 0

    def add(self, job: Job) -> None:
        """Add a job, or one that is to be tried again."""
        self.pending[job.cell] = job
        self._sorted = False

    def learn(self) -> None:
        """Note that a cell has ended."""
        self._ends += 1
        self._sorted &= self._ends * self.MANY < len(self.pending)

    def take(self, busy: Iterable[Job], is_done: Callable[[str], bool]) -> Job | None:
        """The next job, which is then no longer pending; ``None`` if all wait for stages that others compute."""
        if not self._sorted:
            self.pending = {job.cell: job for job in longest_first(self.pending.values(), self._durations)}
            self._sorted, self._ends = True, 0
        job = next_job(self.pending.values(), busy, is_done)
        return job and self.pending.pop(job.cell)


def longest_first(jobs: Iterable[Job], durations: Durations) -> list[Job]:
    """The jobs, the longest first; unknown durations count as the mean, and equal ones keep their order."""
    jobs = list(jobs)
    expected = {job.cell: durations.expected(job.cell, job.spec) for job in jobs}
    known = [seconds for seconds in expected.values() if seconds is not None]
    mean = sum(known) / len(known) if known else 0.0

    def seconds(job: Job) -> float:
        duration = expected[job.cell]
        return mean if duration is None else duration

    return sorted(jobs, key=seconds, reverse=True)


def next_job(ordered: Iterable[Job], busy: Iterable[Job], is_done: Callable[[str], bool]) -> Job | None:
    """The first job that need not wait for a stage that a busy one is computing.

    ``is_done`` tells whether the result of a stage key exists. A job waits only for the first stage that it lacks: it
    could not begin any other.
    """
    is_done = cache(is_done)  # it may look at the disk, and a thousand jobs may share a stage
    computed = {key for job in busy for key in job.stage_keys if not is_done(key)}
    for job in ordered:
        lacking = next((key for key in job.stage_keys if not is_done(key)), None)
        if lacking is None or lacking not in computed:
            return job
    return None


def _likeness(spec: Mapping[str, Any]) -> tuple[str, str]:
    """Two keys: equal for cells that differ in their seed alone, and equal for cells of about the same size."""
    without_seed = {key: value for key, value in spec.items() if key != "seed"}
    stages = [{key: stage.get(key) for key in ("tasks", "epochs", "frozen")} for stage in spec.get("stages", ())]
    data = {name: task.get("data") for name, task in spec.get("tasks", {}).items()}
    return digest(without_seed), digest({"encoder": spec.get("encoder"), "data": data, "stages": stages})
