"""Which cell is run next: longest first once durations are known, and cells that share a stage wait for it once."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from taskloom.core.events import Job
from taskloom.runs.canonical import digest


class Durations:
    """How long cells take, learnt from those that are done.

    A cell is expected to take what its other seeds took; failing that, what cells took whose data, encoder and
    number of epochs are the same; failing that, nothing is known.
    """

    def __init__(self) -> None:
        self._seen: dict[str, list[float]] = {}
        self._keys: dict[str, tuple[str, str]] = {}

    def learn(self, spec: Mapping[str, Any], seconds: float | None) -> None:
        """A cell of this spec took so long."""
        if seconds:
            for key in _likeness(spec):
                total = self._seen.setdefault(key, [0.0, 0])
                total[0], total[1] = total[0] + seconds, total[1] + 1

    def expected(self, job: Job) -> float | None:
        """Seconds that the job should take, or ``None`` if nothing is known."""
        if job.cell not in self._keys:
            self._keys[job.cell] = _likeness(job.spec)
        for key in self._keys[job.cell]:
            if key in self._seen:
                total, count = self._seen[key]
                return total / count
        return None


def longest_first(jobs: Iterable[Job], durations: Durations) -> list[Job]:
    """The jobs, the longest first; those of which nothing is known count as the mean, and equals keep their order."""
    jobs = list(jobs)
    expected = {job.cell: durations.expected(job) for job in jobs}
    known = [seconds for seconds in expected.values() if seconds is not None]
    mean = sum(known) / len(known) if known else 0.0

    def seconds(job: Job) -> float:
        found = expected[job.cell]
        return mean if found is None else found

    return sorted(jobs, key=seconds, reverse=True)


def next_job(ordered: Iterable[Job], busy: Iterable[Job], is_done: Callable[[str], bool]) -> Job | None:
    """The first job that need not wait for a stage that a busy one is computing.

    ``is_done`` tells of a stage key whether its result is there. A job waits only for the first stage that it lacks:
    it could not begin anything else.
    """
    computed = {key for job in busy for key in job.stage_keys if not is_done(key)}
    for job in ordered:
        lacking = next((key for key in job.stage_keys if not is_done(key)), None)
        if lacking is None or lacking not in computed:
            return job
    return None


def _likeness(spec: Mapping[str, Any]) -> tuple[str, str]:
    """Two keys: equal for cells that differ in their seed alone, and equal for cells of about the same size."""
    own = {key: value for key, value in spec.items() if key != "seed"}
    stages = [{key: stage.get(key) for key in ("tasks", "epochs", "frozen")} for stage in spec.get("stages", ())]
    data = {name: task.get("data") for name, task in spec.get("tasks", {}).items()}
    return digest(own), digest({"encoder": spec.get("encoder"), "data": data, "stages": stages})
