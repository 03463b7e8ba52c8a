"""Trackers: they are told what happens to runs and record it where people look at curves."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from taskloom.core.component import Component


@dataclass(frozen=True)
class TrackedRun:
    """A cell as a row of a grid. ``cell`` is its identity, a hash; ``label`` its row.

    ``spec`` is the whole specification with every default filled in.

    >>> run = TrackedRun("c0ffee0123456789", "sum", 3, "quickstart", {"stages": [{"epochs": 2}, {"epochs": 5}]})
    >>> run.title, run.epoch_number({"stage": 1, "epoch": 1})
    ('sum, seed 3 (c0ffee01)', 3)
    """

    cell: str
    label: str
    seed: int
    grid: str
    spec: dict[str, Any]

    @property
    def title(self) -> str:
        """A name that no other run of the grid has."""
        return f"{self.label}, seed {self.seed} ({self.cell[:8]})"

    @property
    def parameters(self) -> dict[str, Any]:
        """The specification, flattened: ``stages.0.optimizer.lr`` → 0.002."""
        return dict(_leaves(self.spec, "."))

    @property
    def tags(self) -> dict[str, str]:
        """Grid, row, seed and cell, by which runs are found and grouped."""
        return {"grid": self.grid, "row": self.label, "seed": str(self.seed), "cell": self.cell}

    def epoch_number(self, facts: dict[str, Any]) -> int:
        """Which epoch of the whole run this is, from 1; a last stage of no epochs is scored as one."""
        before = sum(stage["epochs"] for stage in self.spec["stages"][: facts["stage"]])
        return int(before) + max(1, int(facts["epoch"]))


class Tracker(Component):
    """Is told what happens to the runs of a grid: ``taskloom run GRID --tracker NAME``. No identity depends on it.

    The process that drives the grid calls ``open``, then the methods for what happens, several runs in turns, and
    ``close`` at the end, all in a thread of the tracker's own: waiting for a network delays nothing else. An exception
    is reported once, and the run goes on. Arguments are copies.

    **A run may be told again**, from its start: when it resumes from a checkpoint, and when the grid is run again and
    has its result already. The tracker should hold a run once, under its cell's identity, and each of its epochs once.
    """

    kind: ClassVar[str] = "tracker"

    def open(self, folder: Path) -> None:
        """Import packages, make files or connect to a server. ``folder`` is the registry's.

        Raise ``TaskloomError`` if that is impossible, saying what to do; then nothing else is called.
        """

    def run_started(self, run: TrackedRun) -> None:
        """A run starts, or resumes from a checkpoint: all of its epochs so far follow."""

    def epoch_ended(self, run: TrackedRun, facts: dict[str, Any]) -> None:
        """An epoch of a run has ended.

        Arguments:
            run: which run
            facts: ``stage`` (from 0), ``epoch`` (from 1 in each stage; 0 where a last stage of no epochs is scored),
                ``step`` (of the stage), ``losses`` (task → mean training loss; empty in epoch 0), ``scores`` (task →
                dev score, and ``overall``; empty where nothing is scored), ``train`` (the same of a sample of the
                training data; empty unless the run asks for it), ``diagnostics`` (learning rate, norms and conflicts
                of the gradients; empty in epoch 0), ``metrics`` (task, or "combiner" → name → what its loss or the
                combiner reports of its state), ``seconds`` (of the cell so far), ``memory`` (the most so far, in
                bytes; None of a run that was finished before)
        """

    def run_finished(self, run: TrackedRun, facts: dict[str, Any]) -> None:
        """A run has finished.

        Arguments:
            run: which run
            facts: ``scores`` (task → dev score of the best epoch, and ``overall``; empty where nothing is scored),
                ``test`` (the same of the test split; empty unless the run asks for it), ``best_epoch``, ``costs``
                (examples seen and backward passes), ``seconds``, ``peak_memory`` in bytes
        """

    def run_failed(self, run: TrackedRun, reason: str) -> None:
        """A run has failed, and no further attempt is made; ``reason`` is one line, as the table shows it."""

    def grid_finished(self, grid: str, table: str) -> None:
        """Every run of a grid has ended; ``table`` is its comparison table with all notes, in Markdown."""

    def close(self) -> None:
        """Write what is left. Runs that have not ended were interrupted. May be called twice, and without ``open``."""


def figures(facts: dict[str, Any]) -> dict[str, float]:
    """The numbers in the facts of an epoch or of a finished run, flattened, and the same whenever they are told.

    Dev scores of an epoch are ``dev/…``, those of the finished run ``final/…``. An epoch's ``memory``, which is not
    known when it is told again, and the cosines of single steps are left out.

    >>> figures({"epoch": 1, "losses": {"sst": 0.5}, "scores": {"sst": 0.8}, "metrics": {"sst": {"margin": 0.1}}})
    {'epoch': 1.0, 'loss/sst': 0.5, 'dev/sst': 0.8, 'metrics/sst/margin': 0.1}
    """
    names = {"losses": "loss", "scores": "dev" if "epoch" in facts else "final", "step": "stage_step"}
    named = {names.get(key, key): value for key, value in facts.items() if key != "memory"}
    numbers = {path: float(value) for path, value in _leaves(named, "/") if type(value) in (int, float)}
    return {path: value for path, value in numbers.items() if not path.startswith("diagnostics/points/")}


def _leaves(value: Any, between: str, path: str = "") -> Iterator[tuple[str, Any]]:
    """The values in nested dictionaries and lists that are neither, with their paths."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if children is None:
        yield path, value
        return
    for key, child in children:
        yield from _leaves(child, between, f"{path}{between}{key}" if path else str(key))
