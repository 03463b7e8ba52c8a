"""Runs in Weights & Biases, and in Trackio, which has the same interface and keeps everything on this machine."""

import os
from abc import abstractmethod
from contextvars import Context
from html import escape
from pathlib import Path
from shutil import rmtree
from typing import Any, ClassVar, Literal

from taskloom.core import TaskloomError, TrackedRun, Tracker, figures
from taskloom.plugins.trackers.packages import load_package, plain_name

#: The marker file of a run that was logged to its end.
DONE = "taskloom-finished"


class _Dashboard(Tracker):
    """The interface that both packages share: ``init`` gives a run that can ``log``, ``alert`` and ``finish``."""

    package: ClassVar[str]

    def __init__(self, *, project: str | None = None) -> None:
        self.project = project
        self._runs: dict[str, Any] = {}  # cell → its run, if it is to be logged
        self._last: dict[str, int] = {}  # cell → its last epoch

    @abstractmethod
    def _begin(self, project: str, cell: str, title: str, grid: str, config: dict[str, Any]) -> Any:
        """A run to be logged from its start; None if the existing one is complete."""

    def open(self, folder: Path) -> None:
        self._folder = folder
        self._api = load_package(self.package)

    def run_started(self, run: TrackedRun) -> None:
        self._end(run.cell, 1)
        config = {**run.spec, "taskloom": run.tags}
        tracked = self._begin(plain_name(self.project or run.grid), run.cell, run.title, run.grid, config)
        if tracked is not None:
            self._runs[run.cell], self._last[run.cell] = tracked, 0

    def epoch_ended(self, run: TrackedRun, facts: dict[str, Any]) -> None:
        if run.cell in self._runs:
            self._last[run.cell] = number = run.epoch_number(facts)
            self._log(run.cell, figures(facts), number)

    def run_finished(self, run: TrackedRun, facts: dict[str, Any]) -> None:
        if run.cell in self._runs:
            self._log(run.cell, figures(facts), self._last[run.cell] + 1)
            self._end(run.cell, 0)

    def run_failed(self, run: TrackedRun, reason: str) -> None:
        if run.cell in self._runs:
            self._runs[run.cell].alert("failed", reason)
            self._end(run.cell, 1)

    def grid_finished(self, grid: str, table: str) -> None:
        tracked = self._begin(plain_name(self.project or grid), "table", f"table of {grid}", grid, {})
        if tracked is not None:
            tracked.log({"table": self._api.Html(f"<pre>{escape(table)}</pre>")})
            tracked.finish()

    def close(self) -> None:
        for cell in list(self._runs):
            self._end(cell, 1)

    def _log(self, cell: str, values: dict[str, float], step: int) -> None:
        self._runs[cell].log(values, step=step)

    def _end(self, cell: str, code: int) -> None:
        if cell in self._runs:
            self._runs.pop(cell).finish()


class Trackio(_Dashboard):
    """Writes runs into Trackio, a dashboard on this machine: a project for each grid, a run for each cell.

    A run has curves, the specification as configuration, and final scores; the table is a run of its own. They are
    where Trackio keeps its projects (``TRACKIO_DIR``), so that ``trackio show`` finds them. A run that is reported
    again is written anew.

    Options:
        project: the project's name; by default the grid's

    Siblings: ``wandb`` is the same interface with a service; ``tensorboard`` and ``mlflow`` keep their files in the
    registry.

    Reference: https://huggingface.co/docs/trackio

    Example: ``taskloom run quickstart --tracker trackio``
    """

    name = "trackio"
    package = "trackio"

    def open(self, folder: Path) -> None:
        super().open(folder)
        for module in (self._api, self._api.run, self._api.utils):  # several lines for each run, amid the progress
            module.print = lambda *words, **options: None

    def _begin(self, project: str, cell: str, title: str, grid: str, config: dict[str, Any]) -> Any:
        api = self._api.Api()
        known = api.runs(project) if self._api.SQLiteStorage.get_project_db_path(project).exists() else ()
        for old in [run for run in known if run.name == title]:
            old.delete()
        # Trackio ends the context's last run before it begins another; here several run at once.
        options: dict[str, Any] = {"auto_log_cpu": False, "auto_log_gpu": False, "embed": False}
        return Context().run(self._api.init, project, name=title, group=grid, config=config, **options)


class WandB(_Dashboard):
    """Writes runs for Weights & Biases: a project for each grid, a run for each cell, offline by default.

    A run has curves, the specification as configuration, tags, and final scores; the table is a run of its own.
    Offline, each run is a folder ``wandb/offline-run-…`` that ``wandb sync`` uploads; it is whole, also if the run was
    interrupted and resumed. Online, a resumed run goes on where it was.

    Options:
        project: the project's name; by default the grid's
        entity: the user or team that it belongs to
        mode: ``offline`` writes files, ``online`` sends them as well
        dir: the folder in which ``wandb`` is; by default the registry's

    Siblings: ``trackio`` has the same interface and its own dashboard on this machine.

    Reference: Biewald 2020, Experiment Tracking with Weights and Biases

    Example: ``taskloom run quickstart --tracker wandb``
    """

    name = "wandb"
    package = "wandb"

    def __init__(
        self,
        *,
        project: str | None = None,
        entity: str | None = None,
        mode: Literal["offline", "online"] = "offline",
        dir: str | None = None,
    ) -> None:
        super().__init__(project=project)
        self.entity, self.mode, self.dir = entity, mode, dir

    def open(self, folder: Path) -> None:
        if self.mode == "offline":
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # to its makers
        super().open(folder)
        if self.mode == "online" and not self._api.login(prompt=False):
            raise TaskloomError('nobody is logged in; `wandb login` does it, and "mode": "offline" needs nobody')
        self._folder = Path(self.dir).expanduser() if self.dir else folder

    def _begin(self, project: str, cell: str, title: str, grid: str, config: dict[str, Any]) -> Any:
        key = plain_name(f"{grid}-{cell}")[-64:]
        for old in self._folder.glob(f"wandb/offline-run-*-{key}"):
            if (old / DONE).exists() and cell != "table":
                return None
            rmtree(old)
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._api.init(
            project=project,
            entity=self.entity,
            id=key,
            name=title,
            group=grid,
            tags=[str(config["taskloom"][tag])[:64] for tag in ("grid", "row", "cell")] if config else [],
            config=config,
            dir=str(self._folder),
            mode=self.mode,
            resume="allow" if self.mode == "online" else None,
            reinit="create_new",
            settings=self._api.Settings(silent=True, console="off", x_disable_stats=True),
        )

    def _log(self, cell: str, values: dict[str, float], step: int) -> None:
        if step >= self._runs[cell].step:  # else it was logged before: this run was resumed
            super()._log(cell, values, step)

    def _end(self, cell: str, code: int) -> None:
        if cell in self._runs:
            run = self._runs.pop(cell)
            run.finish(exit_code=code)
            if code == 0:
                (Path(run.dir).parent / DONE).touch()
