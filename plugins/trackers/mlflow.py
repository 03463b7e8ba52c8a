"""Runs on an MLflow server, or in a file that one can serve."""

import logging
import os
import time
from pathlib import Path
from typing import Any

from taskloom.core import TaskloomError, TrackedRun, Tracker, figures
from taskloom.plugins.trackers.packages import load_package, plain_name

#: The metric that records the last epoch that a run holds.
LAST = "epoch_number"
#: Parameters that MLflow accepts at once, and the longest value of one.
MOST_PARAMETERS, LONGEST = 100, 6000


class MLflow(Tracker):
    """Writes runs into MLflow: an experiment for each grid, a run for each cell.

    A run has curves, the specification as parameters, tags (``taskloom.grid``, ``.row``, ``.seed``, ``.cell``) by which
    it is found again, and final scores. The table is ``table.md``, an artifact of a run called ``table``.

    Options:
        uri: the tracking server, say ``http://127.0.0.1:5000``, or a database; by default ``mlflow.db`` in the registry
        experiment: the experiment's name; by default the grid's

    Siblings: ``tensorboard`` needs no server; ``wandb`` and ``trackio`` are others with dashboards.

    Reference: Zaharia et al. 2018, Accelerating the Machine Learning Lifecycle with MLflow

    Example: ``taskloom run quickstart --tracker '{"name": "mlflow", "uri": "http://127.0.0.1:5000"}'``
    """

    name = "mlflow"

    def __init__(self, *, uri: str | None = None, experiment: str | None = None) -> None:
        self.uri, self.experiment = uri, experiment
        self._experiments: dict[str, str] = {}
        self._runs: dict[str, str] = {}  # cell → MLflow's id of a run that has not ended
        self._last: dict[str, float] = {}  # id → the last epoch that it holds

    def open(self, folder: Path) -> None:
        # No telemetry, and a server that is gone is given up within seconds.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        self._mlflow = load_package("mlflow")
        for name in ("alembic", "mlflow.store.db.utils"):  # each step of making a database
            logging.getLogger(name).setLevel(logging.ERROR)
        self._artifacts = None if self.uri else (folder / "mlflow-artifacts").as_uri()
        uri = self.uri or f"sqlite:///{folder / 'mlflow.db'}"
        self._client = self._mlflow.MlflowClient(uri)
        try:
            self._client.search_experiments(max_results=1)
        except Exception as error:
            cause: BaseException = error
            while inner := cause.__cause__ or cause.__context__:
                cause = inner
            raise TaskloomError(f"{uri} cannot be used: {type(cause).__name__}: {cause}") from error

    def run_started(self, run: TrackedRun) -> None:
        tags = {f"taskloom.{name}": value for name, value in run.tags.items()}
        self._runs[run.cell] = key = self._find(run.grid, "taskloom.cell", run.title, tags)
        entity = self._mlflow.entities
        parameters = [
            entity.Param(plain_name(name, also=" /"), str(value)[:LONGEST]) for name, value in run.parameters.items()
        ]
        for first in range(0, len(parameters), MOST_PARAMETERS):
            self._client.log_batch(key, params=parameters[first : first + MOST_PARAMETERS])

    def epoch_ended(self, run: TrackedRun, facts: dict[str, Any]) -> None:
        key, number = self._runs[run.cell], run.epoch_number(facts)
        if number > self._last[key]:
            self._log(key, {**figures(facts), LAST: number}, number)
            self._last[key] = number

    def run_finished(self, run: TrackedRun, facts: dict[str, Any]) -> None:
        key = self._runs.pop(run.cell)
        self._log(key, figures(facts), int(self._last[key]))
        self._client.set_terminated(key, "FINISHED")

    def run_failed(self, run: TrackedRun, reason: str) -> None:
        key = self._runs.pop(run.cell)
        self._client.set_tag(key, "taskloom.failed", reason[:LONGEST])
        self._client.set_terminated(key, "FAILED")

    def grid_finished(self, grid: str, table: str) -> None:
        key = self._find(grid, "taskloom.table", "table", {"taskloom.table": grid})
        self._client.log_text(key, table, "table.md")
        self._client.set_terminated(key, "FINISHED")

    def close(self) -> None:
        for cell in list(self._runs):
            self._client.set_terminated(self._runs.pop(cell), "KILLED")

    def _find(self, grid: str, tag: str, title: str, tags: dict[str, str]) -> str:
        """The run that has this tag, running again, or a new one."""
        experiment = self._experiment(grid)
        tag_value = tags[tag].replace("'", "")
        runs = self._client.search_runs([experiment], f"tags.`{tag}` = '{tag_value}'", max_results=1)
        if runs:
            key = str(runs[0].info.run_id)
            self._client.update_run(key, status="RUNNING")
            self._last[key] = runs[0].data.metrics.get(LAST, 0)
            return key
        run = self._client.create_run(experiment, tags={**tags, tag: tag_value}, run_name=title)
        self._last[str(run.info.run_id)] = 0
        return str(run.info.run_id)

    def _experiment(self, grid: str) -> str:
        if grid not in self._experiments:
            name = self.experiment or grid
            known = self._client.get_experiment_by_name(name)
            key = known.experiment_id if known else self._client.create_experiment(name, self._artifacts)
            self._experiments[grid] = str(key)
        return self._experiments[grid]

    def _log(self, key: str, values: dict[str, float], number: int) -> None:
        metric, now = self._mlflow.entities.Metric, int(time.time() * 1000)
        names = {plain_name(name, also=" /"): value for name, value in values.items()}
        self._client.log_batch(key, metrics=[metric(name, value, now, number) for name, value in names.items()])
