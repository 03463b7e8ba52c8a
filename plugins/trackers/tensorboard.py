"""Runs in TensorBoard's format."""

import json
from pathlib import Path
from typing import Any

from taskloom.core import TrackedRun, Tracker, figures
from taskloom.plugins.trackers.packages import load_package, plain_name


class TensorBoard(Tracker):
    """Writes event files: curves, the specification, final scores for the HParams tab, and the table as text.

    Each run has a folder, ``GRID/ROW-seed-N-CELL``; each grid one for its table, ``GRID/table``. A run that is
    reported again is written anew.

    Options:
        dir: the folder of all runs; by default ``tensorboard`` in the registry

    Siblings: ``mlflow`` has a server and can be searched; ``trackio`` and ``wandb`` have dashboards.

    Reference: Abadi et al. 2016, TensorFlow: A System for Large-Scale Machine Learning, section 9.1

    Example: ``taskloom run quickstart --tracker tensorboard``
    """

    name = "tensorboard"

    def __init__(self, *, dir: str | None = None) -> None:
        self.dir = dir
        self._writers: dict[str, Any] = {}

    def open(self, folder: Path) -> None:
        self._folder = Path(self.dir).expanduser() if self.dir else folder / "tensorboard"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._new_writer = load_package("tensorboard", "torch.utils.tensorboard").SummaryWriter

    def run_started(self, run: TrackedRun) -> None:
        self._end(run.cell)
        self._writers[run.cell] = writer = self._new(run.grid, run.title)
        writer.add_text("spec", f"```json\n{json.dumps(run.spec, indent=2)}\n```")

    def epoch_ended(self, run: TrackedRun, facts: dict[str, Any]) -> None:
        writer, number = self._writers[run.cell], run.epoch_number(facts)
        for name, value in figures(facts).items():
            writer.add_scalar(plain_name(name, also="/"), value, number)
        writer.flush()

    def run_finished(self, run: TrackedRun, facts: dict[str, Any]) -> None:
        parameters = {**{f"taskloom.{name}": value for name, value in run.tags.items()}, **run.parameters}
        hparams = {
            name: value if isinstance(value, bool | int | float) else str(value) for name, value in parameters.items()
        }
        scores = {plain_name(name, also="/"): value for name, value in figures(facts).items()}
        scores.pop("seconds", None)  # a curve
        # Into the same folder: by default they would be a second run beside this one.
        self._writers[run.cell].add_hparams(hparams, scores, run_name=".")
        self._end(run.cell)

    def run_failed(self, run: TrackedRun, reason: str) -> None:
        self._writers[run.cell].add_text("failed", reason)
        self._end(run.cell)

    def grid_finished(self, grid: str, table: str) -> None:
        with self._new(grid, "table") as writer:
            writer.add_text("table", table)

    def close(self) -> None:
        for cell in list(self._writers):
            self._end(cell)

    def _new(self, grid: str, title: str) -> Any:
        """A writer into an empty folder."""
        folder = self._folder / plain_name(grid) / plain_name(title)
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        return self._new_writer(log_dir=str(folder))

    def _end(self, cell: str) -> None:
        if cell in self._writers:
            self._writers.pop(cell).close()
