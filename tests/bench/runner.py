"""What running costs beside the training itself, and what a second worker gains. One table, with bars.

    OMP_NUM_THREADS=1 python tests/bench/runner.py [--cells 1000] [--noops 400] [--check]

- a no-op cell, and a no-op trial of a search, through the real drive loop: locks, ledger, progress, a warm worker
  process (``noop.py``)
- planning and validating 1,000 cells, and 1,000 trials, from the file to every identity (``planning.py``)
- ``taskloom table`` over 1,000 finished cells, the whole command from its start to its end
- twelve small real cells on one worker and on two, one thread each; from the first cell's start to the last one's end
- four cells, with one thread each and with all cores in one, alone and beside a process that never rests

CPU seconds hang less on what else the machine does; if the load was high, go by them. ``--check`` exits with 1 if a bar
is missed.
"""

import argparse
import io
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from planning import plan_many
from tabulate import tabulate

from taskloom.core import Event
from taskloom.plugins.engines.devices import inventory
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.driver import drive
from taskloom.runs.grid.grid import load_grid
from taskloom.runs.grid.overrides import Overrides
from taskloom.runs.grid.plan import Plan, make_plan
from taskloom.runs.show.progress import show_progress

#: As a user's shell has it, and so that workers find noop.py.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
TRAIN = drive.WORK
#: A width of which threads share the work.
WIDE = 128


@dataclass
class Line:
    """One figure of the table; ``most`` is the bar, and ``share`` how much of it was used."""

    what: str
    value: float
    unit: str
    cpu: float | None = None
    most: float | None = None
    note: str = ""

    @property
    def missed(self) -> bool:
        return self.most is not None and self.value > self.most

    def row(self) -> list[str]:
        bar = "" if self.most is None else f"≤ {self.most:g} {self.unit}"
        share = "" if self.most is None else f"{self.value / self.most:.2f}{' MISSED' if self.missed else ''}"
        cpu = "" if self.cpu is None else f"{self.cpu:.2f} {self.unit}"
        return [self.what, f"{self.value:.2f} {self.unit}".strip(), cpu, bar, share, self.note]


@dataclass
class Timed:
    """What a run's events told: when its first cell began, when each ended."""

    began: float
    ends: list[float]
    wall: float
    cpu: float  # of the driver
    worker_cpu: float

    @property
    def busy(self) -> float:
        """Seconds from the first cell's start to the last one's end."""
        return self.ends[-1] - self.began


def run(plan: Plan, work: str, workers: int, threads: int = 1) -> Timed:
    """Run a plan in a new registry with warm workers."""
    starts: list[float] = []
    ends: list[float] = []
    catalogue = load_catalogue()
    with tempfile.TemporaryDirectory() as folder, Ledger.open(folder, create=True) as ledger:
        drive.WORK = work
        began, cpu, children = time.perf_counter(), time.process_time(), _children()
        with show_progress(plan, io.StringIO()) as progress:

            def listen(event: Event) -> None:
                progress(event)
                if event.what == "started":
                    starts.append(time.perf_counter())
                elif event.what == "finished":
                    ends.append(time.perf_counter())

            engine = {"name": "local", "devices": "cpu", "workers": workers, "threads": threads}
            ledger.record_grid(plan.grid.name, plan.grid.raw, plan.cells)
            outcome = drive.run_plan(plan, catalogue, ledger, engine=engine, listen=listen)
        wall, cpu, children = time.perf_counter() - began, time.process_time() - cpu, _children() - children
        drive.WORK = TRAIN
        if outcome.failed:
            sys.exit(f"{outcome.failed} cells failed: {next(iter(outcome.reasons.values()))}")
    return Timed(starts[0], ends, wall, cpu, children)


def _children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def noop_lines(noops: int) -> Iterator[Line]:
    cells, trials = plan_many(noops)[0], plan_many(noops, trials=True)[0].trials
    assert trials is not None
    for what, plan, workers in (("cell", cells, 1), ("cell", cells, 2), ("trial", trials, 1)):
        timed = run(plan, "noop:noop", workers)
        count = len(timed.ends)
        each = 1000 * (timed.ends[-1] - timed.ends[0]) / (count - 1)
        cpu = 1000 * timed.cpu / count
        gaps = [1000 * (later - before) for before, later in pairwise(timed.ends)]
        note = f"mean of {count} cells, median {median(gaps):.2f} ms; CPU: the driver's"
        yield Line(f"no-op {what}, {workers} warm worker{'s' if workers > 1 else ''}", each, "ms", cpu, 15.0, note)


def planning_lines(cells: int) -> Iterator[Line]:
    plan, seconds, cpu = plan_many(cells)
    yield Line(f"plan and validate {len(plan.cells):,} cells", seconds, "s", cpu, 2.0)
    of_trials, seconds, cpu = plan_many(cells, trials=True)
    yield Line(f"plan and validate {of_trials.trial_count:,} trials", seconds, "s", cpu, 2.0)
    with tempfile.TemporaryDirectory() as folder:
        with Ledger.open(folder, create=True) as ledger:
            began = time.perf_counter()
            ledger.record_grid("many", plan.grid.raw, plan.cells)
            yield Line(f"write down {len(plan.cells):,} planned cells", time.perf_counter() - began, "s")
            _finish(ledger, plan)
        yield from _table_lines(folder, len(plan.cells))


def _finish(ledger: Ledger, plan: Plan) -> None:
    """Every cell as if it had been trained."""
    for place, cell in enumerate(plan.cells):
        scores = dict.fromkeys((*cell.spec["tasks"], "overall"), place % 997 / 997)
        ledger.write(Event("started", cell.id, {"device": "cpu", "versions": cell.versions}))
        for epoch in (1, 2, 3):
            losses = {task: (2 - score) / epoch for task, score in scores.items()}
            facts = {"stage": 0, "epoch": epoch, "losses": losses, "scores": scores, "seconds": 1.0 * epoch}
            ledger.write(Event("epoch", cell.id, facts))
        ledger.write(Event("finished", cell.id, {"scores": scores, "seconds": 3.0, "peak_memory": 1 << 28}))


def _table_lines(folder: str, cells: int) -> Iterator[Line]:
    program = [sys.executable, "-c", "from taskloom.runs.cli import main; main()"]
    for name, most in (("table", 1.0), ("cells", None)):
        began, cpu = time.perf_counter(), _children()
        done = subprocess.run(
            [*program, name, "many", "--registry", folder], capture_output=True, text=True, check=True
        )
        seconds, cpu = time.perf_counter() - began, _children() - cpu
        assert len(done.stdout.splitlines()) > cells // 5
        yield Line(f"taskloom {name} over {cells:,} finished cells", seconds, "s", cpu, most, "the whole command")


def speed_lines() -> Iterator[Line]:
    plan = make_plan(load_grid("quickstart"), load_catalogue(), None)
    one, two = (run(plan, TRAIN, workers) for workers in (1, 2))
    yield Line(
        f"{len(plan.cells)} small cells, 1 worker",
        one.busy,
        "s",
        one.worker_cpu,
        note=f"{one.wall:.1f} s with its start",
    )
    yield Line(
        f"{len(plan.cells)} small cells, 2 workers",
        two.busy,
        "s",
        two.worker_cpu,
        note=f"{two.wall:.1f} s with their start",
    )
    # What one core loses because the other works, too (memory, cache, clock), is the machine's, not the runner's.
    ideal = 2 * one.worker_cpu / two.worker_cpu
    note = f"{one.wall / two.wall:.2f} with the start of the workers; {ideal:.2f} is all that the CPU times allow"
    yield Line("speed-up of 2 workers", one.busy / two.busy, "", note=note)


def busy_lines() -> Iterator[Line]:
    """A grid beside another busy process: as it is run by default, one thread in a cell, and with all cores in one."""
    overrides = Overrides(only=("sum",), seeds=(3,), settings={"encoder.width": WIDE})
    plan, cores = make_plan(load_grid("quickstart"), load_catalogue(), None, overrides=overrides), inventory().cores
    for workers, threads in ((cores, 1), (1, cores)):
        alone = run(plan, TRAIN, workers, threads)
        other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            beside = run(plan, TRAIN, workers, threads)
        finally:
            other.kill()
            other.wait()
        what = f"{len(plan.chosen)} cells, {workers} × {threads} thread(s)"
        yield Line(f"{what}, alone", alone.busy, "s", alone.worker_cpu)
        yield Line(f"{what}, beside a busy process", beside.busy, "s", beside.worker_cpu)
        ratio = beside.busy / (alone.busy * (cores + 1) / cores)
        yield Line("of the time that the fair share of the cores allows", ratio, "×", most=1.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=1000, help="cells that are planned and shown")
    parser.add_argument("--noops", type=int, default=400, help="cells that do nothing")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar is missed")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    lines = [*planning_lines(given.cells), *noop_lines(given.noops), *speed_lines(), *busy_lines()]
    print(tabulate([line.row() for line in lines], headers=["what", "took", "CPU", "bar", "of the bar", ""]))
    print(f"\n{os.cpu_count()} cores; load {load:.1f} before, {os.getloadavg()[0]:.1f} after (its own included)")
    sys.exit(int(given.check and any(line.missed for line in lines)))


if __name__ == "__main__":
    main()
